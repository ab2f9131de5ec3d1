"""What `heads` trains on: two rows of a counting cycle, and rows in which values are looked up by keys.

Symbols: B rows, P pairs, Q queries.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from headwise.bench.experiments.retrieval import draw_assignments, look_up

__all__ = [
    "HEADS",
    "OTHER_STARTS",
    "ROW",
    "SEQUENCE",
    "SEVERAL",
    "SINGLE",
    "TASKS",
    "TOKENS",
    "TRAINED_STARTS",
    "Rows",
    "Settings",
    "condition",
    "count_up",
    "draw_rows",
    "unordered_loss",
]

SEQUENCE, SEVERAL, SINGLE = "sequence", "several", "single"
TASKS, HEADS = (SEQUENCE, SEVERAL, SINGLE), (1, 4)
# The rows of the sequence: token i + 1 follows token i, from 0 and from 1; the other three starts are never trained on.
TOKENS, ROW = 5, 9
TRAINED_STARTS, OTHER_STARTS = (0, 1), (2, 3, 4)


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


def count_up(starts: tuple[int, ...]) -> Tensor:
    """``[starts, 9]`` tokens that count up around 5."""
    return (torch.tensor(starts)[:, None] + torch.arange(ROW)) % TOKENS


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


def draw_rows(count: int, splits: tuple[int, ...], slots: int, generator: torch.Generator, settings: Settings) -> Rows:
    """Rows whose assignment of values to keys belongs to one of the splits."""
    assignment = draw_assignments(count, splits, keys=settings.keys, values=settings.values, generator=generator)
    keys = torch.rand(count, settings.keys, generator=generator).argsort(1)
    places = torch.rand(count, settings.queries, settings.keys, generator=generator)
    asked = places.argsort(-1)[..., :slots]
    answers = look_up(assignment, asked)
    return Rows(keys, assignment.gather(1, keys), assignment, asked, answers)


def unordered_loss(settings: Settings) -> float:
    """The least loss of a reader who knows the values asked for but not which slot each belongs to, in nats."""
    slots = settings.slots
    entropies = [
        -sum(count / slots * math.log(count / slots) for count in Counter(values).values())
        for values in product(range(settings.values), repeat=slots)
    ]
    return sum(entropies) / len(entropies)
