"""What a model is asked to do while its heads are taken away: the loss, per document.

Symbols: B batch, L length, D documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import UserError
from headwise.models import Checkpoint
from headwise.models.losses import IGNORED, Question, row_losses
from headwise.models.prefix import Prefix
from headwise.study.samples import Sample

_MASKED_SHARE = 0.15


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
    """The model's own training objective on these samples.

    A causal model predicts every counted token from those before it. A masked model gets 15 % of the counted tokens
    (at least one per row) replaced by its mask token and must tell them; which ones is drawn from ``seed``.

    Raises:
        UserError: the model has no language head, or no mask token.
    """
    if checkpoint.objective is None:
        raise UserError(f"{checkpoint.name}: has no language head, so there is no loss to measure effects on")
    make = _next_token if checkpoint.objective == "next" else _masked
    return Task(name, tuple(make(sample, checkpoint, seed + index) for index, sample in enumerate(samples)))


def _next_token(sample: Sample, checkpoint: Checkpoint, seed: int) -> Question:
    labels = torch.full_like(sample.tokens, IGNORED)
    labels[:, :-1] = torch.where(sample.counted[1:], sample.tokens[:, 1:], IGNORED)
    return Question(sample.tokens, labels, sample.units)


def _masked(sample: Sample, checkpoint: Checkpoint, seed: int) -> Question:
    mask_token = checkpoint.tokenizer.mask_token_id
    if mask_token is None:
        raise UserError(f"{checkpoint.name}: a masked language model whose tokenizer has no mask token")
    special = torch.isin(sample.tokens, torch.tensor(checkpoint.tokenizer.all_special_ids))
    chances = torch.rand(sample.tokens.shape, generator=torch.Generator().manual_seed(seed))
    chances = chances.masked_fill(special | ~sample.counted, 2.0)
    chosen = chances < _MASKED_SHARE
    chosen |= chances == chances.amin(dim=1, keepdim=True)
    labels = torch.where(chosen, sample.tokens, IGNORED)
    return Question(torch.where(chosen, mask_token, sample.tokens), labels, sample.units)


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
