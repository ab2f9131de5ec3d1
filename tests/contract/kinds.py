"""Every cache that the contract is about, and a model of what it must hold: plain lists of tensors.

A new cache joins by one entry in ``KINDS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.attention.reference import reference_attention
from headwise.cache import (
    BlockPool,
    DenseCache,
    Held,
    KeyValueCache,
    LatentCache,
    PagedCache,
    QuantizedCache,
    WindowCache,
)
from headwise.cache.quantization import dequantize, quantize

B, G, D, DV, CAPACITY, R = 2, 3, 7, 5, 13, 2
POISONS = (torch.nan, 1e30)

Counts = Sequence[int]


@dataclass(frozen=True)
class Kind:
    """One way of caching.

    Attributes:
        build: an empty cache for some sequences.
        poison: overwrites all memory of a cache that nobody may read.
        buffers: the tensors that the cache allocated.
        capacity: most tokens per sequence.
        full: how the refusal begins when 5 tokens come on top of 11.
        names: what ``append`` calls its two tensors.
        kv_heads: ``G``.
        widths: of the two tensors.
        windows: for each KV head how many keys before its own a query sees; None = all.
        margin: how far a rollback may go once tokens have left a window; None = anywhere.
        quantized: (bits, residual), or None where what is read is what was appended.
    """

    build: Callable[[int], Any]
    poison: Callable[[Any, float, Sequence[Any]], None]
    buffers: Callable[[Any], list[Tensor]]
    capacity: int | None = CAPACITY
    full: str = "expected at most 2 more tokens (11 of 13 are held), got 5; build it with a larger capacity"
    names: tuple[str, str] = ("key", "value")
    kv_heads: int = G
    widths: tuple[int, int] = (D, DV)
    windows: tuple[int | None, ...] = (None,) * G
    margin: int | None = None
    quantized: tuple[int, int] | None = None

    @property
    def heads(self) -> int:
        """``H``."""
        return self.kv_heads * R

    @property
    def head_windows(self) -> list[tuple[int | None, int]]:
        """What attention calls the windows: one for each query head."""
        return [(self.windows[head // R], 0) for head in range(self.heads)]

    def tokens(self, count: int, batch: int = B) -> tuple[Tensor, Tensor]:
        """Random tokens to append."""
        one, other = (torch.randn(batch, self.kv_heads, count, width, dtype=torch.float64) for width in self.widths)
        return one, other

    def queries(self, count: int, batch: int = B) -> Tensor:
        return torch.randn(batch, self.heads, count, self.joined(*self.tokens(1))[0].shape[3], dtype=torch.float64)

    def joined(self, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of attention: what was appended, but for latents, which are both."""
        return (torch.cat([one, other], -1), one) if self.names[0] == "latent" else (one, other)

    def least_length(self, longest: int) -> int:
        """How short a sequence can be made that was ``longest`` once."""
        bounded = [left for left in self.windows if left is not None]
        if self.margin is None or longest <= min(bounded) + self.margin:
            return 0
        return longest - self.margin


class Model:
    """What a cache must hold: for each sequence keys ``[G, n, D]`` and values ``[G, n, Dv]``, nothing shared."""

    def __init__(self, kind: Kind, batch: int = B) -> None:
        self.kind = kind
        empty = kind.joined(*kind.tokens(0, batch))
        self.rows = [tuple(side[row] for side in empty) for row in range(batch)]
        self.longest = [0] * batch
        self.settled = [0] * batch

    @property
    def lengths(self) -> list[int]:
        return [row[0].shape[1] for row in self.rows]

    def append(self, one: Tensor, other: Tensor, lengths: Counts | None = None) -> None:
        counts = [one.shape[2]] * len(self.rows) if lengths is None else lengths
        sides = self.kind.joined(one, other)
        self.rows = [
            tuple(torch.cat([old, new[number, :, :count]], 1) for old, new in zip(row, sides, strict=True))
            for number, (row, count) in enumerate(zip(self.rows, counts, strict=True))
        ]
        self.longest = [max(pair) for pair in zip(self.longest, self.lengths, strict=True)]

    def age(self) -> None:
        """Old tokens lose precision where the cache says so, each of them once."""
        if self.kind.quantized is None:
            return
        bits, residual = self.kind.quantized
        for number, row in enumerate(self.rows):
            done, end = self.settled[number], max(self.settled[number], row[0].shape[1] - residual)
            self.rows[number] = tuple(
                torch.cat([side[:, :done], rounded(side[:, done:end], bits), side[:, end:]], 1) for side in row
            )
            self.settled[number] = end

    def rollback(self, counts: Counts) -> None:
        self.rows = [
            tuple(side[:, : side.shape[1] - count] for side in row)
            for row, count in zip(self.rows, counts, strict=True)
        ]
        self.settled = [min(pair) for pair in zip(self.settled, self.lengths, strict=True)]

    def select(self, index: Counts) -> None:
        for name in ("rows", "longest", "settled"):
            setattr(self, name, [getattr(self, name)[source] for source in index])

    def copy(self) -> Model:
        copied = Model(self.kind, len(self.rows))
        copied.rows, copied.longest, copied.settled = list(self.rows), list(self.longest), list(self.settled)
        return copied

    def attention(self, query: Tensor, before: Counts, row: int, **options: Any) -> Any:
        """The oracle's answer for one sequence, whose first query stands at ``before[row]``."""
        key, value = (side[None] for side in self.rows[row])
        windows = self.kind.head_windows
        return reference_attention(
            query[row : row + 1], key, value, causal=True, window=windows, offset=before[row], **options
        )


