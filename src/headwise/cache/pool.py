"""Blocks of tokens that several caches share, with a count of who holds each.

A block has ``block_size`` slots for the keys and values of all KV heads. Who holds a block may read it; it is written
only by the one holder it has. A block that nobody holds any more is free.

Source: Kwon et al. 2023 (arXiv:2309.06180), sections 4.2 and 4.4.

Axes: ``B`` batch, ``G`` KV heads, ``D`` head dim, ``Dv`` value head dim.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.cache.counts import check_sizes
from headwise.cache.planes import Planes
from headwise.cache.protocol import CacheFullError

__all__ = ["BlockPool", "BlockTables"]


class BlockPool:
    """Memory for ``num_blocks`` blocks, allocated once.

    In a deep copy only those hold blocks that were copied along with it (``copy.deepcopy([cache, other])`` copies a
    pool that both share once); alone, all of its blocks are free.

    Args:
        num_blocks: blocks in all.
        block_size: tokens per block.
        num_kv_heads: ``G``.
        head_dim: ``D``.
        value_head_dim: ``Dv``, default ``D``.
        dtype: default PyTorch's default dtype.
        device: default PyTorch's default device.

    Raises:
        ValueError: a size is no positive integer.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        value_head_dim: int | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        value_head_dim = head_dim if value_head_dim is None else value_head_dim
        sizes = {"num_blocks": num_blocks, "block_size": block_size, "num_kv_heads": num_kv_heads}
        check_sizes("BlockPool", sizes | {"head_dim": head_dim, "value_head_dim": value_head_dim})
        # A block takes the place of a sequence: [blocks, G, block_size, width].
        kinds = [(head_dim, dtype), (value_head_dim, dtype)]
        self.planes = Planes.empty((num_blocks, num_kv_heads, block_size), kinds, device)
        self._have_all_free(num_blocks)

    def _have_all_free(self, num_blocks: int) -> None:
        self._holders = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # the lowest number is handed out first

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return len(self._holders)

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.planes.slots

    @property
    def nbytes(self) -> int:
        """Bytes allocated: ``num_blocks * block_size * G * (D + Dv) * itemsize``."""
        return self.planes.nbytes

    @property
    def nbytes_logical(self) -> int:
        """Bytes of the blocks that someone holds, each counted once however many hold it."""
        return (self.num_blocks - self.num_free) * self.block_nbytes

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block."""
        return self.block_size * self.planes.token_nbytes

    def holders(self, block: int) -> int:
        """How many hold a block."""
        return self._holders[block]

    def take(self, count: int, who: str) -> list[int]:
        """Blocks that were free, each held once from now on.

        Raises:
            CacheFullError: there are fewer; none is taken then.
        """
        if count > len(self._free):
            raise CacheFullError(
                f"{who}: expected to need at most {self.num_free} blocks (those that are free of {self.num_blocks} in "
                f"the pool), got a need of {count}; roll back or reset a cache of the pool, drop snapshots, or build a "
                "larger BlockPool"
            )
        # One by one: a cache that is collected meanwhile puts its blocks on the same pile.
        taken = [self._free.pop() for _ in range(count)]
        self.hold(taken)
        return taken

    def hold(self, blocks: Iterable[int]) -> None:
        """One more holder for each of some blocks."""
        for block in blocks:
            self._holders[block] += 1

    def drop(self, blocks: Iterable[int]) -> None:
        """One holder less for each; without any a block is free."""
        for block in blocks:
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._free.append(block)

    def adopt(self, blocks: Iterable[int]) -> None:
        """As :meth:`hold`, of blocks that may be free: for a copied table in the pool that was copied with it."""
        blocks = list(blocks)
        self.hold(blocks)
        adopted = set(blocks)
        self._free = [block for block in self._free if block not in adopted]

    def __copy__(self) -> BlockPool:
        raise TypeError("BlockPool: expected copy.deepcopy, got copy.copy; two pools can't deal out the same memory")

    def __getstate__(self) -> dict[str, Planes]:
        # Those who hold blocks here don't hold them in a copy, unless they are copied with it: then they say so.
        return {"planes": self.planes}

    def __setstate__(self, state: dict[str, Planes]) -> None:
        self.planes = state["planes"]
        self._have_all_free(self.planes.tensors[0].shape[0])

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks."""
        from_blocks, to_blocks = (torch.tensor(blocks, device=self.planes.device) for blocks in (sources, targets))
        for tensor in self.planes.tensors:
            tensor.index_copy_(0, to_blocks, tensor.index_select(0, from_blocks))

    def write(self, tokens: Sequence[Tensor], rows: Tensor, source: Tensor, blocks: Tensor, slots: Tensor) -> None:
        """Token ``source[i]`` of sequence ``rows[i]`` goes to slot ``slots[i]`` of ``blocks[i]``; indices ``[N]``."""
        device = self.planes.device
        rows, source, blocks, slots = (index.to(device) for index in (rows, source, blocks, slots))
        for tensor, new in zip(self.planes.tensors, tokens, strict=True):
            tensor.transpose(1, 2)[blocks, slots] = new.transpose(1, 2)[rows, source]

    def write_stretch(self, tokens: Sequence[Tensor], row: int, source: int, block: int, slot: int, count: int) -> None:
        """The same for ``count`` neighbours that go to neighbouring slots of one block, without tensors of indices."""
        for tensor, new in zip(self.planes.tensors, tokens, strict=True):
            tensor[block, :, slot : slot + count] = new[row, :, source : source + count]

    def gather(self, table: Tensor) -> tuple[Tensor, ...]:
        """The blocks of every sequence side by side: for each tensor ``[B, G, blocks * block_size, width]``, a copy.

        Args:
            table: blocks of each sequence ``[B, blocks]``, on the host.
        """
        (B, blocks), G = table.shape, self.planes.tensors[0].shape[1]
        # Row b * G + g of a flat pool is head g of block b: one gather gives heads before blocks, without a transpose.
        flat = (table[:, None, :] * G + torch.arange(G)[:, None]).flatten().to(self.planes.device)
        return tuple(
            tensor.flatten(0, 1).index_select(0, flat).view(B, G, blocks * self.block_size, tensor.shape[3])
            for tensor in self.planes.tensors
        )

    def __repr__(self) -> str:
        keys, values = self.planes.tensors
        return (
            f"BlockPool(num_blocks={self.num_blocks}, block_size={self.block_size}, num_kv_heads={keys.shape[1]}, "
            f"head_dim={keys.shape[3]}, value_head_dim={values.shape[3]}, dtype={keys.dtype}, "
            f"device={str(keys.device)!r}, num_free={self.num_free})"
        )


