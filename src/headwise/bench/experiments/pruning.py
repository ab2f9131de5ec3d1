"""How many heads go before the loss moves: each alone against all together, trained against random weights.

A head is removed by putting zeros in the place of what it writes. Heads are ranked by what each alone costs on
validation text and go in that order; the losses are those of test text. Beside it stand three other counts: how many
heads each alone cost less than the limit, how many may go if single costs are added up, and how many go if the heads
that stay are ranked anew after each removal.

Zeros save no work. So half the heads of each layer are also cut out of the weights, which must give the same outputs,
and both are timed in turns. These times are the only numbers that don't come from the seed: a run that is kept keeps
its own, and a run that is repeated has others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headwise.bench.experiments import sharing
from headwise.bench.experiments.characters import draw_stretches, loss_of, read_characters
from headwise.bench.experiments.experiment import (
    FOUND,
    NO_CONCLUSION,
    NOT_SHOWN,
    Comparison,
    Curve,
    Dots,
    Experiment,
    Finding,
    Lines,
    Measure,
    Numbers,
)
from headwise.bench.experiments.findings import compare, difference_text, row_text
from headwise.bench.experiments.summary import Summary
from headwise.bench.experiments.training import Decoder, generator_of
from headwise.bench.timing import measure_paired
from headwise.nn import GroupedQueryAttention

__all__ = [
    "EXPERIMENT",
    "TIMES",
    "Settings",
    "findings",
    "rank",
    "rank_anew",
    "run",
    "within_limit",
    "without_heads",
    "zeroed",
]

TRAINED, RANDOM = "trained", "random weights"
TIMES = ("whole_ms", "zeroed_ms", "removed_ms", "zeroed_time", "removed_time")

Head = tuple[int, int]  # (layer, head)


@dataclass(frozen=True)
class Settings(sharing.Settings):
    """Sizes: those of the model and its training, and these.

    Attributes:
        ranking: stretches by which heads are ranked.
        limit: from which rise on the loss has moved, in nats.
        rounds: of timing.
    """

    layers: int = 2
    rows: int = 64
    ranking: int = 32
    limit: float = 0.05
    rounds: int = 15


@contextmanager
def zeroed(model: Decoder, heads: Iterable[Head]) -> Iterator[None]:
    """Heads write zeros within the block: their columns of the output projection are 0."""
    attentions: Sequence[Any] = list(model.attentions)
    before = [attention.o_proj.weight.detach().clone() for attention in attentions]
    try:
        with torch.no_grad():
            for layer, head in heads:
                attention = attentions[layer]
                attention.o_proj.weight[:, head * attention.head_dim : (head + 1) * attention.head_dim] = 0
        yield
    finally:
        with torch.no_grad():
            for attention, weight in zip(attentions, before, strict=True):
                attention.o_proj.weight.copy_(weight)


def without_heads(model: Decoder, heads: Iterable[Head]) -> Decoder:
    """A copy in which the heads' rows and columns are gone. Every layer must keep one head."""
    gone = set(heads)
    smaller = copy.deepcopy(model)
    attentions: Sequence[Any] = list(model.attentions)
    for layer, attention in enumerate(attentions):
        kept = [head for head in range(attention.num_heads) if (layer, head) not in gone]
        smaller.attentions[layer] = _with_heads(attention, kept)
    return smaller


def _with_heads(attention: Any, kept: Sequence[int]) -> GroupedQueryAttention:
    """The layer with some of its heads, each of which has a KV head of its own."""
    width = attention.head_dim
    made = GroupedQueryAttention(attention.embed_dim, len(kept), head_dim=width, rope=attention.rope)
    places = torch.cat([torch.arange(head * width, (head + 1) * width) for head in kept])
    state = {
        name: weight[:, places] if name.startswith("o_proj") else weight[places]
        for name, weight in attention.state_dict().items()
        if name.split(".")[0] in ("q_proj", "k_proj", "v_proj", "o_proj")
    }
    made.load_state_dict(state, strict=False)  # what rope holds is the same module
    return made


