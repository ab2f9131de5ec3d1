"""Keys and values cut into segments of any storage, and the native decode kernel over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.cache.quantization import dequantize, quantize
from headwise.native_caches import Memory, Segment, decode_segments
from tests.native.decoding import positions, window_sides

POISON = {torch.int8: 119, torch.uint8: 0xE1}


@dataclass(frozen=True)
class Piece:
    """How some positions are stored.

    Attributes:
        bits: 8 or 4; 0: plain numbers.
        block: tokens per block of a pool; 0: one tensor for each sequence.
        gap: slots before the first token.
    """

    bits: int = 0
    block: int = 0
    gap: int = 0


def exact(vectors: Tensor, bits: int) -> Tensor:
    """What the codes of vectors stand for, in float64."""
    if bits == 0:
        return vectors.double()
    codes, scales = quantize(vectors, bits)
    return dequantize(codes, scales.double(), vectors.shape[-1], bits, torch.float64)


def segmented(
    key: Tensor, value: Tensor, ends: Sequence[Sequence[int]], pieces: Sequence[Piece]
) -> tuple[list[Segment], Tensor, Tensor]:
    """Segments, and the keys and values in float64 that they stand for.

    Args:
        key: `[B, G, S, D]`.
        value: `[B, G, S, Dv]`.
        ends: for each piece, where it ends in every sequence; what lies behind the last end is stored nowhere.
        pieces: how each is stored. All memory around the tokens is poison.
    """
    begins, segments = [0] * key.shape[0], []
    truth = [tensor.double().clone() for tensor in (key, value)]
    for piece, stops in zip(pieces, ends, strict=True):
        count = tuple(stop - begin for begin, stop in zip(begins, stops, strict=True))
        tensors, table = [], None
        for side, tensor in enumerate((key, value)):
            for row, (begin, stop) in enumerate(zip(begins, stops, strict=True)):
                truth[side][row, :, begin:stop] = exact(tensor[row, :, begin:stop], piece.bits)
            for stored in [tensor] if piece.bits == 0 else quantize(tensor, piece.bits):
                memory, table = _stored(stored, begins, count, piece)
                tensors.append(memory)
        names = ("key", "value") if piece.bits == 0 else ("key", "key_scales", "value", "value_scales")
        memory = Memory(bits=piece.bits, **dict(zip(names, tensors, strict=True)))
        segments.append(Segment(memory, tuple(begins), count, (piece.gap,) * len(count), table))
        begins = list(stops)
    return segments, *truth


def _stored(tensor: Tensor, begins: Sequence[int], count: Sequence[int], piece: Piece) -> tuple[Tensor, Tensor | None]:
    """The tokens of one piece in strided memory, or in blocks and their table."""
    slots = piece.gap + max(count) + 2
    lying = _poisoned((tensor.shape[0], tensor.shape[1], slots, tensor.shape[3]), tensor.dtype)
    for row, (begin, tokens) in enumerate(zip(begins, count, strict=True)):
        lying[row, :, piece.gap : piece.gap + tokens] = tensor[row, :, begin : begin + tokens]
    if not piece.block:
        return lying, None
    numbers = -(-slots // piece.block)
    whole = _poisoned((*lying.shape[:2], numbers * piece.block, lying.shape[3]), tensor.dtype)
    whole[:, :, :slots] = lying
    blocks = tensor.shape[0] * numbers
    # From the end, so that no block lies where it would without a table; more blocks than are named.
    table = torch.arange(blocks, 0, -1).view(-1, numbers)
    pool = _poisoned((blocks + 2, tensor.shape[1], piece.block, tensor.shape[3]), tensor.dtype)
    pool[table] = whole.unflatten(2, (numbers, piece.block)).transpose(1, 2)
    for row, tokens in enumerate(count):  # blocks that nobody may look up
        table[row, : piece.gap // piece.block] = -7
        table[row, -(-(piece.gap + tokens) // piece.block) if tokens else 0 :] = -7
    return pool, table.int() if piece.gap % 2 else table


def _poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory whose rows don't touch each other, all of it poison."""
    poison = POISON.get(dtype, torch.nan)
    memory = torch.full((shape[1], shape[0], shape[2] + 1, shape[3] + 3), poison, dtype=dtype)
    return memory.transpose(0, 1)[:, :, 1:, 1 : shape[3] + 1]


def run(
    query: Tensor, segments: Sequence[Segment], sizes: tuple[int, int, int], *, isa: str = "", **options: Any
) -> tuple[Tensor, Tensor]:
    """Output and LSE; `sizes` are G, S and Dv. The memory that they are written to held NaN before."""
    (batch, heads, queries, width), (kv_heads, keys, value_width) = query.shape, sizes
    output = torch.full((batch, heads, queries, value_width), torch.nan, dtype=query.dtype)
    lse = torch.full((batch, heads, queries), torch.nan)
    left, right = window_sides(options, heads)
    scale = options.get("scale")
    decode_segments(
        query,
        segments,
        output,
        kv_heads=kv_heads,
        keys=keys,
        lse=lse,
        offsets=positions(options, batch, queries, keys),
        left=left,
        right=right,
        mask=options.get("mask"),
        bias=options.get("bias"),
        sinks=options.get("sinks"),
        slopes=options.get("alibi_slopes"),
        scale=(width**-0.5 if width else 1.0) if scale is None else scale,
        softcap=options.get("softcap") or 0.0,
        threads=options.get("threads", 1),
        isa=isa,
    )
    return output, lse
