"""The losses of re-training, computed a few positions at a time.

Logits over a vocabulary of 50,000 take 200 kB for each position, and several such tensors are needed at once. So the
language head, the loss and its gradient are computed for a chunk of positions, and only the gradient with respect to
the states is kept (Hsu et al. 2024, Liger Kernel).

Symbols: N positions, E model width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.surgery.training.head import LanguageHead

__all__ = ["CHUNK_VALUES", "Losses", "Target", "head_losses", "judge", "widened"]

CHUNK_VALUES = 1 << 24  # logits that exist at a time


@dataclass(frozen=True)
class Losses:
    """Losses in nats.

    Attributes:
        total: the sum of the wanted loss over positions; it has a gradient.
        cross_entropy: ``[N]``, of the text.
        divergence: ``[N]``, KL(teacher, student) at the temperature and times its square; None without a teacher.
    """

    total: Tensor
    cross_entropy: Tensor
    divergence: Tensor | None


@dataclass(frozen=True)
class Target:
    """What the states are held against.

    Attributes:
        labels: int64 ``[N]``, the token that is right.
        states: the teacher's last states ``[N, E']``, or None without a teacher.
        head: the teacher's head.
        loss: ``kl`` or ``ce``: which one has the gradient.
        temperature: of both distributions under ``kl``.
    """

    labels: Tensor
    states: Tensor | None = None
    head: LanguageHead | None = None
    loss: str = "kl"
    temperature: float = 1.0

    def logits(self, part: slice) -> Tensor | None:
        """The teacher's, ``[n, V]``."""
        if self.states is None or self.head is None:
            return None
        with torch.no_grad():
            return widened(self.head(self.states[part]))


def head_losses(states: Tensor, head: LanguageHead, target: Target, *, chunk: int | None = None) -> Losses:
    """Losses of a model whose last states are given.

    Args:
        states: ``[N, E]``.
        head: of the model.
        target: what is right.
        chunk: positions at a time; without it as many as have 16 million logits.

    Returns:
        Losses; ``total`` sends gradients to ``states`` and to the head's weights where they want them.
    """
    parameters = head.trained if torch.is_grad_enabled() else []
    work = _Work(head, target, parameters, chunk)
    if torch.is_grad_enabled():
        total, cross_entropy, divergence = _HeadLoss.apply(states, work, *parameters)
    else:
        total, cross_entropy, divergence = work.run(states, [])[0]
    return Losses(total, cross_entropy, divergence if target.states is not None else None)


def judge(
    logits: Tensor, labels: Tensor, teacher: Tensor | None, loss: str, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Both losses of some positions, and the gradient of the wanted one's sum with respect to the logits.

    Args:
        logits: ``[n, V]``.
        labels: int64 ``[n]``.
        teacher: the teacher's logits ``[n, V]``, or None.
        loss: ``kl`` or ``ce``.
        temperature: of both distributions under ``kl``.

    Returns:
        Cross entropy ``[n]``, divergence ``[n]`` (zeros without a teacher), gradient ``[n, V]``.
    """
    log_student = logits.log_softmax(-1)
    cross_entropy = -log_student.gather(1, labels[:, None])[:, 0]
    divergence, slope = torch.zeros_like(cross_entropy), None
    if teacher is not None:
        if temperature != 1:
            log_student = (logits / temperature).log_softmax(-1)
        log_teacher = (teacher / temperature).log_softmax(-1)
        weights = log_teacher.exp()  # [n, V]
        divergence = (weights * (log_teacher - log_student)).sum(-1) * temperature**2
        slope = (log_student.exp() - weights) * temperature if loss == "kl" else None
    if slope is None:
        slope = logits.softmax(-1)
        slope.scatter_add_(1, labels[:, None], torch.full_like(slope[:, :1], -1.0))
    return cross_entropy, divergence, slope


def widened(logits: Tensor) -> Tensor:
    """At least float32, in which sums over a vocabulary are taken."""
    return logits.float() if logits.dtype.itemsize < 4 else logits


@dataclass(frozen=True)
class _Work:
    """Head, loss and gradient, chunk by chunk."""

    head: LanguageHead
    target: Target
    parameters: list[nn.Parameter]
    chunk: int | None

    def run(self, states: Tensor, wanted: list[Tensor]) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        """Losses over all positions, and the gradients of their sum with respect to ``wanted``: the states, where they
        are among them, and weights of the head."""
        found: list[list[Tensor]] = []
        by_states = torch.zeros_like(states)
        by_weights = [torch.zeros_like(parameter) for parameter in self.parameters]
        for part in self._parts(states):
            piece = states[part].detach().requires_grad_(bool(wanted))
            with torch.set_grad_enabled(bool(wanted)):
                logits = self.head(piece)  # [n, V]
            teacher = self.target.logits(part)
            own, labels = widened(logits.detach()), self.target.labels[part]
            *losses, slope = judge(own, labels, teacher, self.target.loss, self.target.temperature)
            found.append(losses)
            if wanted:
                slopes = torch.autograd.grad(logits, [piece, *self.parameters], slope.to(logits.dtype))
                by_states[part] = slopes[0]
                for sum_, one in zip(by_weights, slopes[1:], strict=True):
                    sum_ += one
        cross_entropy, divergence = (torch.cat(each) for each in zip(*found, strict=True))
        total = (divergence if self.target.loss == "kl" else cross_entropy).sum()
        return (total, cross_entropy, divergence), [by_states, *by_weights]

    def _parts(self, states: Tensor) -> list[slice]:
        size = self.chunk
        if size is None:
            size = max(1, CHUNK_VALUES // self.head(states[:1].detach()).shape[-1])
        return [slice(start, start + size) for start in range(0, len(states), size)]


class _HeadLoss(torch.autograd.Function):
    """The sum of the losses as one operation, whose gradient is known when it has run."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, work: _Work, *parameters: Tensor) -> tuple[Tensor, ...]:
        losses, gradients = work.run(states, [states, *parameters])
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(*losses[1:])
        return losses

    @staticmethod
    def backward(ctx: Any, slope: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        by_states, *by_weights = (gradient * slope for gradient in ctx.saved_tensors)
        return by_states, None, *by_weights