class BlockTables:
    """Which blocks hold each of some sequences, in order. The blocks are let go when this is collected.

    Args:
        pool: where the blocks lie.
        rows: the blocks of each sequence, which are held already. They are changed by the methods only.
    """

    def __init__(self, pool: BlockPool, rows: list[list[int]]) -> None:
        self.pool, self.rows = pool, rows
        # The same as numbers of a tensor, brought up to date when it is asked for: a long table costs as much to make
        # as a step of decoding.
        self._tensor = torch.zeros((len(rows), 0), dtype=torch.int64)
        self._written = [0] * len(rows)
        weakref.finalize(self, _let_go, pool, rows).atexit = False

    def __reduce__(self) -> tuple[Any, ...]:
        # copy.deepcopy and pickle take the pool along, once for all tables of it that they meet.
        return _adopting, (self.pool, self.rows)

    def __copy__(self) -> BlockTables:
        return self.copy()

    def copy(self, index: Sequence[int] | None = None) -> BlockTables:
        """Tables of the same blocks, each held once more; of all sequences or of some."""
        chosen = range(len(self.rows)) if index is None else index
        rows = [list(self.rows[source]) for source in chosen]
        for row in rows:
            self.pool.hold(row)
        return BlockTables(self.pool, rows)

    def become(self, other: BlockTables) -> None:
        """Take over the blocks of tables that nobody uses besides; the blocks held so far are let go."""
        own, others = list(self.rows), list(other.rows)
        other.rows.clear()
        self.rows[:] = others
        self._tensor, self._written = self._tensor.new_zeros(len(others), 0), [0] * len(others)
        for row in own:
            self.pool.drop(row)

    def extend(self, sequence: int, blocks: Iterable[int]) -> None:
        """More blocks for a sequence, which are held already."""
        self.rows[sequence].extend(blocks)

    def replace(self, sequence: int, number: int, block: int) -> None:
        """Another block, which is held already, in place of one that is let go of by the caller."""
        self.rows[sequence][number] = block
        self._written[sequence] = min(self._written[sequence], number)

    def cut(self, sequence: int, blocks: int) -> None:
        """Let go of the blocks of a sequence behind the first ``blocks``."""
        row = self.rows[sequence]
        gone = row[blocks:]
        del row[blocks:]
        self._written[sequence] = min(self._written[sequence], len(row))
        self.pool.drop(gone)

    def as_tensor(self) -> Tensor:
        """int64 ``[B, most blocks of a sequence]`` on the host, a view that the next change may overwrite.

        Behind the end of a short sequence stand numbers of any blocks of the pool.
        """
        most = max(map(len, self.rows))
        if most > self._tensor.shape[1]:
            grown = self._tensor.new_zeros(len(self.rows), max(most, 2 * self._tensor.shape[1]))
            grown[:, : self._tensor.shape[1]] = self._tensor
            self._tensor = grown
        for sequence, (row, written) in enumerate(zip(self.rows, self._written, strict=True)):
            if written < len(row):
                self._tensor[sequence, written : len(row)] = torch.tensor(row[written:])
                self._written[sequence] = len(row)
        return self._tensor[:, :most]


def _adopting(pool: BlockPool, rows: list[list[int]]) -> BlockTables:
    """Tables in a pool that doesn't know of them yet."""
    for row in rows:
        pool.adopt(row)
    return BlockTables(pool, rows)


def _let_go(pool: BlockPool, rows: list[list[int]]) -> None:
    for row in rows:
        pool.drop(row)
        row.clear()
