"""Joining attention over parts of the keys into attention over all of them.

Keys may be split between caches, blocks, or machines: each part gives its output and its log-sum-exp, and these are
enough. Source: Jia and Van Essen 2024 (DeFT) and Dao et al. 2023 (Flash-Decoding) use the same identity.

Symbols: ``B`` batch, ``L`` query length, ``H`` query heads, ``Dv`` value head dim, ``P`` parts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.attention.functional import AttentionOutput
from headwise.attention.validation import check_sinks, shape_text

__all__ = ["merge"]


def merge(outputs: Sequence[Tensor], lses: Sequence[Tensor], *, sinks: Tensor | None = None) -> AttentionOutput:
    """Attention over all keys from attention over disjoint parts of them.

    ``output = sum of exp(lse_p - lse) output_p`` with ``lse = log sum of exp(lse_p)``, in nats. A part in which a query
    sees no key (LSE ``-inf``) counts nothing, whatever its output holds; a query that sees no key in any part gets
    output 0 and LSE ``-inf``. Differentiable.

    Args:
        outputs: ``P`` tensors ``[B, H, L, Dv]``, or one with a leading axis ``P``.
        lses: ``P`` tensors ``[B, H, L]``, or one with a leading axis ``P``; what ``attention_with_lse`` returns.
        sinks: logits ``[H]``. A sink counts once: give it here and to none of the parts.

    Returns:
        Output in the dtype of ``outputs`` and LSE in float32 (float64 for float64 outputs), the sink included.

    Raises:
        TypeError: ``sinks`` isn't floating.
        ValueError: there is no part, or shapes differ.
    """
    if len(outputs) == 0 or len(outputs) != len(lses):
        raise ValueError(f"merge: expected as many outputs as LSEs, one at least, got {len(outputs)} and {len(lses)}")
    _check_shapes(outputs, lses)
    dtype = torch.promote_types(outputs[0].dtype, torch.float32)
    parts = torch.stack([lse.to(dtype) for lse in lses])  # [P, B, H, L]
    seen = (parts > -torch.inf).any(0)  # [B, H, L]
    counted = parts if sinks is None else torch.cat([parts, _sink_rows(sinks, parts)])
    # Where nothing is seen, -inf - -inf would be NaN, in the gradient too.
    total = torch.logsumexp(counted.masked_fill(~seen, 0.0), 0)
    output = torch.zeros_like(outputs[0], dtype=dtype)
    for part, lse in zip(outputs, parts, strict=True):
        empty = lse == -torch.inf
        share = (lse.masked_fill(empty, 0.0) - total).exp().masked_fill(empty, 0.0)
        # What an empty part holds may be NaN: select, then multiply.
        output = output + share[..., None] * part.to(dtype).masked_fill(empty[..., None], 0.0)
    return AttentionOutput(output.to(outputs[0].dtype), total.masked_fill(~seen, -torch.inf))


def _check_shapes(outputs: Sequence[Tensor], lses: Sequence[Tensor]) -> None:
    expected = outputs[0].shape
    for number, (output, lse) in enumerate(zip(outputs, lses, strict=True)):
        if output.dim() != 4 or output.shape != expected or lse.shape != expected[:3]:
            beside = f" beside an output {list(expected)} in part 0" if number else ""
            raise ValueError(
                f"merge: expected outputs [B, H, L, Dv] and LSEs [B, H, L] of equal shapes, got output "
                f"{shape_text(output)} and LSE {shape_text(lse)} in part {number}{beside}"
            )


def _sink_rows(sinks: Tensor, parts: Tensor) -> Tensor:
    checked = check_sinks(sinks, parts.shape[2], parts.device)
    assert checked is not None
    return checked.to(parts.dtype)[None, None, :, None].expand(1, *parts.shape[1:])
