"""One head against four of the same total width, from the same initial values and on the same data in the same order.

Three tasks. ``sequence``: the bounded next-token task of two rows 0 1 2 3 4 0 1 ..., which any of the models learns by
heart. ``several``: each query of a row asks for the values of several keys, one for each slot, and all have to be told
apart. ``single``: the same rows, but a query asks for the value of one key. Rows of the last two are drawn anew at
every step; whole assignments of values to keys are held out.

Symbols: B rows, P pairs, Q queries, E width, H heads.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional

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
)
from headwise.bench.experiments.findings import compare, row_text
from headwise.bench.experiments.retrieval import draw_assignments, look_up, retrieval_loss
from headwise.bench.experiments.summary import Summary
from headwise.bench.experiments.training import generator_of, parameter_count, seeded, train, train_decayed
from headwise.nn import GroupedQueryAttention

__all__ = [
    "EXPERIMENT",
    "Retriever",
    "Rows",
    "Settings",
    "TinyLM",
    "condition",
    "draw_rows",
    "findings",
    "run",
    "unordered_loss",
]

SEQUENCE, SEVERAL, SINGLE = "sequence", "several", "single"
TASKS, HEADS = (SEQUENCE, SEVERAL, SINGLE), (1, 4)
VALIDATION, TEST, TRAINING = (0,), (1,), tuple(range(2, 8))
# The rows of the sequence: token i + 1 follows token i, from 0 and from 1; the other three starts are never trained on.
_TOKENS, _ROW = 5, 9
_TRAINED, _OTHER = (0, 1), (2, 3, 4)


@dataclass(frozen=True)
class Settings:
    """Sizes.

    Attributes:
        sequence_width: width on the sequence.
        sequence_steps: of training on it.
        sequence_rate: learning rate there.
        keys: different keys, all of which stand in every row.
        values: different values.
        slots: how many keys a query of ``several`` asks for.
        queries: of a row.
        width: E on the other tasks.
        batch: rows of a step.
        steps: of training at each learning rate.
        rates: that both numbers of heads try; the one with the least validation loss is judged on the test rows.
        rows: of validation, and of the test.
        margin: a difference of losses that is called none, in nats.
    """

    sequence_width: int = 16
    sequence_steps: int = 25
    sequence_rate: float = 0.02
    keys: int = 8
    values: int = 8
    slots: int = 4
    queries: int = 8
    width: int = 32
    batch: int = 32
    steps: int = 200
    rates: tuple[float, ...] = (3e-3, 1e-2, 3e-2)
    rows: int = 128
    margin: float = 0.02


def condition(task: str, heads: int) -> str:
    """The name of a condition."""
    return f"{task}, {heads} head{'s' * (heads > 1)}"


class TinyLM(nn.Module):
    """The model of the bounded next-token task: one attention layer with learned positions, a norm and a readout."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(_TOKENS, width)
        self.pos = nn.Parameter(torch.randn(1, _ROW - 1, width) * 0.01)
        self.attn = GroupedQueryAttention(width, heads)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, _TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        """``[B, L]`` to ``[B, L, 5]``."""
        hidden = self.emb(tokens) + self.pos[:, : tokens.shape[1]]
        read: Tensor = self.head(self.norm(hidden + self.attn(hidden, causal=True).output))
        return read


@dataclass(frozen=True)
class Rows:
    """Rows of pairs and queries.

    Attributes:
        keys: ``[B, P]`` in the order in which they stand.
        values: ``[B, P]`` of the pairs in that order.
        assignment: ``[B, P]`` the value of key 0, 1, ...: what is held out.
        asked: ``[B, Q, slots]`` keys that each query asks for, all different.
        answers: ``[B, Q, slots]`` their values.
    """

    keys: Tensor
    values: Tensor
    assignment: Tensor
    asked: Tensor
    answers: Tensor


class Retriever(nn.Module):
    """One attention layer over pairs and queries, and a linear readout for each slot.

    A pair is the sum of the embeddings of its key and value, a query that of the keys it asks for, each embedded for
    its slot. Positions are not told: pairs are found by what they hold.
    """

    first: Tensor

    def __init__(self, heads: int, slots: int, settings: Settings) -> None:
        super().__init__()
        width = settings.width
        self.slots, self.value_count = slots, settings.values
        self.key, self.value = nn.Embedding(settings.keys, width), nn.Embedding(settings.values, width)
        self.ask = nn.Embedding(slots * settings.keys, width)
        self.register_buffer("first", torch.arange(slots) * settings.keys, persistent=False)
        self.attention = GroupedQueryAttention(width, heads)
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, slots * settings.values)

    def forward(self, rows: Rows) -> Tensor:
        """``[B, Q, slots, values]``."""
        pairs = self.key(rows.keys) + self.value(rows.values)  # [B, P, E]
        queries = self.ask(rows.asked + self.first).sum(2)  # [B, Q, E]
        hidden = queries + self.attention(queries, pairs).output
        read: Tensor = self.readout(self.norm(hidden))
        return read.unflatten(-1, (self.slots, self.value_count))


