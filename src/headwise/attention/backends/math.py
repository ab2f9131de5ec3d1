"""Attention in plain PyTorch operations: every feature, every device, and gradients for every floating input.

Works on blocks of queries and only on the range of keys that a block can see. The query heads that share a KV head
are folded into the rows of one matrix product, so K and V are never repeated. When gradients are wanted and there is
more than one block, a block is computed again in the backward pass instead of being kept.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headwise.attention.backends.table import Backend
from headwise.attention.problem import Problem, fold_heads
from headwise.attention.softmax import softmax_with_sink


def _refusal(problem: Problem, need_lse: bool) -> str | None:
    return None


def _compute(problem: Problem, need_lse: bool) -> tuple[Tensor, Tensor | None]:
    problem = problem.narrowed()
    ranges = list(problem.blocks()) or [(0, 0)]
    if len(ranges) > 1 and torch.is_grad_enabled():
        # Cached before the first block, or the first block's second run would differ from its first.
        problem.clean_key, problem.clean_value  # noqa: B018
        parts = [checkpoint(_block, problem, *rows, use_reentrant=False, preserve_rng_state=False) for rows in ranges]
    else:
        parts = [_block(problem, *rows) for rows in ranges]
    output = torch.cat([part[0] for part in parts], 2) if len(parts) > 1 else parts[0][0]
    if not need_lse:
        return output, None
    return output, torch.cat([part[1] for part in parts], 2)


def _block(problem: Problem, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Output ``[B, H, rows, Dv]`` and LSE ``[B, H, rows]`` of some queries."""
    low, high = keys = problem.key_range(start, stop)
    softmax = softmax_with_sink(problem.scores(start, stop, keys), problem.sinks)
    folded = fold_heads(softmax.exponentials, problem.num_kv_heads)  # [B, G, R * rows, keys]
    mixed = folded @ problem.clean_value[:, :, low:high]  # [B, G, R * rows, Dv]
    mixed = mixed.view(*problem.query.shape[:2], stop - start, mixed.shape[-1])
    return (mixed / softmax.total).to(problem.query.dtype), softmax.lse


MATH = Backend("math", _refusal, _compute)
