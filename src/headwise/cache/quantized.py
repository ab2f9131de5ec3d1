"""A cache of integer codes: 8 or 4 bits a number, with the latest tokens in full precision.

Axes: ``B`` batch, ``G`` KV heads, ``T`` new tokens, ``D`` head dim, ``Dv`` value head dim.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headwise.cache.base import BaseCache
from headwise.cache.counts import Counts, check_sizes
from headwise.cache.planes import Planes, token_index
from headwise.cache.protocol import Held
from headwise.cache.quantization import code_dtype, code_width, dequantize, quantize, scale_dtype

__all__ = ["QuantizedCache"]


class QuantizedCache(BaseCache):
    """Keys and values of one layer, up to ``capacity`` tokens a sequence, quantized when they are no longer the latest.

    A token is quantized once, by the append that makes it older than the latest ``residual`` ones, after that append
    was handed out: the new tokens see each other in full precision. It stays as it is then, even if a rollback makes it
    one of the latest again; so what a rollback leaves reads to the bit as before.

    Each token has one scale per head for its key and one for its value, in float32 (float64 for float64), and codes as
    in :mod:`headwise.cache.quantization`. What is handed out is one tensor of all tokens in full precision, a copy that
    lives as long as it is used.

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
        if bits not in (4, 8):
            raise ValueError(f"QuantizedCache: expected bits to be 8 or 4, got {bits!r}")
        super().__init__(batch_size, num_kv_heads, head_dim, value_head_dim)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        self._bits, self._capacity, self._residual = bits, capacity, min(residual, capacity)
        widths, scale = (head_dim, value_head_dim), scale_dtype(dtype)
        kinds = [kind for width in widths for kind in ((code_width(width, bits), code_dtype(bits)), (1, scale))]
        # The last `residual` tokens of a full cache are never quantized.
        self._codes = Planes.empty((batch_size, num_kv_heads, capacity - self._residual), kinds, device)
        # A ring: the token at position p lies in slot p % residual.
        self._latest = Planes.empty(
            (batch_size, num_kv_heads, self._residual), [(width, dtype) for width in widths], device
        )
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
        return self._codes.nbytes + self._latest.nbytes

    @property
    def nbytes_logical(self) -> int:
        """Bytes of the held tokens, each as it is stored, with its scales."""
        settled = sum(self._settled)
        return settled * self._codes.token_nbytes + (sum(self._counts) - settled) * self._latest.token_nbytes

    def reset(self) -> None:
        """Forget all tokens; the memory is kept."""
        super().reset()
        self._settled = self._counts

    def _like(self) -> Tensor:
        return self._latest.tensors[0]

    def _store(self, tokens: list[Tensor], new: Counts, after: Counts) -> tuple[Held, ...]:
        self._refuse_beyond(self._capacity, new, after)
        whole = self._read(self._counts, after)
        whole.write(tokens, self._counts, new)
        settled = tuple(max(done, end - self._residual) for done, end in zip(self._settled, after, strict=True))
        self._settle(whole, settled)
        # Of the tokens behind `settled` only the new ones aren't in the ring yet.
        first = tuple(map(max, settled, self._counts))
        rows, offsets = token_index(tuple(end - begin for begin, end in zip(first, after, strict=True)))
        positions = torch.tensor(first)[rows] + offsets
        if rows.numel():
            self._latest.put(whole.tensors, rows, positions, positions % self._residual)
        self._settled = settled
        keys, values = whole.tensors
        return self._all_heads(keys, values, self._counts, after)

    def _settle(self, whole: Planes, settled: Counts) -> None:
        """Quantize the tokens between what is quantized already and ``settled``."""
        count = tuple(end - begin for begin, end in zip(self._settled, settled, strict=True))
        if not max(count):
            return
        leaving = Planes.empty(
            (self.batch_size, self.num_kv_heads, max(count)),
            [(tensor.shape[3], tensor.dtype) for tensor in whole.tensors],
            self.device,
        )
        leaving.write(whole.tensors, (0,) * self.batch_size, count, self._settled)
        codes = [part for tensor in leaving.tensors for part in quantize(tensor, self._bits)]
        self._codes.write(codes, self._settled, count)

    def _read(self, before: Counts, after: Counts) -> Planes:
        """Room for all tokens ``[B, G, max(after), width]``, with those that are stored in full precision in it."""
        whole = Planes(
            [tensor.new_empty(*tensor.shape[:2], max(after), tensor.shape[3]) for tensor in self._latest.tensors]
        )
        settled = max(self._settled)
        views = self._codes.views(0, settled)
        for tensor, codes, scales in zip(whole.tensors, views[::2], views[1::2], strict=True):
            tensor[:, :, :settled] = dequantize(codes, scales, tensor.shape[3], self._bits, self.dtype)
        rows, offsets = token_index(tuple(end - begin for begin, end in zip(self._settled, before, strict=True)))
        positions = torch.tensor(self._settled)[rows] + offsets
        if rows.numel():
            whole.put(self._latest.tensors, rows, positions % self._residual, positions)
        return whole

    def _hand_out(self, before: Counts, after: Counts) -> tuple[Held, ...]:
        keys, values = self._read(before, after).tensors
        return self._all_heads(keys, values, before, after)

    def _forget(self, after: Counts) -> None:
        self._settled = tuple(map(min, self._settled, after))

    def _select(self, index: Counts) -> None:
        self._codes.select(index, max(self._settled))
        self._latest.select(index, self._residual)
        self._settled = tuple(self._settled[source] for source in index)

    def _copy(self) -> tuple[Any, ...]:
        return self._settled, self._codes.copy(max(self._settled)), self._latest.copy(self._residual)

    def _paste(self, contents: tuple[Any, ...]) -> None:
        self._settled, codes, latest = contents
        self._codes.paste(codes)
        self._latest.paste(latest)

    def _extra(self) -> dict[str, Any]:
        return {"capacity": self._capacity, "bits": self._bits, "residual": self._residual}