def draw_rows(count: int, splits: tuple[int, ...], slots: int, generator: torch.Generator, settings: Settings) -> Rows:
    """Rows whose assignment of values to keys belongs to one of the splits."""
    assignment = draw_assignments(count, splits, keys=settings.keys, values=settings.values, generator=generator)
    keys = torch.rand(count, settings.keys, generator=generator).argsort(1)
    places = torch.rand(count, settings.queries, settings.keys, generator=generator)
    asked = places.argsort(-1)[..., :slots]
    answers = look_up(assignment, asked)
    return Rows(keys, assignment.gather(1, keys), assignment, asked, answers)


def run(name: str, seed: int, settings: Settings) -> Numbers:
    """The numbers of one condition and seed."""
    task, heads = next((task, heads) for task in TASKS for heads in HEADS if condition(task, heads) == name)
    if task == SEQUENCE:
        return _run_sequence(heads, seed, settings)
    return _run_retrieval(heads, settings.slots if task == SEVERAL else 1, seed, settings)


def _run_sequence(heads: int, seed: int, settings: Settings) -> Numbers:
    """Two rows by heart, then the starts that were left out."""
    with seeded(seed, "sequence"):
        model = TinyLM(heads, settings.sequence_width)
    trained, others = _cycle(_TRAINED), _cycle(_OTHER)

    def loss_on(rows: Tensor) -> Tensor:
        return functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    losses = train(model, lambda step: loss_on(trained), steps=settings.sequence_steps, rate=settings.sequence_rate)
    with torch.no_grad():
        correct = (model(others[:, :-1]).argmax(-1) == others[:, 1:]).float().mean()
        return {
            "first_loss": losses[0],
            "train_loss": loss_on(trained).item(),
            "loss": loss_on(others).item(),
            "accuracy": correct.item(),
            "parameters": parameter_count(model),
        }


def _cycle(starts: tuple[int, ...]) -> Tensor:
    """``[starts, 9]`` tokens that count up around 5."""
    return (torch.tensor(starts)[:, None] + torch.arange(_ROW)) % _TOKENS


def _run_retrieval(heads: int, slots: int, seed: int, settings: Settings) -> Numbers:
    """Every learning rate once, each from the same initial values on the same rows; the best one is judged."""
    validation = draw_rows(settings.rows, VALIDATION, slots, generator_of(seed, slots, "validation"), settings)
    tried = []
    for rate in settings.rates:
        model, train_loss = _train_retriever(heads, slots, rate, seed, settings)
        tried.append((_judge(model, validation)[0], rate, train_loss, model))
    validation_loss, rate, train_loss, model = min(tried, key=lambda each: each[:2])
    test = draw_rows(settings.rows, TEST, slots, generator_of(seed, slots, "test"), settings)
    loss, accuracy = _judge(model, test)
    return {
        "train_loss": train_loss,
        "validation_loss": validation_loss,
        "loss": loss,
        "accuracy": accuracy,
        "rate": rate,
        "parameters": parameter_count(model),
    }


def _train_retriever(heads: int, slots: int, rate: float, seed: int, settings: Settings) -> tuple[Retriever, float]:
    """A trained model, and its loss over the last tenth of the steps."""
    with seeded(seed, slots, "weights"):  # the same shapes for any number of heads, so the same values
        model = Retriever(heads, slots, settings)
    generator = generator_of(seed, slots, "training")

    def loss_of(step: int) -> Tensor:
        return _loss(model, draw_rows(settings.batch, TRAINING, slots, generator, settings))

    return model, train_decayed(model, loss_of, steps=settings.steps, rate=rate)


def _loss(model: Retriever, rows: Rows) -> Tensor:
    return retrieval_loss(model(rows), rows.answers)


def _judge(model: Retriever, rows: Rows) -> tuple[float, float]:
    """Loss and share of right answers."""
    with torch.no_grad():
        correct = (model(rows).argmax(-1) == rows.answers).float().mean()
        return _loss(model, rows).item(), correct.item()


def unordered_loss(settings: Settings) -> float:
    """The least loss of a reader who knows the values asked for but not which slot each belongs to, in nats."""
    slots = settings.slots
    entropies = [
        -sum(count / slots * math.log(count / slots) for count in Counter(values).values())
        for values in product(range(settings.values), repeat=slots)
    ]
    return sum(entropies) / len(entropies)


def findings(summary: Summary) -> list[Finding]:
    """What follows and what does not."""
    return [*_about_sequence(summary), *_about_retrieval(summary), *_limits(summary)]