def run(name: str, seed: int, settings: Settings) -> Numbers:
    """The numbers of one condition and seed."""
    model = sharing.build(sharing.MHA, seed, settings)
    if name == TRAINED:
        sharing.train_on_text(model, seed, settings)
    ranking, test = (
        draw_stretches(text, count, settings.length, generator_of(seed, split))
        for split, text, count in (
            ("ranking", read_characters().validation, settings.ranking),
            ("test", read_characters().test, settings.rows),
        )
    )
    rise_in_ranking, rise = (partial(_rise, model, rows, _loss(model, rows)) for rows in (ranking, test))
    order = rank(model, rise_in_ranking)
    numbers = {"loss": _loss(model, test), **_effects(order, rise, settings)}
    if name == TRAINED:
        drawn = torch.randperm(len(order), generator=generator_of(seed, "order")).tolist()
        orders = {"ranked_anew": rank_anew(order, rise_in_ranking), "at_random": [order[place] for place in drawn]}
        for key, other in orders.items():
            rises = [0.0, *map(rise, _prefixes(other))]
            numbers |= {key: within_limit(rises, settings.limit), f"{key}_curve": rises}
        numbers |= _times(model, order, test, settings)
    return numbers


def _effects(order: Sequence[Head], rise: Callable[[Sequence[Head]], float], settings: Settings) -> dict[str, Any]:
    """Each head alone, and all in their order."""
    alone = [rise([head]) for head in order]
    summed = [sum(alone[:count]) for count in range(len(alone) + 1)]
    joint = [0.0, *map(rise, _prefixes(order))]
    half = len(order) // 2
    return {
        "largest": max(alone),
        "sum_half": summed[half],
        "joint_half": joint[half],
        "sum_all": summed[-1],
        "joint_all": joint[-1],
        "each_alone": sum(each <= settings.limit for each in alone),
        "by_sum": within_limit(summed, settings.limit),
        "jointly": within_limit(joint, settings.limit),
        "removed": list(range(len(joint))),
        "joint_curve": joint,
        "sum_curve": summed,
    }


def within_limit(rises: Sequence[float], limit: float) -> int:
    """How many go before the loss has risen by more than the limit; ``rises`` begins with 0 heads."""
    return next((count - 1 for count, rise in enumerate(rises) if rise > limit), len(rises) - 1)


def _prefixes(order: Sequence[Head]) -> list[Sequence[Head]]:
    return [order[:count] for count in range(1, len(order) + 1)]


def _loss(model: Decoder, rows: Tensor) -> float:
    with torch.no_grad():
        return loss_of(model, rows).item()


def _rise(model: Decoder, rows: Tensor, whole: float, heads: Sequence[Head]) -> float:
    with zeroed(model, heads):
        return _loss(model, rows) - whole


def rank(model: Decoder, rise: Callable[[Sequence[Head]], float]) -> list[Head]:
    """All heads, the one that costs least alone first."""
    attentions: Sequence[Any] = list(model.attentions)
    heads = [(layer, head) for layer, attention in enumerate(attentions) for head in range(attention.num_heads)]
    return sorted(heads, key=lambda head: rise([head]))


def rank_anew(heads: Sequence[Head], rise: Callable[[Sequence[Head]], float]) -> list[Head]:
    """The head that costs least beside those that are gone already, again and again."""
    gone: list[Head] = []
    while len(gone) < len(heads):
        gone.append(min((head for head in heads if head not in gone), key=lambda head: rise([*gone, head])))
    return gone


