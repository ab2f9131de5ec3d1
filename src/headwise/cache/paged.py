"""A cache in blocks of a pool: sequences take what they need, and share what they have in common.

Axes: ``B`` batch, ``G`` KV heads, ``T`` new tokens, ``D`` head dim, ``Dv`` value head dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.cache.base import BaseCache
from headwise.cache.counts import Counts, check_sizes, read_index
from headwise.cache.held import Held
from headwise.cache.planes import token_index
from headwise.cache.pool import BlockPool
from headwise.cache.tables import BlockTables
from headwise.native_caches import Segment

__all__ = ["PagedCache"]

# Up to so many slices are written one by one; beyond, tensors of indices cost less.
_FEW_STRETCHES = 4


class PagedCache(BaseCache):
    """Keys and values of one layer in blocks of a :class:`BlockPool`, which other caches may draw from as well.

    ``reorder``, ``select``, ``snapshot``, ``restore`` and :meth:`share` copy no token: they hold the same blocks once
    more. A block is copied when one of several holders writes to it. Blocks return to the pool on ``rollback`` and
    ``reset``, and when a cache or a snapshot is collected or (:meth:`Snapshot.release`) released.

    ``copy.deepcopy`` copies the pool as well, with no other holders than those that are copied in the same call.

    Attention of a few queries on a CPU reads the blocks where they lie; for all else what is handed out is gathered
    into one tensor, a copy.

    Args:
        pool: where the blocks come from.
        batch_size: ``B``.

    Raises:
        TypeError: ``pool`` is no :class:`BlockPool`.
        ValueError: ``batch_size`` is no positive integer.
    """

    def __init__(self, pool: BlockPool, batch_size: int) -> None:
        if not isinstance(pool, BlockPool):
            raise TypeError(f"PagedCache: expected pool to be a BlockPool, got {type(pool).__name__}; build one first")
        check_sizes("PagedCache", {"batch_size": batch_size})
        keys, values = pool.planes.tensors
        super().__init__(batch_size, keys.shape[1], keys.shape[3], values.shape[3])
        self._pool = pool
        self._tables = BlockTables(pool, [[] for _ in range(batch_size)])

    @property
    def pool(self) -> BlockPool:
        """Where the blocks come from."""
        return self._pool

    @property
    def block_tables(self) -> tuple[Counts, ...]:
        """The blocks of each sequence, in order."""
        return tuple(map(tuple, self._tables.rows))

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks that this cache holds, each counted once. Tables are Python lists and not counted."""
        return len({block for row in self._tables.rows for block in row}) * self._pool.block_nbytes

    @property
    def nbytes_logical(self) -> int:
        """Bytes of the tokens in these blocks, shared ones counted once."""
        size, filled = self._pool.block_size, dict[int, int]()
        for row, count in zip(self._tables.rows, self._counts, strict=True):
            for number, block in enumerate(row):
                filled[block] = max(filled.get(block, 0), min(size, count - number * size))
        return sum(filled.values()) * self._pool.planes.token_nbytes

    def share(
        self, other: PagedCache, tokens: int | None = None, *, sequence: int = 0, into: Sequence[int] | None = None
    ) -> None:
        """Begin empty sequences with the first tokens of another cache's, such as a system prompt, without a copy.

        Args:
            other: a cache of the same pool (it may be this one). It can go on, or be dropped.
            tokens: how many of its tokens to begin with; default all.
            sequence: which sequence of ``other``.
            into: which sequences of this cache; default all.

        Raises:
            TypeError: ``other`` is no paged cache.
            ValueError: the pools differ, a number is out of range, or a sequence isn't empty. Nothing changes.
        """
        if not isinstance(other, PagedCache):
            raise TypeError(f"share: expected a PagedCache of the same pool, got {type(other).__name__}")
        into = read_index("share", range(self.batch_size) if into is None else into, self.batch_size)
        if other.pool is not self._pool:
            raise ValueError("share: expected a cache of the same pool, got one of another; blocks can't leave theirs")
        read_index("share", [sequence], other.batch_size)
        there = other._counts[sequence]
        tokens = there if tokens is None else tokens
        if not 0 <= tokens <= there:
            raise ValueError(f"share: expected 0 to {there} tokens (those of sequence {sequence}), got {tokens}")
        for row in into:
            if self._counts[row] or into.count(row) > 1:
                raise ValueError(
                    f"share: expected empty sequences, each named once, got sequence {row} with {self._counts[row]} "
                    f"tokens in {list(into)}; roll it back first"
                )
        prefix = other._tables.rows[sequence][: self._blocks(tokens)]
        for row in into:
            self._pool.hold(prefix)
            self._tables.extend(row, prefix)
        self._counts = tuple(tokens if row in into else count for row, count in enumerate(self._counts))

    def reset(self) -> None:
        """Forget all tokens; the blocks return to the pool."""
        self._forget((0,) * self.batch_size)
        super().reset()

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._pool.block_size)

    def _like(self) -> Tensor:
        return self._pool.planes.tensors[0]

    def _store(self, tokens: list[Tensor], new: Counts, after: Counts) -> tuple[Held, ...]:
        copied = self._shared_blocks(new)
        growth = [self._blocks(end) - len(row) for end, row in zip(after, self._tables.rows, strict=True)]
        taken = self._pool.take(len(copied) + sum(growth), type(self).__name__)
        self._replace(copied, taken[: len(copied)])
        fresh = iter(taken[len(copied) :])
        for sequence, blocks in enumerate(growth):
            self._tables.extend(sequence, [next(fresh) for _ in range(blocks)])
        self._write(tokens, new)
        return self._hand_out(self._counts, after)

    def _shared_blocks(self, new: Counts) -> list[tuple[int, int]]:
        """(sequence, number in its table) of half-filled blocks that are about to be written and have other holders.

        Of several sequences of this cache that write the same block, the last holder may keep it.
        """
        shared, left = [], dict[int, int]()
        for sequence, (count, more) in enumerate(zip(self._counts, new, strict=True)):
            number, filled = divmod(count, self._pool.block_size)
            if not more or not filled:
                continue
            block = self._tables.rows[sequence][number]
            holders = left.get(block, self._pool.holders(block))
            if holders > 1:
                shared.append((sequence, number))
                left[block] = holders - 1
        return shared

    def _replace(self, places: Sequence[tuple[int, int]], copies: Sequence[int]) -> None:
        if not places:
            return
        blocks = [self._tables.rows[sequence][number] for sequence, number in places]
        self._pool.copy(blocks, copies)
        for (sequence, number), copied in zip(places, copies, strict=True):
            self._tables.replace(sequence, number, copied)
        self._pool.drop(blocks)

    def _write(self, tokens: list[Tensor], new: Counts) -> None:
        stretches = list(self._stretches(new))
        if len(stretches) <= _FEW_STRETCHES:
            for stretch in stretches:
                self._pool.write_stretch(tokens, *stretch)
            return
        rows, offsets = token_index(new)
        positions = torch.tensor(self._counts)[rows] + offsets
        blocks = self._tables.as_tensor()[rows, positions // self._pool.block_size]
        self._pool.write(tokens, rows, offsets, blocks, positions % self._pool.block_size)

    def _stretches(self, new: Counts) -> Iterator[tuple[int, int, int, int, int]]:
        """(sequence, first new token, block, slot, tokens) of what goes into each block."""
        size = self._pool.block_size
        for sequence, (begin, count) in enumerate(zip(self._counts, new, strict=True)):
            done = 0
            while done < count:
                number, slot = divmod(begin + done, size)
                tokens = min(size - slot, count - done)
                yield sequence, done, self._tables.rows[sequence][number], slot, tokens
                done += tokens

    def _hand_out(self, before: Counts, after: Counts) -> tuple[Held, ...]:
        return self._all_stored(lambda: self._whole(after), lambda: self._segments(after), before, after)

    def _segments(self, after: Counts) -> list[Segment]:
        """Where all tokens lie, for the compiled kernels."""
        zeros = (0,) * len(after)
        return [Segment(self._pool.planes.memory, zeros, after, zeros, self._tables.as_tensor())] if max(after) else []

    def _whole(self, after: Counts) -> tuple[Tensor, Tensor]:
        """All tokens, the blocks of every sequence side by side."""
        # The last block may have more slots than are held.
        keys, values = (tensor[:, :, : max(after)] for tensor in self._pool.gather(self._tables.as_tensor()))
        return keys, values

    def _forget(self, after: Counts) -> None:
        for sequence, end in enumerate(after):
            self._tables.cut(sequence, self._blocks(end))

    def _select(self, index: Counts) -> None:
        self._tables.become(self._tables.copy(index))

    def _copy(self) -> BlockTables:
        return self._tables.copy()

    def _paste(self, contents: BlockTables) -> None:
        self._tables.become(contents.copy())

    def _extra(self) -> dict[str, Any]:
        return {"block_size": self._pool.block_size}
