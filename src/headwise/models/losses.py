"""The loss of a model on rows of tokens, per row.

Symbols: B batch, L length.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from headwise.models.checkpoint import Checkpoint

__all__ = ["IGNORED", "Question", "row_losses"]

IGNORED = -100


@dataclass(frozen=True)
class Question:
    """Inputs and the tokens that must be told.

    Attributes:
        inputs: int64 ``[B, L]``.
        labels: int64 ``[B, L]``: the token that the output at this position must give, or −100.
        units: which document each row is.
    """

    inputs: Tensor
    labels: Tensor
    units: tuple[int, ...]


def row_losses(checkpoint: Checkpoint, question: Question) -> Tensor:
    """Mean cross entropy of every row in nats, ``[B]``; keeps the graph if gradients are on."""
    columns = (question.labels != IGNORED).any(0).nonzero().squeeze(1).to(checkpoint.device)
    labels = question.labels.to(checkpoint.device)[:, columns]
    if "logits_to_keep" in inspect.signature(checkpoint.model.forward).parameters:
        # The language head is a fifth of a small model's work; only the asked positions need it.
        logits = checkpoint.forward(question.inputs, logits_to_keep=columns).logits
    else:
        logits = checkpoint.forward(question.inputs).logits[:, columns]
    losses = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
    return losses.view_as(labels).sum(1) / (labels != IGNORED).sum(1)
