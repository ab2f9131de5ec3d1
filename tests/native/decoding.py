"""The native decode kernel called with the options of :func:`headwise.attention.attention`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import native

built = pytest.mark.skipif(not native.is_built(), reason="the native part is not built")
ISAS = native.instruction_sets() if native.is_built() else ()


def unbounded(numbers: Sequence[int | None]) -> list[int]:
    """How the kernels take windows: -1 where there is no bound."""
    return [-1 if number is None else number for number in numbers]


def window_sides(options: dict[str, Any], heads: int) -> tuple[list[int], list[int]]:
    """Left and right of every head, the causal order among them."""
    window = options.get("window")
    if window is None:
        window = (None, None)
    per_head = any(isinstance(entry, Sequence) for entry in window) or len(window) != 2
    pairs = [entry or (None, None) for entry in window] if per_head else [window] * heads
    left, right = unbounded([pair[0] for pair in pairs]), unbounded([pair[1] for pair in pairs])
    return left, [0] * heads if options.get("causal") else right


def positions(options: dict[str, Any], batch: int, queries: int, keys: int) -> list[int]:
    """Where the first query of every sequence stands."""
    offset, lengths = options.get("offset"), options.get("key_lengths")
    if offset is None:
        ends = [keys] * batch if lengths is None else [int(length) for length in lengths]
        return [end - queries for end in ends]
    return [offset] * batch if isinstance(offset, int) else [int(number) for number in offset]


def decode(
    query: Tensor, key: Tensor, value: Tensor, *, isa: str = "", threads: int = 1, **options: Any
) -> tuple[Tensor, Tensor]:
    """Output `[B, H, L, Dv]` and LSE `[B, H, L]`; the memory they are written to held NaN before."""
    (batch, heads, queries, width), keys = query.shape, key.shape[2]
    output = torch.full((batch, heads, queries, value.shape[3]), torch.nan, dtype=query.dtype)
    lse = torch.full((batch, heads, queries), torch.nan)
    left, right = window_sides(options, heads)
    lengths, scale = options.get("key_lengths"), options.get("scale")
    single = {name: options[name].float() for name in ("sinks", "alibi_slopes") if options.get(name) is not None}
    native.decode_attention(
        query,
        key,
        value,
        output,
        lse=lse,
        offsets=positions(options, batch, queries, keys),
        key_lengths=None if lengths is None else [int(length) for length in lengths],
        left=left,
        right=right,
        mask=options.get("mask"),
        bias=options.get("bias"),
        sinks=single.get("sinks"),
        slopes=single.get("alibi_slopes"),
        scale=(width**-0.5 if width else 1.0) if scale is None else scale,
        softcap=options.get("softcap") or 0.0,
        threads=threads,
        isa=isa,
    )
    return output, lse
