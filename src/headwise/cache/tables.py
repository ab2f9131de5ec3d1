"""Which blocks of a pool hold each sequence, in order.

Axes: ``B`` batch.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.cache.planes import lasting
from headwise.cache.pool import BlockPool

__all__ = ["BlockTables"]


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
        self._tensor = _numbers(len(rows), 0)
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
        self._tensor, self._written = _numbers(len(others), 0), [0] * len(others)
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
            grown = _numbers(len(self.rows), max(most, 2 * self._tensor.shape[1]))
            grown[:, : self._tensor.shape[1]] = self._tensor
            self._tensor = grown
        for sequence, (row, written) in enumerate(zip(self.rows, self._written, strict=True)):
            if written < len(row):
                self._tensor[sequence, written : len(row)] = torch.tensor(row[written:])
                self._written[sequence] = len(row)
        return self._tensor[:, :most]


def _numbers(sequences: int, blocks: int) -> Tensor:
    return lasting(lambda: torch.zeros((sequences, blocks), dtype=torch.int64))


def _adopting(pool: BlockPool, rows: list[list[int]]) -> BlockTables:
    """Tables in a pool that doesn't know of them yet."""
    for row in rows:
        pool.adopt(row)
    return BlockTables(pool, rows)


def _let_go(pool: BlockPool, rows: list[list[int]]) -> None:
    for row in rows:
        pool.drop(row)
        row.clear()
