"""Rows, batch by batch.

Symbols: B rows at once, L length.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headwise.models.checkpoint import Checkpoint
from headwise.models.corpus import Rows
from headwise.models.losses import Question
from headwise.models.questions import ask

__all__ = ["batches", "part_of", "question_of"]


def question_of(checkpoint: Checkpoint, rows: Rows, seed: int) -> Question:
    """The model's own training objective on all rows at once; its units are documents."""
    counted = torch.arange(rows.tokens.shape[1]) > 0
    return ask(checkpoint, rows.tokens, counted, rows.units, seed)


def part_of(question: Question, rows: slice | list[int]) -> Question:
    """The same question about some rows."""
    units = question.units[rows] if isinstance(rows, slice) else tuple(question.units[row] for row in rows)
    return Question(question.inputs[rows], question.labels[rows], units)


def batches(question: Question, size: int) -> Iterator[Question]:
    """Parts of ``size`` rows, the last one perhaps of fewer."""
    for start in range(0, len(question.inputs), size):
        yield part_of(question, slice(start, start + size))
