"""The layer written out with slices of weights, one head after the other, and the oracle of attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headwise.attention.reference import reference_attention
from headwise.nn import GroupedQueryAttention, LayerOutput


def by_hand(
    module: GroupedQueryAttention,
    inputs: Tensor,
    context: Tensor | None = None,
    *,
    positions: Tensor | None = None,
    **options: Any,
) -> LayerOutput:
    """What ``module`` should give; ``positions`` ``[L]`` or ``[B, L]`` are those of its rotary embedding.

    Windows, sinks, soft-cap and scale are the caller's, so that the module can't tell them wrong.
    """
    source = inputs if context is None else context
    query = _heads(module, module.q_proj, inputs, module.num_heads)
    key = _heads(module, module.k_proj, source, module.num_kv_heads)
    value = _heads(module, module.v_proj, source, module.num_kv_heads)
    query, key = (_normed(heads, norm) for heads, norm in ((query, module.q_norm), (key, module.k_norm)))
    if positions is not None:
        query, key = (_turned(heads, module.rope, positions) for heads in (query, key))
    result = reference_attention(query, key, value, **options)
    mixed = torch.cat(list(result.output.unbind(1)), -1) @ module.o_proj.weight.T
    return LayerOutput(mixed + (0 if module.o_proj.bias is None else module.o_proj.bias), result.weights)


def _heads(module: GroupedQueryAttention, projection: nn.Linear, tokens: Tensor, count: int) -> Tensor:
    width = module.head_dim
    features = tokens @ projection.weight.T + (0 if projection.bias is None else projection.bias)
    return torch.stack([features[..., head * width : (head + 1) * width] for head in range(count)], 1)


def _normed(heads: Tensor, norm: Any) -> Tensor:
    if norm is None:
        return heads
    gain = 1 + norm.weight if norm.unit_offset else norm.weight
    return heads / (heads.square().mean(-1, keepdim=True) + norm.eps).sqrt() * gain


def _turned(heads: Tensor, rope: Any, positions: Tensor) -> Tensor:
    """Each pair as a complex number, multiplied by one of length 1."""
    half = rope.rotary_dim // 2
    ends = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if rope.interleaved else (slice(half), slice(half, 2 * half))
    pairs = torch.complex(heads[..., ends[0]], heads[..., ends[1]])
    rates = rope.base ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = positions[..., None] * rates  # [L, half] or [B, L, half]
    turned = pairs * torch.polar(torch.ones_like(angles), angles)[..., None, :, :]
    parts = [turned.real, turned.imag]
    mixed = torch.stack(parts, -1).flatten(-2) if rope.interleaved else torch.cat(parts, -1)
    return torch.cat([mixed, heads[..., 2 * half :]], -1)
