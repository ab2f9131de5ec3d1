"""What a model is asked to do while its heads are taken away: the loss, per document.

Symbols: B batch, L length, D documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.models import Checkpoint
from headwise.models.losses import Question, row_losses
from headwise.models.prefix import Prefix
from headwise.models.questions import ask
from headwise.study.samples import Sample


@dataclass(frozen=True)
class Task:
    """A name (``text`` or ``repeated``) and its questions."""

    name: str
    questions: tuple[Question, ...]

    @property
    def documents(self) -> int:
        """D, the number of documents."""
        return sum(len(question.units) for question in self.questions)

    @property
    def tokens(self) -> int:
        """Tokens of one run over the task."""
        return sum(question.inputs.numel() for question in self.questions)


def make_task(name: str, samples: Sequence[Sample], checkpoint: Checkpoint, seed: int) -> Task:
    """The model's own training objective on these samples, see :func:`headwise.models.questions.ask`.

    Raises:
        UserError: the model has no language head, or no mask token.
    """
    return Task(
        name,
        tuple(
            ask(checkpoint, sample.tokens, sample.counted, sample.units, seed + index)
            for index, sample in enumerate(samples)
        ),
    )


class TaskRunner:
    """Runs a task again and again with other heads ablated, reusing what an ablation cannot change.

    Args:
        checkpoint: the model.
        task: the questions.
        means: ``[layers, H, Dv]`` mean head outputs for mean-ablation.
    """

    def __init__(self, checkpoint: Checkpoint, task: Task, means: Tensor) -> None:
        self.checkpoint = checkpoint
        self.task = task
        self.means = means
        self._prefixes = [Prefix(checkpoint, question.inputs) for question in task.questions]

    def losses(self, heads: Sequence[tuple[int, int]] = (), mode: str = "zero") -> Tensor:
        """Loss per document in nats, float64 ``[D]``, with these heads ablated."""
        result = torch.full((self.task.documents,), torch.nan, dtype=torch.float64)
        first = min((layer for layer, _ in heads), default=0)
        for question, prefix in zip(self.task.questions, self._prefixes, strict=True):
            with (
                torch.inference_mode(),
                prefix.before(first),
                self.checkpoint.ablate(heads, mode, self.means),  # type: ignore[arg-type]
            ):
                losses = row_losses(self.checkpoint, question)
            result[list(question.units)] = losses.double().cpu()
        return result
