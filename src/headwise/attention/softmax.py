"""Softmax over visible keys, with rows that see nothing and with a sink in the denominator.

A row without a visible key arrives as ``-inf`` throughout. Its exponentials are 0, its LSE is ``-inf``, and its
gradient is 0, whether or not there is a sink: no division by zero, no ``-inf - -inf``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Softmax(NamedTuple):
    """A softmax that is not divided yet, so that a caller can divide the smaller of weights and outputs.

    Attributes:
        exponentials: ``[B, H, rows, S]``, scores less the largest of their row, exponentiated.
        total: ``[B, H, rows, 1]``, their sum with the sink's share; 1 in rows that see nothing.
        lse: ``[B, H, rows]``, log-sum-exp in nats, the sink included; ``-inf`` in rows that see nothing.
    """

    exponentials: Tensor
    total: Tensor
    lse: Tensor


def softmax_with_sink(scores: Tensor, sinks: Tensor | None, *, in_place: bool = False) -> Softmax:
    """Softmax over the last axis of ``scores`` ``[B, H, rows, S]`` with optional sink logits ``[H]``.

    ``in_place`` lets the exponentials take the place of the scores, which allows no gradient.
    """
    largest = _largest(scores)
    empty = largest == -torch.inf
    sink = None if sinks is None else sinks.to(scores.dtype)[:, None, None]  # [H, 1, 1]
    if sink is not None:
        largest = torch.maximum(largest, sink.detach())
    largest = largest.masked_fill(largest == -torch.inf, 0.0)
    exponentials = scores.sub_(largest).exp_() if in_place else (scores - largest).exp()
    total = exponentials.sum(-1, keepdim=True)
    if sink is not None:
        total = total + (sink - largest).exp()
    total = total.masked_fill(empty, 1.0)
    lse = (largest + total.log()).masked_fill(empty, -torch.inf)
    return Softmax(exponentials, total, lse.squeeze(-1))


def _largest(scores: Tensor) -> Tensor:
    # Without gradient: the result doesn't depend on what is subtracted.
    if scores.shape[-1] == 0:
        return scores.new_full((*scores.shape[:-1], 1), -torch.inf)
    return scores.detach().amax(-1, keepdim=True)