def _times(model: Decoder, order: Sequence[Head], rows: Tensor, settings: Settings) -> dict[str, float]:
    """Half the heads of each layer, zeroed and cut out: how long the same rows take, after both gave the same.

    Raises:
        AssertionError: they don't, so that their times mean nothing.
    """
    heads = [
        head
        for layer in range(settings.layers)
        for head in [each for each in order if each[0] == layer][: settings.heads // 2]
    ]
    tokens = rows[:, :-1]
    masked, smaller = copy.deepcopy(model), without_heads(model, heads)
    with zeroed(masked, heads), torch.no_grad():
        outputs = [each(tokens) for each in (masked, smaller)]
        torch.testing.assert_close(outputs[1], outputs[0], atol=1e-4, rtol=1e-4)
        rivals = {"whole": model, "zeroed": masked, "removed": smaller}
        times = measure_paired(
            {name: partial(each, tokens) for name, each in rivals.items()}, rounds=settings.rounds, warmup=2
        )
    return {
        "apart": (outputs[1] - outputs[0]).abs().max().item(),
        **{f"{name}_ms": 1e3 * times.median(name) for name in rivals},
        "zeroed_time": times.median_ratio("zeroed", "whole"),
        "removed_time": times.median_ratio("removed", "whole"),
    }


def findings(summary: Summary) -> list[Finding]:
    """What follows and what does not."""
    return [
        _about_learning(summary),
        *_about_counts(summary),
        *_about_sums(summary),
        _about_weights(summary),
        _about_times(summary),
        *_limits(summary),
    ]


def _about_learning(summary: Summary) -> Finding:
    trained, random = (summary.row(name, "loss") for name in (TRAINED, RANDOM))
    learnt = trained.high < random.low
    text = f"held-out loss {row_text(trained)} with trained weights, {row_text(random)} with random ones"
    return Finding(FOUND if learnt else NOT_SHOWN, text if learnt else f"that anything was learnt: {text}")


def _about_counts(summary: Summary) -> list[Finding]:
    limit = summary.settings.limit
    trained = {key: summary.row(TRAINED, key) for key in ("jointly", "each_alone")}
    counts = f"{row_text(trained['jointly'])} together, {row_text(trained['each_alone'])} alone"
    return [
        compare(
            summary.difference("alone"),
            higher=f"trained: more heads go together than cost less than {limit} nats alone ({counts})",
            lower=f"trained: fewer heads go together than cost less than {limit} nats alone ({counts})",
            none=f"trained: that more or fewer heads go together than cost less than {limit} nats alone is not shown "
            f"({counts})",
        ),
        *(
            compare(
                summary.difference(key),
                higher=f"trained: {what} lets more heads go than ranking them once",
                lower=f"trained: {what} lets fewer heads go than ranking them once",
                none=f"trained: that {what} lets more or fewer heads go than ranking them once is not shown",
            )
            for key, what in (("by_sum", "adding up single costs"), ("again", "ranking anew"), ("chance", "chance"))
        ),
    ]


def _about_sums(summary: Summary) -> list[Finding]:
    return [
        compare(
            summary.difference(f"sum_{part}"),
            higher=f"trained: {told} heads together cost more than the sum of each alone",
            lower=f"trained: {told} heads together cost less than the sum of each alone",
            none=f"trained: that {told} heads together cost more or less than the sum of each alone is not shown",
        )
        for part, told in (("half", "the lesser half of all"), ("all", "all"))
    ]


def _about_weights(summary: Summary) -> Finding:
    random = f"of {summary.settings.layers * summary.settings.heads}"
    return compare(
        summary.difference("weights"),
        higher=f"more heads {random} go from random weights than from trained ones (random − trained)",
        lower=f"fewer heads {random} go from random weights than from trained ones (random − trained)",
        none=f"no difference in how many heads {random} go is shown between random and trained weights",
    )


def _about_times(summary: Summary) -> Finding:
    """By intervals: a comparison would let times, which no seed repeats, into the q-values of all others."""
    removed, masked = (summary.row(TRAINED, f"{name}_time") for name in ("removed", "zeroed"))
    if removed.high < masked.low:
        kind, text = FOUND, "half the heads of each layer take less time cut out than zeroed"
    elif removed.low > masked.high:
        kind, text = FOUND, "half the heads of each layer take more time cut out than zeroed"
    else:
        kind, text = NOT_SHOWN, "that half the heads of each layer take less time cut out than zeroed is not shown"
    return Finding(
        kind,
        f"{text}, with the same outputs: {row_text(removed)} against {row_text(masked)} of the whole model's time, on "
        "the machine that ran it",
    )


def _limits(summary: Summary) -> list[Finding]:
    told = []
    alone = summary.difference("alone")
    if alone.shown and alone.mean < 0:
        told.append(
            "how many heads can go, from what each costs alone: together fewer go within the same limit "
            f"({difference_text(alone)})"
        )
    weights = summary.difference("weights")
    if weights.shown and weights.mean > 0:
        told.append(
            "that heads which can go are heads which a model doesn't need: from random weights, which use nothing, "
            "more go"
        )
    told += [
        "how many heads of a language model can go: this one has few, is small, and was trained shortly",
        "that the loss stays where it is after more training or compensation: nothing was fitted again",
        "how long other sizes or machines take: the attention of so small a model is a small part of its time",
    ]
    return [Finding(NO_CONCLUSION, text) for text in told]


_COUNTS = {
    "jointly": "heads removed within the limit, ranked once",
    "ranked_anew": "heads removed within the limit, ranked anew",
    "at_random": "heads removed within the limit, at random",
    "by_sum": "heads within the limit by the sum of single costs",
    "each_alone": "heads that cost less than the limit alone",
}
_LOSSES = {
    "loss": "held-out loss (nats per character)",
    "largest": "largest rise by one head (nats)",
    "sum_half": "lesser half: sum of single rises (nats)",
    "joint_half": "lesser half together: rise (nats)",
    "sum_all": "all heads: sum of single rises (nats)",
    "joint_all": "all heads together: rise (nats)",
}

EXPERIMENT = Experiment(
    name="pruning",
    question="How many heads go before the loss moves, and what does removing them save?",
    task="Two layers of eight heads with MLPs that predict the next character of Python's help topics, trained, and "
    "the same with its random initial weights. Heads are ranked by what zeroing each alone costs. They are zeroed in "
    "that order, in an order that is ranked anew after each, and in a random one, until the loss has risen by more "
    "than 0.05 nats. Half the heads of each layer are also cut out of the weights, which gives the same outputs, and "
    "timed in turns.",
    held_out="a quarter of all topics, chosen by a hash of their text: half of them rank heads, half give the losses.",
    settings=Settings(),
    conditions=(TRAINED, RANDOM),
    run=run,
    measures=(
        *(Measure(key, title) for key, title in _LOSSES.items()),
        *(Measure(key, title, ".1f") for key, title in _COUNTS.items()),
        Measure("whole_ms", "time of the whole model (ms)", ".2f"),
        Measure("zeroed_ms", "time, half the heads zeroed (ms)", ".2f"),
        Measure("removed_ms", "time, half the heads removed (ms)", ".2f"),
        Measure("zeroed_time", "time, half zeroed / whole"),
        Measure("removed_time", "time, half removed / whole"),
        Measure("apart", "largest difference of outputs, removed − zeroed", ".1e"),
    ),
    findings=findings,
    curves=(
        Curve("joint_curve", "rise of the loss (nats)", "removed", "heads removed, ranked once"),
        Curve("sum_curve", "sum of single rises (nats)", "removed", "heads removed, ranked once"),
        Curve("ranked_anew_curve", "rise of the loss, ranked anew (nats)", "removed", "heads removed"),
        Curve("at_random_curve", "rise of the loss, at random (nats)", "removed", "heads removed"),
    ),
    comparisons=(
        Comparison("alone", "trained: together − alone", (TRAINED, "each_alone"), (TRAINED, "jointly"), ".1f"),
        Comparison("by_sum", "trained: by the sum − ranked once", (TRAINED, "jointly"), (TRAINED, "by_sum"), ".1f"),
        Comparison("again", "trained: ranked anew − once", (TRAINED, "jointly"), (TRAINED, "ranked_anew"), ".1f"),
        Comparison("chance", "trained: at random − ranked once", (TRAINED, "jointly"), (TRAINED, "at_random"), ".1f"),
        Comparison("sum_half", "trained, lesser half: together − sum", (TRAINED, "sum_half"), (TRAINED, "joint_half")),
        Comparison("sum_all", "trained, all heads: together − sum", (TRAINED, "sum_all"), (TRAINED, "joint_all")),
        Comparison("weights", "heads removed: random − trained", (TRAINED, "jointly"), (RANDOM, "jointly"), ".1f"),
    ),
    panels=(
        Lines("Heads ranked once: together, and the sum of each", ("joint_curve", "sum_curve")),
        Lines("Trained: ranked anew, and at random", ("ranked_anew_curve", "at_random_curve"), (TRAINED,)),
        Dots("Heads removed within the limit", tuple(_COUNTS)),
        Dots("Time against the whole model", ("zeroed_time", "removed_time"), (TRAINED,)),
    ),
    inputs=lambda: {"corpus": read_characters().digest},
    cost=lambda name: 2.0 if name == TRAINED else 1.0,
)
