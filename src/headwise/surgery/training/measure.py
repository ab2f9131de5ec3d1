"""A model up to its losses, and how it stands on held-out documents.

Symbols: B batch, L length, E model width, N asked positions, D documents.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from headwise.models.checkpoint import Checkpoint
from headwise.models.losses import IGNORED, Question
from headwise.models.questions import by_document
from headwise.surgery.training.head import LanguageHead
from headwise.surgery.training.loss import Target, head_losses
from headwise.surgery.training.ranks import Ranks
from headwise.surgery.training.rows import batches, part_of

__all__ = ["Asked", "HeldOut", "Teacher"]


class Teacher:
    """A model that is asked and never changed."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.head = LanguageHead.of(checkpoint)

    def states(self, inputs: Tensor) -> Tensor:
        """Last states ``[B, L, E]``."""
        with torch.no_grad():
            return self.checkpoint.body(inputs)


class Asked(nn.Module):
    """The model up to its losses, as the one module that engines wrap."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.model = checkpoint.model
        self._checkpoint = checkpoint
        self._head = LanguageHead.of(checkpoint)

    def forward(
        self, inputs: Tensor, labels: Tensor, teacher: tuple[LanguageHead, Tensor] | None, loss: str, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The wanted loss summed over positions, and both losses ``[N]`` of the asked positions, row by row."""
        states = self._checkpoint.body(inputs)  # [B, L, E]
        labels = labels.to(states.device)
        asked = labels != IGNORED
        head, teacher_states = teacher or (None, None)
        teacher_states = None if teacher_states is None else teacher_states[asked]
        target = Target(labels[asked], teacher_states, head, loss, temperature)
        found = head_losses(states[asked], self._head, target)
        return found.total, found.cross_entropy, found.divergence


class HeldOut:
    """Rows that models are measured on, on this rank a share of them.

    Args:
        question: the rows; their units are documents.
        teacher: what divergence is measured from, or None.
        ranks: who takes part.
        at_once: rows that pass through a model together.
    """

    def __init__(self, question: Question, teacher: Teacher | None, ranks: Ranks, at_once: int) -> None:
        self.question, self.teacher, self.ranks = question, teacher, ranks
        share = ranks.share(len(question.inputs))
        self._parts = list(batches(part_of(question, share), at_once))
        self._states: list[Tensor] = []  # the teacher's, which stay the same all along

    @property
    def tokens(self) -> int:
        """Of all rows."""
        return self.question.inputs.numel()

    def measure(self, model: Asked) -> dict[str, list[float]]:
        """``losses`` (cross entropy) and ``divergences`` (empty without a teacher) by document, in nats."""

        def ask(number: int, part: Question) -> list[Tensor | None]:
            _, *losses = model(part.inputs, part.labels, self._told(number), "ce", 1.0)
            return losses

        losses, *divergences = self._by_document(ask)
        return {"losses": losses, "divergences": divergences[0] if divergences else []}

    def measure_teacher(self) -> list[float]:
        """The teacher's own losses by document."""

        def ask(number: int, part: Question) -> list[Tensor | None]:
            told = self._told(number)
            assert told is not None
            head, states = told
            asked = part.labels != IGNORED
            target = Target(part.labels[asked].to(states.device), loss="ce")
            return [head_losses(states[asked], head, target).cross_entropy]

        return self._by_document(ask)[0]

    def _told(self, number: int) -> tuple[LanguageHead, Tensor] | None:
        """The teacher's head and its states on one part."""
        if self.teacher is None:
            return None
        if not self._states:
            self._states = [self.teacher.states(part.inputs) for part in self._parts]
        return self.teacher.head, self._states[number]

    def _by_document(self, ask: Callable[[int, Question], list[Tensor | None]]) -> list[list[float]]:
        """Means over rows, then over the rows of each document: one list for each kind of loss."""
        found = []
        for number, part in enumerate(self._parts):
            with torch.no_grad():
                kinds = [losses for losses in ask(number, part) if losses is not None]
            counts = (part.labels != IGNORED).sum(1).tolist()
            found.append(torch.stack([torch.stack([row.mean() for row in one.split(counts)]) for one in kinds], 1))
        rows = self.ranks.gathered(torch.cat(found), len(self.question.inputs))  # [rows, kinds]
        means = by_document(rows.double().cpu().numpy(), self.question.units)  # [D, kinds]
        return [kind.tolist() for kind in means.T]
