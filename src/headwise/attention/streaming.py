"""Attention in plain PyTorch operations, by blocks of queries: both directions, for every feature and every device.

A block reads only the range of keys that it can see. The query heads that share a KV head are rows of one matrix
product, so K and V are never repeated.

Symbols: ``B`` batch, ``L`` query length, ``H`` query heads, ``G`` KV heads, ``R = H / G``, ``Dv`` value head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.attention.blocks import Workspace, fold_heads
from headwise.attention.gradients import Gradients
from headwise.attention.problem import Problem
from headwise.attention.softmax import softmax_with_sink

__all__ = ["differentiable_backward", "forward", "recorded_forward"]


def forward(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output ``[B, H, L, Dv]`` in the query's dtype and LSE ``[B, H, L]`` in the compute dtype, without gradients."""
    value = problem.value
    assert value is not None  # the public door asks for a value
    shape = problem.query.shape[:3]
    # Made before the blocks: pieces kept between the blocks' own memory would let none of it be used again.
    output = problem.query.new_empty((*shape, value.shape[3]))
    lse = problem.query.new_empty(shape, dtype=problem.compute_dtype)
    for first, document in zip(problem.document_bounds()[0], problem.documents(), strict=False):
        narrowed = document.narrowed()
        workspace = narrowed.workspace()
        for start, stop in narrowed.blocks():
            rows = slice(first + start, first + stop)
            output[:, :, rows], lse[:, :, rows] = _block(narrowed, start, stop, workspace)
    return output, lse


def recorded_forward(problem: Problem) -> tuple[Tensor, Tensor]:
    """The same for autograd to follow, which keeps the weights of every block.

    :mod:`headwise.attention.operator` is what gives gradients without that.
    """
    parts = [
        _block(document, *rows, None)
        for document in (part.narrowed() for part in problem.documents())
        for rows in list(document.blocks()) or [(0, 0)]
    ]
    outputs, lses = zip(*parts, strict=True)
    return torch.cat(outputs, 2), torch.cat(lses, 2)


def _block(problem: Problem, start: int, stop: int, workspace: Workspace | None) -> tuple[Tensor, Tensor]:
    """Output ``[B, H, rows, Dv]`` and LSE ``[B, H, rows]`` of some queries."""
    low, high = keys = problem.key_range(start, stop)
    scores = problem.scores(start, stop, keys, workspace)
    softmax = softmax_with_sink(scores, problem.sinks, in_place=workspace is not None)
    folded = fold_heads(softmax.exponentials, problem.num_kv_heads)  # [B, G, R * rows, keys]
    mixed = folded @ problem.clean_value[:, :, low:high]  # [B, G, R * rows, Dv]
    mixed = mixed.view(*problem.query.shape[:2], stop - start, mixed.shape[-1])
    return (mixed / softmax.total).to(problem.query.dtype), softmax.lse


def differentiable_backward(
    problem: Problem, output_gradient: Tensor, lse_gradient: Tensor, wanted: Sequence[bool]
) -> list[Tensor]:
    """The wanted gradients as a graph of their own, for gradients of gradients; keeps all weights."""
    inputs = [getattr(problem, name) for name in Gradients.__dataclass_fields__]
    asked = [tensor for tensor, is_wanted in zip(inputs, wanted, strict=True) if is_wanted]
    output, lse = recorded_forward(problem)
    # A row that sees nothing has a constant LSE of -inf.
    lse_gradient = lse_gradient.masked_fill(lse == -torch.inf, 0.0)
    return list(
        torch.autograd.grad(
            (output, lse), asked, (output_gradient, lse_gradient), create_graph=True, materialize_grads=True
        )
    )
