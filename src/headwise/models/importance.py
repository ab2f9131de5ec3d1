"""First-order importance of heads.

Symbols: D documents, B batch, H query heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from headwise.models.checkpoint import Checkpoint
from headwise.models.losses import Question, row_losses

__all__ = ["gate_gradients", "importance"]


def importance(checkpoint: Checkpoint, questions: Sequence[Question], batch: int = 2) -> np.ndarray:
    """First-order importance of every head: |∂loss/∂gate| per document (Michel et al. 2019, per example).

    One backward pass gives all heads: every head's output is multiplied by a gate of 1, and the gate's gradient says
    how the loss would move if the head were turned down. Linear, so it misses what heads do together.

    Args:
        checkpoint: the model.
        questions: what is asked; the loss is a mean over the asked tokens of each document, and their units are counted
            from 0 over all questions.
        batch: documents in one backward pass; each has gates of its own.

    Returns:
        float32 ``[D, layers, H]`` in nats; NaN where a layer has fewer heads.
    """
    return np.abs(gate_gradients(checkpoint, questions, batch))


def gate_gradients(checkpoint: Checkpoint, questions: Sequence[Question], batch: int = 2) -> np.ndarray:
    """∂loss/∂gate of every head, with its sign, so that those of several heads may be added; see :func:`importance`."""
    documents = sum(len(question.units) for question in questions)
    result = np.full((documents, checkpoint.num_layers, checkpoint.max_heads), np.nan, dtype=np.float32)
    for question in questions:
        for start in range(0, len(question.units), batch):
            rows = slice(start, start + batch)
            part = Question(question.inputs[rows], question.labels[rows], question.units[rows])
            size = (checkpoint.num_layers, len(part.units), checkpoint.max_heads)
            gates = torch.ones(size, device=checkpoint.device, requires_grad=True)
            with torch.enable_grad(), checkpoint.gate(gates):
                row_losses(checkpoint, part).sum().backward()
            assert gates.grad is not None
            result[list(part.units)] = gates.grad.transpose(0, 1).cpu().numpy()
    for layer, layout in enumerate(checkpoint.layouts):
        result[:, layer, layout.num_heads :] = np.nan
    return result
