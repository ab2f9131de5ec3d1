"""Symmetric integer codes for vectors: one scale for each, 8 or 4 bits a number.

A vector ``x`` of width ``D`` becomes ``codes = round(x / scale)`` with ``scale = max |x| / limit``, where ``limit`` is
127 for 8 bits and 7 for 4. Rounding costs ``scale / 2`` at most. Zero has code 0, so that a zero vector stays zero.

A vector that holds an infinity or NaN has no scale that fits. Its scale becomes NaN, and so it reads as NaN throughout:
padding may hold anything and is hidden by masks, while a number made up here would pass for a real one. Refusing it
instead would wait for the device at every step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise import native_caches
from headwise.native import is_built

__all__ = ["code_dtype", "code_width", "dequantize", "quantize", "quantize_into", "scale_dtype"]

# What the compiled part quantizes. Settled once: a graph that is being compiled can't ask.
_NATIVE = (torch.float32, torch.bfloat16, torch.float16) if is_built() else ()
_LIMITS = {8: 127, 4: 7}


def code_dtype(bits: int) -> torch.dtype:
    """int8 for 8 bits; for 4 bits uint8, whose halves are a code plus 8 each."""
    return torch.int8 if bits == 8 else torch.uint8


def code_width(width: int, bits: int) -> int:
    """Bytes that the codes of a vector take; two codes of 4 bits share a byte."""
    return width if bits == 8 else (width + 1) // 2


def scale_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of scales: float32, and float64 for float64 vectors."""
    return torch.promote_types(dtype, torch.float32)


def quantize(vectors: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Codes ``[..., code_width(D, bits)]`` and scales ``[..., 1]`` of vectors ``[..., D]``."""
    vectors = vectors.to(scale_dtype(vectors.dtype))
    limit, largest, number = _LIMITS[bits], vectors.abs().amax(-1, keepdim=True), torch.finfo(vectors.dtype)
    # Not below the smallest normal number, for x / scale must stay finite (a zero vector may have any scale), and not
    # so large that limit * scale rounds to infinity.
    scales = (largest / limit).clamp(min=number.tiny, max=number.max / limit * (1 - number.eps))
    scales = scales.masked_fill(~largest.isfinite(), torch.nan)
    codes = torch.nan_to_num(vectors / scales, nan=0.0).round().clamp(-limit, limit)
    return _pack(codes, bits), scales


def quantize_into(vectors: Tensor, codes: Tensor, scales: Tensor, bits: int) -> None:
    """Write what :func:`quantize` gives, to the bit, into memory for it: ``[B, G, T, width]`` each."""
    if vectors.dtype in _NATIVE and vectors.device.type == "cpu" and not torch.compiler.is_compiling():
        vectors = vectors if vectors.stride(-1) == 1 else vectors.contiguous()
        native_caches.quantize(vectors, codes, scales, bits=bits, threads=torch.get_num_threads())
        return
    made = quantize(vectors, bits)
    codes.copy_(made[0])
    scales.copy_(made[1])


def dequantize(codes: Tensor, scales: Tensor, width: int, bits: int, dtype: torch.dtype) -> Tensor:
    """Vectors ``[..., width]`` in ``dtype``."""
    return _unpack(codes, width, bits).to(scales.dtype).mul_(scales).to(dtype)


def _pack(codes: Tensor, bits: int) -> Tensor:
    """Two neighbours of 4 bits into a byte, the first one low; an odd last one has 0 beside it."""
    if bits == 8:
        return codes.to(torch.int8)
    halves = torch.nn.functional.pad(codes + 8, (0, codes.shape[-1] % 2)).to(torch.uint8)
    return halves[..., ::2] | (halves[..., 1::2] << 4)


def _unpack(codes: Tensor, width: int, bits: int) -> Tensor:
    if bits == 8:
        return codes
    halves = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)[..., :width]
    return halves.to(torch.int8) - 8
