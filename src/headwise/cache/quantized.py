"""A cache of integer codes: 8 or 4 bits a number, with the latest tokens in full precision.

Axes: ``B`` batch, ``G`` KV heads, ``T`` new tokens, ``D`` head dim, ``Dv`` value head dim.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headwise.cache.base import BaseCache
from headwise.cache.counts import Counts, check_dtype, check_sizes, is_uniform, minus
from headwise.cache.held import Held
from headwise.cache.planes import Planes
from headwise.cache.quantization import code_dtype, code_width, dequantize, quantize_into, scale_dtype
from headwise.cache.ring import Ring
from headwise.native_caches import Segment

__all__ = ["QuantizedCache"]


class QuantizedCache(BaseCache):
    """Keys and values of one layer, up to ``capacity`` tokens a sequence, quantized when they are no longer the latest.

    A token is quantized once, by the append that makes it older than the latest ``residual`` ones, after that append
    was handed out: the new tokens see each other in full precision. It stays as it is then, even if a rollback makes it
    one of the latest again; so what a rollback leaves reads to the bit as before.

    A key or value with a NaN or an infinity in it has no scale: once quantized, all of its numbers read as NaN.

    Each token has one scale per head for its key and one for its value, in float32 (float64 for float64), and codes as
    in :mod:`headwise.cache.quantization`. Attention of a few queries on a CPU reads the codes where they lie; for all
    else what is handed out is made into one tensor of all tokens in full precision, a copy.

    Args:
        batch_size: ``B``.
        num_kv_heads: ``G``.
        capacity: tokens per sequence.
        head_dim: ``D``.
        value_head_dim: ``Dv``, default ``D``.
        bits: 8 or 4.
        residual: how many of the latest tokens stay in full precision; no more than ``capacity`` are kept room for.
        dtype: of what is appended and handed out; default PyTorch's default dtype.
        device: default PyTorch's default device.

    Raises:
        TypeError: ``dtype`` is no floating one that attention knows.
        ValueError: a size is out of range, or ``bits`` is neither 8 nor 4.
    """

    def __init__(
        self,
        batch_size: int,
        num_kv_heads: int,
        capacity: int,
        head_dim: int,
        value_head_dim: int | None = None,
        *,
        bits: int = 8,
        residual: int = 64,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        value_head_dim = head_dim if value_head_dim is None else value_head_dim
        sizes = {"batch_size": batch_size, "num_kv_heads": num_kv_heads, "capacity": capacity}
        check_sizes("QuantizedCache", sizes | {"head_dim": head_dim, "value_head_dim": value_head_dim})
        check_sizes("QuantizedCache", {"residual": residual}, least=0)
        check_dtype("QuantizedCache", dtype)
        if bits not in (4, 8):
            raise ValueError(f"QuantizedCache: expected bits to be 8 or 4, got {bits!r}")
        super().__init__(batch_size, num_kv_heads, head_dim, value_head_dim)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        self._bits, self._capacity, self._residual = bits, capacity, min(residual, capacity)
        widths, scale = (head_dim, value_head_dim), scale_dtype(dtype)
        kinds = [kind for width in widths for kind in ((code_width(width, bits), code_dtype(bits)), (1, scale))]
        # The last `residual` tokens of a full cache are never quantized.
        self._codes = Planes.empty((batch_size, num_kv_heads, capacity - self._residual), kinds, device)
        latest = (batch_size, num_kv_heads, self._residual)
        self._latest = Ring(Planes.empty(latest, [(width, dtype) for width in widths], device))
        self._settled: Counts = self._counts  # how many tokens of each sequence are quantized

    @property
    def capacity(self) -> int:
        """How many tokens of each sequence fit."""
        return self._capacity

    @property
    def bits(self) -> int:
        """Bits of a code, 8 or 4."""
        return self._bits

    @property
    def residual(self) -> int:
        """How many of the latest tokens are in full precision."""
        return self._residual

    @property
    def nbytes(self) -> int:
        """Bytes allocated for codes, scales and the latest tokens."""
        return self._codes.nbytes + self._latest.planes.nbytes

    @property
    def nbytes_logical(self) -> int:
        """Bytes of the held tokens, each as it is stored, with its scales."""
        settled = sum(self._settled)
        return settled * self._codes.token_nbytes + (sum(self._counts) - settled) * self._latest.planes.token_nbytes

    def reset(self) -> None:
        """Forget all tokens; the memory is kept."""
        super().reset()
        self._settled = self._counts

    def _like(self) -> Tensor:
        return self._latest.planes.tensors[0]

    def _store(self, tokens: list[Tensor], new: Counts, after: Counts) -> tuple[Held, ...]:
        self._refuse_beyond(self._capacity, new, after)
        done, settled = self._settled, tuple(map(max, self._settled, (end - self._residual for end in after)))
        # Those that are quantized now are handed out in full precision a last time.
        leaving = self._leaving(tokens, done, settled)
        if leaving is not None:
            self._quantize(leaving, done, settled)
        first = tuple(map(max, settled, self._counts))
        self._latest.write(tokens, minus(first, self._counts), first, minus(after, first))
        self._settled = settled
        return self._parts(done, leaving, self._counts, after)

    def _leaving(self, tokens: list[Tensor], done: Counts, settled: Counts) -> Planes | None:
        """The tokens from ``done`` to ``settled`` as they came, in memory of their own; None where there are none."""
        if settled == done:
            return None
        leaving, held = self._planes_like(max(minus(settled, done))), tuple(map(min, settled, self._counts))
        self._latest.read(leaving, (0,) * len(done), done, minus(held, done))  # the others are new
        leaving.write(tokens, minus(held, done), minus(settled, held))
        return leaving

    def _planes_like(self, tokens: int) -> Planes:
        shape = (self.batch_size, self._num_kv_heads, tokens)
        kinds = [(width, self.dtype) for width in (self._head_dim, self._value_head_dim)]
        return Planes.empty(shape, kinds, self.device)

    def _quantize(self, leaving: Planes, done: Counts, settled: Counts) -> None:
        """Codes and scales of the tokens from ``done`` to ``settled``."""
        if is_uniform(done) and is_uniform(settled):
            pieces = [(slice(None), done[0], settled[0])]
        else:
            pieces = [(slice(b, b + 1), *ends) for b, ends in enumerate(zip(done, settled, strict=True))]
        for row, begin, end in pieces:
            codes = [tensor[row, :, begin:end] for tensor in self._codes.tensors]
            for side, tensor in enumerate(leaving.tensors if end > begin else ()):
                quantize_into(tensor[row, :, : end - begin], codes[2 * side], codes[2 * side + 1], self._bits)

    def _hand_out(self, before: Counts, after: Counts) -> tuple[Held, ...]:
        return self._parts(self._settled, None, before, after)

    def _parts(self, done: Counts, leaving: Planes | None, before: Counts, after: Counts) -> tuple[Held, ...]:
        """All tokens: codes up to ``done``, those that are just ``leaving``, and the latest."""
        arguments = done, leaving, after
        return self._all_stored(lambda: self._whole(*arguments), lambda: self._segments(*arguments), before, after)

    def _segments(self, done: Counts, leaving: Planes | None, after: Counts) -> list[Segment]:
        """Where all tokens lie, for the compiled kernels."""
        zeros = (0,) * len(done)
        segments = [Segment(self._codes.memory, zeros, done, zeros)] if max(done) else []
        if leaving is not None:
            segments.append(Segment(leaving.memory, done, minus(self._settled, done), zeros))
        runs = self._latest.runs(self._settled, minus(after, self._settled))
        return segments + [Segment(self._latest.planes.memory, *run) for run in runs]

    def _whole(self, done: Counts, leaving: Planes | None, after: Counts) -> tuple[Tensor, Tensor]:
        """All tokens in full precision."""
        whole = self._planes_like(max(after))
        views = self._codes.views(0, max(done))
        for tensor, codes, scales in zip(whole.tensors, views[::2], views[1::2], strict=True):
            tensor[:, :, : max(done)] = dequantize(codes, scales, tensor.shape[3], self._bits, self.dtype)
        if leaving is not None:
            whole.write(leaving.tensors, done, minus(self._settled, done))
        self._latest.read(whole, self._settled, self._settled, minus(after, self._settled))
        keys, values = whole.tensors
        return keys, values

    def _forget(self, after: Counts) -> None:
        self._settled = tuple(map(min, self._settled, after))

    def _select(self, index: Counts) -> None:
        self._codes.select(index, max(self._settled))
        self._latest.planes.select(index, self._residual)
        self._settled = tuple(self._settled[source] for source in index)

    def _copy(self) -> tuple[Any, ...]:
        return self._settled, self._codes.copy(max(self._settled)), self._latest.planes.copy(self._residual)

    def _paste(self, contents: tuple[Any, ...]) -> None:
        self._settled, codes, latest = contents
        self._codes.paste(codes)
        self._latest.planes.paste(latest)

    def _extra(self) -> dict[str, Any]:
        return {"capacity": self._capacity, "bits": self._bits, "residual": self._residual}