def _about_sequence(summary: Summary) -> list[Finding]:
    one, four = (condition(SEQUENCE, heads) for heads in HEADS)
    learnt = all(summary.mean(each, "train_loss") < summary.mean(each, "first_loss") / 2 for each in (one, four))
    losses = " and ".join(
        f"{summary.mean(each, 'first_loss'):.3f} to {row_text(summary.row(each, 'train_loss'))}" for each in (one, four)
    )
    told = "both learn the two rows by heart" if learnt else "the two rows are not learnt by heart in so few steps"
    return [
        Finding(FOUND if learnt else NOT_SHOWN, f"sequence: {told}: training loss {losses} (one head, four heads)"),
        compare(
            summary.difference("sequence"),
            higher="sequence: four heads memorise more slowly (training loss after the last step, four − one)",
            lower="sequence: four heads memorise faster (training loss after the last step, four − one)",
            none="sequence: that either memorises faster is not shown (training loss after the last step, four − one)",
            same="sequence: both memorise alike (training loss after the last step, four − one)",
            margin=summary.settings.margin,
        ),
    ]


def _about_retrieval(summary: Summary) -> list[Finding]:
    told = [
        compare(
            summary.difference(task),
            higher=f"{task}: four heads have the higher held-out loss (four − one)",
            lower=f"{task}: four heads have the lower held-out loss (four − one)",
            none=f"{task}: no difference of held-out losses is shown (four − one)",
            same=f"{task}: held-out losses differ by less than {summary.settings.margin} nats (four − one)",
            margin=summary.settings.margin,
        )
        for task in (SEVERAL, SINGLE)
    ]
    floor, row = unordered_loss(summary.settings), summary.row(condition(SEVERAL, 1), "loss")
    beats = row.high < floor
    text = (
        "one head tells more than which values are asked for"
        if beats
        else "one head is not shown to tell more than which values are asked for, without their slots"
    )
    reason = f"several: {text}: its loss is {row_text(row)}, and such a reader's is {floor:.3f}"
    return [told[0], Finding(FOUND if beats else NOT_SHOWN, reason), told[1]]


def _limits(summary: Summary) -> list[Finding]:
    several, single = summary.difference(SEVERAL), summary.difference(SINGLE)
    margin = summary.settings.margin
    told = [
        "from the sequence nothing about heads in general: two rows are memorised, with no independent data to judge"
    ]
    if several.shown and several.mean < 0:
        if single.shown and single.mean < -margin:
            told.append("that several retrievals are the reason: four heads are ahead on a single one as well")
        else:
            told.append(
                "that four heads are better in general: with a single retrieval they are not shown to be ahead by more "
                f"than {margin} nats"
            )
    else:
        told.append("that more heads help where several things are retrieved: four are not shown to be ahead")
    told.append(
        "anything about deeper models: here is one layer with a linear readout, and a second layer or an MLP may make "
        "up for a missing head"
    )
    told.append("that a head has a role: no head was read or taken out")
    return [Finding(NO_CONCLUSION, text) for text in told]


EXPERIMENT = Experiment(
    name="heads",
    question="What do four heads do that one head of the same width does not?",
    task="One attention layer with a linear readout, one head against four that split the same width: as many "
    "parameters, the same initial values, data in the same order, the same learning rates tried. sequence: two rows of "
    "a counting cycle are learnt by heart. several: each query asks for the values of four keys of the row, one for "
    "each slot. single: it asks for one.",
    held_out="several and single: one eighth of all assignments of values to keys is kept for choosing the learning "
    "rate and another one for the test. sequence: it memorises; the other three starts of the cycle are held out.",
    settings=Settings(),
    conditions=tuple(condition(task, heads) for task in TASKS for heads in HEADS),
    run=run,
    measures=(
        Measure("loss", "held-out loss (nats)"),
        Measure("accuracy", "held-out answers right", ".1%"),
        Measure("train_loss", "training loss (nats)"),
        Measure("first_loss", "loss before training (nats)"),
        Measure("rate", "learning rate chosen", ".3g"),
        Measure("parameters", "parameters", ",.0f"),
    ),
    findings=findings,
    comparisons=(
        Comparison(
            "sequence",
            "sequence: training loss, 4 − 1",
            (condition(SEQUENCE, 1), "train_loss"),
            (condition(SEQUENCE, 4), "train_loss"),
        ),
        *(
            Comparison(
                task, f"{task}: held-out loss, 4 − 1", (condition(task, 1), "loss"), (condition(task, 4), "loss")
            )
            for task in (SEVERAL, SINGLE)
        ),
    ),
    panels=(
        Dots(
            "Held-out loss", ("loss",), tuple(condition(task, heads) for task in (SEVERAL, SINGLE) for heads in HEADS)
        ),
        Dots("Two rows learnt by heart: training loss", ("train_loss",), tuple(condition(SEQUENCE, h) for h in HEADS)),
    ),
    cost=lambda name: 0.05 if name.startswith(SEQUENCE) else 1.0,
)