def rounded(vectors: Tensor, bits: int) -> Tensor:
    codes, scales = quantize(vectors, bits)
    return dequantize(codes, scales, vectors.shape[-1], bits, vectors.dtype)


def assert_holds(kind: Kind, held: Sequence[Held], model: Model, before: Counts) -> None:
    """What was handed out is, to the bit, all that queries from ``before`` on may see, and each head is there once."""
    assert sorted(head for part in held for head in part.kv_heads) == list(range(kind.kv_heads))
    for part in held:
        for row, (key, value) in enumerate(model.rows):
            start, offset = (int(number if isinstance(number, int) else number[row]) for number in part[3:5])
            count = part.keys.shape[2] if part.key_lengths is None else int(part.key_lengths[row])
            assert start + offset == before[row]
            assert start + count == key.shape[1]
            lefts = [kind.windows[head] for head in part.kv_heads]
            needed = 0 if None in lefts else max(0, before[row] - max(left for left in lefts if left is not None))
            assert 0 <= start <= needed
            heads = list(part.kv_heads)
            # What lies before may be handed out for the sake of another sequence; windows hide it.
            assert torch.equal(part.keys[row, :, needed - start : count], key[heads, needed:])
            assert torch.equal(part.values[row, :, needed - start : count], value[heads, needed:])


def assert_same_lengths(cache: KeyValueCache, model: Model) -> None:
    assert cache.lengths.tolist() == model.lengths
    assert cache.lengths.dtype == torch.int64
    assert cache.length == max(model.lengths)
    assert cache.batch_size == len(model.lengths)


# --- memory that must not be read ---------------------------------------------------------------------------------


def poison_planes(cache: Any, poison: float, snapshots: Sequence[Any] = ()) -> None:
    for row, count in enumerate(cache._counts):
        for tensor in cache._planes.tensors:
            tensor[row, :, count:] = poison


def poison_windows(cache: Any, poison: float, snapshots: Sequence[Any] = ()) -> None:
    for group in cache._groups:
        for row, (count, longest) in enumerate(zip(cache._counts, cache._longest, strict=True)):
            start, gone = group.starts[row], group.needed(longest - cache.margin)
            for tensor in group.planes.tensors:
                tensor[row, :, count - start :] = poison
                tensor[row, :, : max(0, gone - start)] = poison


def poison_blocks(cache: Any, poison: float, snapshots: Sequence[Any] = ()) -> None:
    pool = cache.pool
    filled = [0] * pool.num_blocks
    tables = [(cache._tables.rows, cache._counts)] + [(snap._contents.rows, snap.lengths) for snap in snapshots]
    for rows, counts in tables:
        for row, count in zip(rows, counts, strict=True):
            for number, block in enumerate(row):
                filled[block] = max(filled[block], min(pool.block_size, count - number * pool.block_size))
    for block, count in enumerate(filled):
        for tensor in pool.planes.tensors:
            tensor[block, :, count:] = poison


def poison_codes(cache: Any, poison: float, snapshots: Sequence[Any] = ()) -> None:
    for row, (settled, count) in enumerate(zip(cache._settled, cache._counts, strict=True)):
        for tensor in cache._codes.tensors:
            tensor[row, :, settled:] = poison if tensor.is_floating_point() else 119
        used = {position % cache.residual for position in range(settled, count)}
        for slot in set(range(cache.residual)) - used:
            for tensor in cache._latest.planes.tensors:
                tensor[row, :, slot] = poison


def plane_buffers(cache: Any) -> list[Tensor]:
    return list(cache._planes.tensors)


def window_buffers(cache: Any) -> list[Tensor]:
    return [tensor for group in cache._groups for tensor in group.planes.tensors]


def window_kind(windows: Any, margin: int, slack: int, capacity: int | None = None) -> Kind:
    return Kind(
        lambda batch: WindowCache(
            batch, G, windows, D, DV, margin=margin, slack=slack, capacity=capacity, dtype=torch.float64
        ),
        poison_windows,
        window_buffers,
        capacity=capacity,
        windows=windows if isinstance(windows, tuple) else (windows,) * G,
        margin=margin,
    )


def quantized_kind(bits: int, residual: int) -> Kind:
    return Kind(
        lambda batch: QuantizedCache(batch, G, CAPACITY, D, DV, bits=bits, residual=residual, dtype=torch.float64),
        poison_codes,
        lambda cache: [*cache._codes.tensors, *cache._latest.planes.tensors],
        quantized=(bits, residual),
    )


KINDS: dict[str, Kind] = {
    "dense": Kind(
        lambda batch: DenseCache(batch, G, CAPACITY, D, DV, dtype=torch.float64), poison_planes, plane_buffers
    ),
    "window": window_kind(4, margin=3, slack=2),
    "window per head": window_kind((4, 0, 4), margin=0, slack=1),
    "window and global": window_kind((2, None, 5), margin=2, slack=2, capacity=CAPACITY),
    "paged": Kind(
        lambda batch: PagedCache(BlockPool(10, 3, G, D, DV, dtype=torch.float64), batch),
        poison_blocks,
        lambda cache: list(cache.pool.planes.tensors),
        capacity=None,
        full="expected to need at most 2 blocks (those that are free of 10 in the pool), got a need of 4;",
    ),
    "quantized 8": quantized_kind(8, residual=3),
    "quantized 4": quantized_kind(4, residual=0),
    "latent": Kind(
        lambda batch: LatentCache(batch, CAPACITY, D, DV, dtype=torch.float64),
        poison_planes,
        plane_buffers,
        names=("latent", "rotary_key"),
        kv_heads=1,
        windows=(None,),
    ),
}
