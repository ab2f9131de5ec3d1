"""What was lost on text, and what was lost of copying, which the loss on text hides.

Symbols: N rows, L length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from headwise.bench.verification.compare import Comparison, compare
from headwise.bench.verification.estimates import Estimate, estimate
from headwise.bench.verification.settings import Settings
from headwise.models import Checkpoint
from headwise.models.corpus import Rows
from headwise.models.losses import Question
from headwise.models.questions import ask
from headwise.progress import Progress
from headwise.study.samples import repeated_samples
from headwise.study.tasks import make_task

__all__ = ["Quality", "compare_copying", "compare_text", "copying_questions"]

_BATCH = 8  # rows that are asked together


@dataclass(frozen=True)
class Quality:
    """How far B is from A on one kind of input.

    Attributes:
        name: the corpus, or ``repeated random tokens``.
        documents: fingerprints of the documents, in the order of ``each``; empty for random tokens.
        each: the values of every document, or sample.
        seed: of the intervals.
    """

    name: str
    documents: tuple[str, ...]
    each: Comparison
    seed: int

    def of(self, name: str) -> Estimate:
        """Mean over documents, with interval, of a value of :class:`Comparison`."""
        return estimate(getattr(self.each, name), self.seed)

    @property
    def loss_difference(self) -> Estimate:
        """Loss of B minus loss of A, paired by document."""
        return estimate(self.each.loss_b - self.each.loss_a, self.seed)

    @property
    def accuracy_difference(self) -> Estimate:
        """Share of right tokens of B minus that of A, paired by document."""
        return estimate(self.each.correct_b - self.each.correct_a, self.seed)

    def record(self) -> dict[str, Any]:
        """As JSON holds it."""
        each = self.each
        rows = zip(each.loss_a.tolist(), each.loss_b.tolist(), each.kl.tolist(), strict=True)
        by_document = [dict(zip(("loss_a", "loss_b", "kl"), row, strict=True)) for row in rows]
        for document, row in zip(self.documents, by_document, strict=False):
            row["document"] = document
        return {
            "name": self.name,
            "documents": len(by_document),
            "positions": each.positions,
            "loss": _three(self.of("loss_a"), self.of("loss_b"), self.loss_difference),
            "accuracy": _three(self.of("correct_a"), self.of("correct_b"), self.accuracy_difference),
            "kl": self.of("kl").record(),
            "top1_agreement": self.of("agreement").record(),
            "logit_change": {"mean": self.of("change").record(), "max": each.largest_change},
            "by_document": by_document,
        }


def _three(first: Estimate, second: Estimate, difference: Estimate) -> dict[str, Any]:
    return {"a": first.record(), "b": second.record(), "difference": difference.record()}


def compare_text(
    name: str, rows: Rows, first: Checkpoint, second: Checkpoint, settings: Settings, progress: Progress | None = None
) -> Quality:
    """Both models on held-out rows ``[N, L]``.

    Decoders are asked for every token but the first of each row, masked models for 15 % of the tokens.
    """
    counted = torch.arange(rows.tokens.shape[1]) > 0
    parts = [slice(start, start + _BATCH) for start in range(0, len(rows), _BATCH)]
    questions = [
        ask(first, rows.tokens[part], counted, rows.units[part], settings.seed + number)
        for number, part in enumerate(parts)
    ]
    return Quality(name, rows.documents, compare(first, second, questions, progress), settings.seed)


def copying_questions(first: Checkpoint, settings: Settings) -> tuple[Question, ...]:
    """Random tokens repeated twice (Olsson et al. 2022); asked is the second copy, which only the first one tells.

    Its first token is left out: that a copy begins is told by nothing.
    """
    config = first.model.config
    samples = repeated_samples(first.tokenizer, config, settings.copies, _BATCH, settings.seed)
    asked = [replace(sample, counted=sample.counted & sample.counted.roll(1)) for sample in samples]
    return make_task("repeated", asked, first, settings.seed).questions


def compare_copying(
    questions: tuple[Question, ...],
    first: Checkpoint,
    second: Checkpoint,
    settings: Settings,
    progress: Progress | None = None,
) -> Quality:
    """Both models on the second copy of repeated random tokens."""
    return Quality("repeated random tokens", (), compare(first, second, questions, progress), settings.seed)
