"""The door to the compiled part for caches: attention over memory that isn't one plain tensor, and quantizing.

As :mod:`headwise.native`, importing it loads nothing. Tensors are PyTorch's, on the CPU, or whatever has their
`data_ptr()`, `shape`, `stride()`, `dtype` and `device`.

Symbols: `B` batch, `G` KV heads, `H` query heads, `L` query length, `S` key length, `T` tokens, `D` head dim, `Dv`
value head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwise import native
from headwise.native import _Described, _required

__all__ = ["Memory", "Segment", "decode_segments", "quantize"]


class Memory:
    """Keys and values of a cache, as the kernels find them.

    They are described once, which takes longer than it seems, and again where they have moved.

    Args:
        key: `[B, G, slots, D]`; or of a pool `[blocks, G, block size, D]`. Of codes the last axis is that of
            :func:`quantize`.
        value: the same with `Dv`.
        bits: 8 or 4 where these are codes; 0: plain numbers, of the query's dtype.
        key_scales: of codes, float32 `[B, G, slots, 1]`, or `[blocks, G, block size, 1]`.
        value_scales: the same for the values.

    Raises:
        TypeError: a tensor has a dtype that the kernels don't know.
        ValueError: a tensor isn't on the CPU.
    """

    __slots__ = ("_addresses", "_parts", "bits", "tensors")

    def __init__(
        self, key: Any, value: Any, *, bits: int = 0, key_scales: Any = None, value_scales: Any = None
    ) -> None:
        self.tensors, self.bits = (key, value, key_scales, value_scales), bits
        self._addresses: list[int] = []
        self._parts: tuple[Any, ...] = ()

    def parts(self) -> tuple[Any, ...]:
        """Bits, and of each tensor what the compiled part needs."""
        addresses = [tensor.data_ptr() for tensor in self.tensors if tensor is not None]
        if addresses != self._addresses:  # a copy of this has copies of the tensors
            names = ("key", "value", "key_scales", "value_scales")
            self._parts = (self.bits, *map(_optional, names, self.tensors))
            self._addresses = addresses
        return self._parts


@dataclass(slots=True)
class Segment:
    """A run of positions of every sequence, and where its keys and values lie.

    Attributes:
        memory: the tensors.
        first: position of the first key, per sequence.
        count: how many keys, per sequence.
        slot: which slot the first one lies in, per sequence; of blocks, counted through those of the sequence.
        table: int32 or int64 `[B, most blocks]`: the blocks of each sequence in the memory's pool. None: sequence `b`
            lies at index `b`.
    """

    memory: Memory
    first: tuple[int, ...]
    count: tuple[int, ...]
    slot: tuple[int, ...]
    table: Any = None


def decode_segments(
    query: Any,
    segments: Sequence[Segment],
    output: Any,
    *,
    kv_heads: int,
    keys: int,
    offsets: Sequence[int],
    scale: float,
    lse: Any = None,
    left: Sequence[int] | None = None,
    right: Sequence[int] | None = None,
    mask: Any = None,
    bias: Any = None,
    sinks: Any = None,
    slopes: Any = None,
    softcap: float = 0.0,
    threads: int = 1,
    isa: str = "",
) -> None:
    """As :func:`headwise.native.decode_attention`, over keys and values that lie in segments and are read in place.

    A code counts as code times scale, in float32. Where several scores are finite the result is so too, as long as the
    numbers of a query stay below 1e34.

    Args:
        query: `[B, H, L, D]`, float32, bfloat16 or float16.
        segments: in the order of their positions; each position once at most.
        output: `[B, H, L, Dv]` in the query's dtype, which is written.
        kv_heads: `G`.
        keys: `S`: positions are below it, and masks and biases have so many columns.

    The other arguments are those of :func:`headwise.native.decode_attention`.

    Raises:
        NativeMissingError: the compiled part isn't there.
        TypeError: a tensor has a dtype that the kernels don't know.
        ValueError: shapes, strides or numbers don't fit, slots lie beyond the memory or blocks outside the pool, a
            tensor isn't on the CPU, or there is no such `isa`. Nothing is read or written then.
    """
    _required().decode_segments(
        _described("query", query),
        _described("output", output),
        kv_heads,
        keys,
        output.shape[3],
        [(*one.memory.parts(), one.first, one.count, one.slot, _optional("table", one.table)) for one in segments],
        _optional("lse", lse),
        offsets,
        left,
        right,
        _optional("mask", mask),
        _optional("bias", bias),
        _optional("sinks", sinks),
        _optional("slopes", slopes),
        scale,
        softcap,
        threads,
        isa,
    )


def quantize(vectors: Any, codes: Any, scales: Any, *, bits: int, threads: int = 1, isa: str = "") -> None:
    """Write the codes and scales of vectors, to the bit those of ``headwise.cache.quantization.quantize``.

    Args:
        vectors: `[B, G, T, D]`, float32, bfloat16 or float16.
        codes: int8 `[B, G, T, D]` for 8 bits, uint8 `[B, G, T, ceil(D / 2)]` for 4, which is written.
        scales: float32 `[B, G, T, 1]`, which is written.
        bits: 8 or 4.
        threads: at most so many threads work.
        isa: see :func:`headwise.native.decode_attention`.

    Raises:
        NativeMissingError: the compiled part isn't there.
        TypeError: a tensor has a dtype that the kernels don't know.
        ValueError: shapes, strides or numbers don't fit, a tensor isn't on the CPU, or there is no such `isa`.
    """
    described = (_described("vectors", vectors), _described("codes", codes), _described("scales", scales))
    _required().quantize(*described, bits, threads, isa)


_KNOWN = tuple(native._ELEMENTS)


def _optional(name: str, tensor: Any) -> _Described | None:
    return None if tensor is None else _described(name, tensor)


def _described(name: str, tensor: Any) -> _Described:
    return native._described(name, tensor, _KNOWN, "headwise.native_caches")
