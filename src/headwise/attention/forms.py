"""The forms in which relations can be read without a map: what the compiled kernels take.

Symbols: ``B`` batch, ``rows`` queries, ``S`` key length.

A relation that has a method ``form(queries, key_length)`` besides ``keys`` gives one of these for a block of queries;
both must say the same. One that has none serves too, but is read in PyTorch's operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

__all__ = ["EqualIds", "Members", "RelationForm", "SingleKey"]


@dataclass(frozen=True, eq=False)
class SingleKey:
    """One key for every query.

    Attributes:
        index: int64 ``[B or 1, rows]``, the position of the key; where there is no such key, none belongs.
    """

    index: Tensor

    def keys(self, key_length: int) -> Tensor:
        """Boolean ``[B or 1, rows, S]``."""
        return self.index[..., None] == torch.arange(key_length, device=self.index.device)

    def within(self, low: int, high: int) -> SingleKey:
        """The same for the keys ``low`` to ``high``, counted from 0."""
        return SingleKey(self.index - low)


@dataclass(frozen=True, eq=False)
class EqualIds:
    """The keys whose id is that of the query.

    Attributes:
        query_ids: int64 ``[B or 1, rows]``; no key belongs to a query with a negative one.
        key_ids: int64 ``[B or 1, S]``; a key with a negative one belongs to no query.
        excluded: int64 ``[B or 1, rows]``, a key that never belongs to this query, or None.
    """

    query_ids: Tensor
    key_ids: Tensor
    excluded: Tensor | None = None

    def keys(self, key_length: int) -> Tensor:
        """Boolean ``[B or 1, rows, S]``."""
        equal = self.query_ids[..., None] == self.key_ids[:, None]
        equal &= (self.query_ids >= 0)[..., None]
        return equal if self.excluded is None else equal & ~SingleKey(self.excluded).keys(key_length)

    def within(self, low: int, high: int) -> EqualIds:
        """The same for the keys ``low`` to ``high``, counted from 0."""
        excluded = None if self.excluded is None else self.excluded - low
        return EqualIds(self.query_ids, self.key_ids[:, low:high], excluded)


@dataclass(frozen=True, eq=False)
class Members:
    """The same keys for every query.

    Attributes:
        members: boolean ``[B or 1, S]``.
        rows: how many queries there are.
    """

    members: Tensor
    rows: int

    def keys(self, key_length: int) -> Tensor:
        """Boolean ``[B or 1, rows, S]``."""
        return self.members[:, None].expand(-1, self.rows, -1)

    def within(self, low: int, high: int) -> Members:
        """The same for the keys ``low`` to ``high``, counted from 0."""
        return Members(self.members[:, low:high], self.rows)


RelationForm: TypeAlias = SingleKey | EqualIds | Members
