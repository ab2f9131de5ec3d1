"""Local and global heads mixed in one layer: what they recall from near and from far, and what they cost.

A row holds pairs of a key and a value in two zones, fillers between and among them, and queries at its end. Each query
asks for the values of several keys at once, half of them from the near zone, which every window reaches from every
query, half from the far one, which none does. Which pairs there are and where they stand in their zones is drawn anew.

Symbols: B rows, L places of a row, P pairs, Q queries, E width, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.attention.masks import within_spans
from headwise.bench.experiments.experiment import (
    FOUND,
    NO_CONCLUSION,
    NOT_SHOWN,
    Comparison,
    Dots,
    Experiment,
    Finding,
    Measure,
    Numbers,
    Plane,
)
from headwise.bench.experiments.findings import compare, difference_text
from headwise.bench.experiments.retrieval import draw_assignments, look_up, retrieval_loss
from headwise.bench.experiments.summary import Summary
from headwise.bench.experiments.training import generator_of, seeded, train_decayed
from headwise.cache import WindowCache
from headwise.nn import GroupedQueryAttention

__all__ = [
    "EXPERIMENT",
    "Recaller",
    "Rows",
    "Settings",
    "cache_bytes",
    "condition",
    "draw_rows",
    "findings",
    "run",
    "visible_pairs",
]

HEADS = 4
LOCALS = tuple(range(HEADS + 1))
TEST, TRAINING = (1,), tuple(range(2, 8))


@dataclass(frozen=True)
class Settings:
    """Sizes.

    Attributes:
        keys: different keys, all of which stand in every row, half of them in either zone.
        values: different values.
        fillers: different tokens that hold neither.
        slots: how many keys a query asks for, half of them from either zone.
        queries: of a row, in its last places.
        near: places of the zone before the queries.
        far: places of the zone at the start of the row.
        length: L.
        window: how many keys a local head sees, a query's own included.
        width: E.
        batch: rows of a step.
        steps: of training.
        rate: the highest learning rate, for all layouts.
        rows: of the test.
        margin: a difference of shares of right answers that is called none.
    """

    keys: int = 8
    values: int = 8
    fillers: int = 4
    slots: int = 4
    queries: int = 8
    near: int = 4
    far: int = 8
    length: int = 32
    window: int = 12
    width: int = 32
    batch: int = 32
    steps: int = 500
    rate: float = 1.5e-2
    rows: int = 128
    margin: float = 0.02


def condition(local: int) -> str:
    """The name of a condition."""
    named = {0: "all global", HEADS: "all local"}
    return named.get(local, f"{local} local, {HEADS - local} global")


@dataclass(frozen=True)
class Rows:
    """Rows of pairs, fillers and queries.

    Attributes:
        keys: ``[B, L - Q]`` a key, or a filler, counted on behind the keys.
        values: ``[B, L - Q]`` the value of a key; of a filler one number more than there are values.
        assignment: ``[B, P]`` the value of key 0, 1, ...: what is held out.
        asked: ``[B, Q, slots]`` keys that each query asks for; the first half of the slots stand near, the others far.
        answers: ``[B, Q, slots]`` their values.
    """

    keys: Tensor
    values: Tensor
    assignment: Tensor
    asked: Tensor
    answers: Tensor


def draw_rows(count: int, splits: tuple[int, ...], generator: torch.Generator, settings: Settings) -> Rows:
    """Rows whose assignment of values to keys belongs to one of the splits."""
    _check_zones(settings)
    assignment = draw_assignments(count, splits, keys=settings.keys, values=settings.values, generator=generator)
    order = torch.rand(count, settings.keys, generator=generator).argsort(1)
    zones = order.tensor_split(2, 1)  # keys that stand near, and far
    places = settings.length - settings.queries
    keys = settings.keys + torch.randint(settings.fillers, (count, places), generator=generator)
    values = torch.full((count, places), settings.values)
    for zone, start, size in zip(zones, (places - settings.near, 0), (settings.near, settings.far), strict=True):
        where = start + torch.rand(count, size, generator=generator).argsort(1)[:, : zone.shape[1]]
        keys.scatter_(1, where, zone)
        values.scatter_(1, where, assignment.gather(1, zone))
    asked = torch.cat([_choose(zone, settings, generator) for zone in zones], -1)
    answers = look_up(assignment, asked)
    return Rows(keys, values, assignment, asked, answers)


def _check_zones(settings: Settings) -> None:
    """Every query reaches the whole near zone through a window, and none reaches the far one."""
    reached = settings.near + settings.queries <= settings.window
    first = settings.length - settings.queries
    if not reached or first - (settings.far - 1) < settings.window:
        raise ValueError(
            f"windows: expected near + queries of at most window and far of at most length - queries - window + 1, "
            f"got {settings}"
        )


def _choose(zone: Tensor, settings: Settings, generator: torch.Generator) -> Tensor:
    """``[B, Q, slots / 2]`` different keys of a zone ``[B, P / 2]``."""
    count, size = zone.shape
    drawn = torch.rand(count, settings.queries, size, generator=generator).argsort(-1)[..., : settings.slots // 2]
    return zone.gather(1, drawn.flatten(1)).view_as(drawn)


class Recaller(nn.Module):
    """One attention layer over a row, and a linear readout for each slot.

    A pair is the sum of the embeddings of its key and value, a query that of the keys it asks for, each embedded for
    its slot. Positions are not told; only windows know them.
    """

    first: Tensor

    def __init__(self, local: int, settings: Settings) -> None:
        super().__init__()
        width, keys = settings.width, settings.keys
        self.settings = settings
        self.key, self.value = nn.Embedding(keys + settings.fillers, width), nn.Embedding(settings.values + 1, width)
        self.ask = nn.Embedding(settings.slots * keys, width)
        self.register_buffer("first", torch.arange(settings.slots) * keys, persistent=False)
        windows = [(settings.window - 1, 0)] * local + [None] * (HEADS - local)
        self.attention = GroupedQueryAttention(width, HEADS, window=windows)
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, settings.slots * settings.values)

    def embed(self, rows: Rows) -> Tensor:
        """``[B, L, E]``."""
        pairs = self.key(rows.keys) + self.value(rows.values)
        return torch.cat([pairs, self.ask(rows.asked + self.first).sum(2)], 1)

    def forward(self, rows: Rows) -> Tensor:
        """``[B, Q, slots, values]``."""
        hidden = self.embed(rows)
        hidden = hidden + self.attention(hidden, causal=True).output
        read: Tensor = self.readout(self.norm(hidden[:, -self.settings.queries :]))
        return read.unflatten(-1, (self.settings.slots, self.settings.values))


def run(name: str, seed: int, settings: Settings) -> Numbers:
    """The numbers of one condition and seed."""
    local = next(local for local in LOCALS if condition(local) == name)
    model = _train(local, seed, settings)
    test = draw_rows(settings.rows, TEST, generator_of(seed, "test"), settings)
    with torch.no_grad():
        loss = _loss(model, test).item()
        near, far = ((model(test).argmax(-1) == test.answers).float().mean((0, 1)).view(2, -1).mean(1)).tolist()
    held, allocated = cache_bytes(model, test)
    return {
        "near": near,
        "far": far,
        "loss": loss,
        "held": held,
        "allocated": allocated,
        "pairs": visible_pairs(model.attention, settings.length),
    }


def _train(local: int, seed: int, settings: Settings) -> Recaller:
    with seeded(seed, "weights"):  # the same shapes for any number of local heads, so the same values
        model = Recaller(local, settings)
    generator = generator_of(seed, "training")

    def loss_of(step: int) -> Tensor:
        return _loss(model, draw_rows(settings.batch, TRAINING, generator, settings))

    train_decayed(model, loss_of, steps=settings.steps, rate=settings.rate)
    return model


def _loss(model: Recaller, rows: Rows) -> Tensor:
    return retrieval_loss(model(rows), rows.answers)


def cache_bytes(model: Recaller, rows: Rows) -> tuple[int, int]:
    """Of one row, once it is read: what a later token can still see of it, and what the cache has allocated."""
    attention = model.attention
    lefts = [left for left, _ in attention.spans]
    windows = lefts * HEADS if len(lefts) == 1 else lefts
    hidden = model.embed(rows)[:1]
    cache = WindowCache(1, HEADS, windows, attention.head_dim, capacity=hidden.shape[1])
    with torch.no_grad():
        attention(hidden, causal=True, cache=cache)
    return cache.nbytes_logical, cache.nbytes


def visible_pairs(attention: GroupedQueryAttention, length: int) -> int:
    """How many pairs of a query and a key the mask leaves, over all heads."""
    places = torch.arange(length)
    visible = (places <= places[:, None]).expand(HEADS, -1, -1)  # [H, L, L]
    within = within_spans(places[None], places[None], places, attention.spans)
    return int((visible if within is None else visible & within).sum())


def findings(summary: Summary) -> list[Finding]:
    """What follows and what does not."""
    told = [_about(summary, local, zone) for local in LOCALS[1:] for zone in ("near", "far")]
    return [*told, _about_costs(summary), *_limits(summary)]


def _about(summary: Summary, local: int, zone: str) -> Finding:
    name, margin = condition(local), summary.settings.margin
    against = f"({name} − all global)"
    return compare(
        summary.difference(f"{zone} {local}"),
        higher=f"{name}: more is recalled from {zone} than with global heads alone {against}",
        lower=f"{name}: less is recalled from {zone} than with global heads alone {against}",
        none=f"{name}: no difference from global heads alone is shown for {zone} {against}",
        same=f"{name}: as much is recalled from {zone} as with global heads alone, within {margin:.0%} {against}",
        margin=margin,
    )


def _about_costs(summary: Summary) -> Finding:
    """The layout with the most local heads that is not behind in either zone."""
    margin = summary.settings.margin
    kept = [
        local
        for local in LOCALS[1:]
        if all(summary.difference(f"{zone} {local}").low > -margin for zone in ("near", "far"))
    ]
    bytes_of, pairs_of = ({local: summary.mean(condition(local), key) for local in LOCALS} for key in ("held", "pairs"))
    if not kept:
        return Finding(
            NOT_SHOWN,
            f"that any layout with local heads keeps both zones within {margin:.0%} of global heads alone, which cost "
            f"{bytes_of[0]:,.0f} bytes of cache and {pairs_of[0]:,.0f} pairs a row",
        )
    most = max(kept)
    shares = " and ".join(
        f"{cost[most]:,.0f} of {cost[0]:,.0f} {unit} ({cost[most] / cost[0]:.0%})"
        for cost, unit in ((bytes_of, "bytes of cache"), (pairs_of, "pairs"))
    )
    return Finding(
        FOUND,
        f"{condition(most)}: neither zone loses more than {margin:.0%} against global heads alone, for {shares} a row",
    )


def _limits(summary: Summary) -> list[Finding]:
    settings = summary.settings
    mixed = [local for local in LOCALS[1:-1] if (far := summary.difference(f"far {local}")).shown and far.mean < 0]
    told = []
    if mixed:
        worst = max(mixed)
        told.append(
            f"that a single global head recalls for all: with {condition(worst)} less is recalled from far "
            f"({difference_text(summary.difference(f'far {worst}'))}), where {settings.slots // 2} things are "
            "asked for at once"
        )
    else:
        told.append("that mixed layers lose anything from far: none is shown to")
    told += [
        f"how many global heads other tasks need: a query here asks for {settings.slots // 2} things of either zone",
        "that distances beyond a window are out of reach in deeper models: windows of several layers add up, and here "
        "is one layer",
        "how much faster a mixed layer is: bytes and pairs are counts, no times",
        f"how the shares look elsewhere: a row of {settings.length} against a window of {settings.window}; what is "
        "allocated also has room to move in, which weighs less in longer windows",
    ]
    return [Finding(NO_CONCLUSION, text) for text in told]


EXPERIMENT = Experiment(
    name="windows",
    question="How many heads of a layer may be local, and what does it save?",
    task="One attention layer of four heads with a linear readout; none to all of its heads see a window of 12 keys "
    "only, from the same initial values, on the same rows, at the same learning rate. A row of 32 holds eight "
    "pairs of a key and a value, half of them 1 to 11 places before the queries, half of them at least 17 places; each "
    "query asks for two of either at once.",
    held_out="one eighth of all assignments of values to keys is kept for the test. Nothing is chosen.",
    settings=Settings(),
    conditions=tuple(condition(local) for local in LOCALS),
    run=run,
    measures=(
        Measure("near", "near answers right", ".1%"),
        Measure("far", "far answers right", ".1%"),
        Measure("loss", "held-out loss (nats)"),
        Measure("held", "cache in use (bytes a row)", ",.0f"),
        Measure("allocated", "cache allocated (bytes a row)", ",.0f"),
        Measure("pairs", "visible pairs of a row", ",.0f"),
    ),
    findings=findings,
    comparisons=tuple(
        Comparison(
            f"{zone} {local}",
            f"{zone}: {condition(local)} − all global",
            (condition(0), zone),
            (condition(local), zone),
            ".1%",
        )
        for local in LOCALS[1:]
        for zone in ("near", "far")
    ),
    panels=(
        Dots("Right answers", ("near", "far")),
        Plane("Far, against the cache", "held", "far"),
        Plane("Far, against the pairs", "pairs", "far"),
        Plane("Near, against the cache", "held", "near"),
    ),
)
