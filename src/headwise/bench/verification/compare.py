"""Two models at the same positions: losses, logits, KL divergence, and whether they would say the same.

Symbols: B batch, L length, V vocabulary, P asked positions, D documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headwise.errors import UserError
from headwise.models import Checkpoint
from headwise.models.losses import IGNORED, Question
from headwise.progress import Progress, Silent

__all__ = ["Comparison", "compare", "distances"]

_LOGITS = 1 << 25  # logits of one model at once, in elements
_CHUNK = 1 << 22  # logits that are turned into float64 at once, in elements


@dataclass(frozen=True)
class Comparison:
    """What was measured in every document: means over its asked positions.

    Attributes:
        loss_a: cross entropy of A in nats, float64 ``[D]``.
        loss_b: of B.
        correct_a: share of positions where A's largest logit is the token asked for, ``[D]``.
        correct_b: of B.
        kl: KL(A || B) over the whole vocabulary in nats, ``[D]``.
        agreement: share of positions where both have their largest logit at the same token, ``[D]``.
        change: mean |logit of B − logit of A| over the vocabulary, ``[D]``.
        largest_change: the largest such difference anywhere.
        positions: how many positions were asked in all.
    """

    loss_a: np.ndarray
    loss_b: np.ndarray
    correct_a: np.ndarray
    correct_b: np.ndarray
    kl: np.ndarray
    agreement: np.ndarray
    change: np.ndarray
    largest_change: float
    positions: int


_MEANS = ("loss_a", "loss_b", "correct_a", "correct_b", "kl", "agreement", "change")


@torch.inference_mode()
def compare(
    first: Checkpoint, second: Checkpoint, questions: Sequence[Question], progress: Progress | None = None
) -> Comparison:
    """Ask both models the same questions.

    Args:
        first: A.
        second: B, with the same vocabulary.
        questions: what is asked; the units say which document each row belongs to, counted from 0 over all questions.
        progress: is told of the tokens that have passed through both models.

    Raises:
        UserError: a model gives logits that are not finite.
    """
    progress = progress or Silent()
    documents = 1 + max(unit for question in questions for unit in question.units)
    sums = torch.zeros(documents, len(_MEANS), dtype=torch.float64)
    counts = torch.zeros(documents, dtype=torch.float64)
    largest = 0.0
    for part in _parts(questions, first.model.config.get_text_config().vocab_size):
        asked = part.labels != IGNORED
        units = torch.tensor(part.units)[:, None].expand_as(asked)[asked]  # [P]
        logits_a, logits_b = (_logits(checkpoint, part.inputs, asked) for checkpoint in (first, second))
        measured, most = distances(logits_a, logits_b, part.labels[asked])
        sums.index_add_(0, units, measured)
        counts.index_add_(0, units, torch.ones(len(units), dtype=torch.float64))
        largest = max(largest, most)
        progress.advance(2 * part.inputs.numel())
    means = (sums / counts[:, None]).numpy()
    return Comparison(
        **{name: means[:, column] for column, name in enumerate(_MEANS)},
        largest_change=largest,
        positions=int(counts.sum()),
    )


def distances(first: Tensor, second: Tensor, labels: Tensor) -> tuple[Tensor, float]:
    """What :class:`Comparison` holds, at single positions.

    Args:
        first: logits of A, ``[P, V]``.
        second: logits of B, ``[P, V]``.
        labels: the tokens asked for, int64 ``[P]``.

    Returns:
        float64 ``[P, 7]``: loss of A and B, whether A and B are right, KL, whether they agree, mean |change|; and the
        largest |change|.
    """
    size = max(1, _CHUNK // first.shape[1])
    chunks = zip(first.split(size), second.split(size), labels.split(size), strict=True)
    measured = [_distances(*chunk) for chunk in chunks]
    return torch.cat([values for values, _ in measured]), max(most for _, most in measured)


def _distances(first: Tensor, second: Tensor, labels: Tensor) -> tuple[Tensor, float]:
    change = (second.double() - first.double()).abs()
    logs = [logits.double().log_softmax(-1) for logits in (first, second)]
    told = [logits.argmax(-1) for logits in (first, second)]
    kl = (logs[0].exp() * (logs[0] - logs[1])).sum(-1)
    losses = [-log.gather(-1, labels[:, None]).squeeze(-1) for log in logs]
    right = [(best == labels).double() for best in told]
    values = torch.stack([*losses, *right, kl, (told[0] == told[1]).double(), change.mean(-1)], dim=-1)
    return values, change.max().item()


def _parts(questions: Sequence[Question], vocabulary: int) -> Iterator[Question]:
    """As many rows at once as their logits have room for."""
    for question in questions:
        size = max(1, _LOGITS // (question.inputs.shape[1] * vocabulary))
        for start in range(0, len(question.units), size):
            rows = slice(start, start + size)
            yield Question(question.inputs[rows], question.labels[rows], question.units[rows])


def _logits(checkpoint: Checkpoint, inputs: Tensor, asked: Tensor) -> Tensor:
    logits: Tensor = checkpoint.forward(inputs).logits.cpu()[asked]  # [P, V]
    if not logits.isfinite().all():
        raise UserError(
            f"verify: {checkpoint.name}: expected finite logits, got NaN or infinity; verify in float32, or look at "
            "what was done to the model"
        )
    return logits
