"""A cache of fixed capacity in one block of memory per tensor: allocated once, written in place, never concatenated.

Axes: ``B`` batch, ``G`` KV heads, ``T`` new tokens, ``D`` head dim, ``Dv`` value head dim.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headwise.cache.base import BaseCache
from headwise.cache.counts import Counts, check_dtype, check_sizes
from headwise.cache.held import Held
from headwise.cache.planes import Planes

__all__ = ["DenseCache", "PlaneCache"]


class PlaneCache(BaseCache):
    """A cache whose tokens lie in planes of ``capacity`` slots, token ``j`` of a sequence in slot ``j``."""

    _planes: Planes

    @property
    def capacity(self) -> int:
        """How many tokens of each sequence fit."""
        return self._planes.slots

    @property
    def nbytes(self) -> int:
        """Bytes allocated, for ``B * G * capacity`` tokens."""
        return self._planes.nbytes

    @property
    def nbytes_logical(self) -> int:
        """Bytes of the held tokens."""
        return sum(self._counts) * self._planes.token_nbytes

    def _like(self) -> Tensor:
        return self._planes.tensors[0]

    def _store(self, tokens: list[Tensor], new: Counts, after: Counts) -> tuple[Held, ...]:
        self._refuse_beyond(self.capacity, new, after)
        self._planes.write(tokens, self._counts, new)
        return self._hand_out(self._counts, after)

    def _select(self, index: Counts) -> None:
        self._planes.select(index, self.length)

    def _copy(self) -> tuple[Tensor, ...]:
        return self._planes.copy(self.length)

    def _paste(self, contents: tuple[Tensor, ...]) -> None:
        self._planes.paste(contents)

    def _extra(self) -> dict[str, Any]:
        return {"capacity": self.capacity}


class DenseCache(PlaneCache):
    """Keys and values of one layer, up to ``capacity`` tokens for each of ``batch_size`` sequences.

    While all sequences are equally long, an append writes slices and hands out views: nothing is copied but the new
    tokens, and nothing waits for the device. Slots that were never written, or were rolled back, are handed out only
    where another sequence is longer, and ``key_lengths`` marks them as unread then.

    Args:
        batch_size: ``B``.
        num_kv_heads: ``G``; query heads share them, so they are stored once.
        capacity: tokens per sequence.
        head_dim: ``D``.
        value_head_dim: ``Dv``, default ``D``.
        dtype: default PyTorch's default dtype.
        device: default PyTorch's default device.

    Raises:
        TypeError: ``dtype`` is no floating one that attention knows.
        ValueError: a size is no positive integer.
    """

    def __init__(
        self,
        batch_size: int,
        num_kv_heads: int,
        capacity: int,
        head_dim: int,
        value_head_dim: int | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        value_head_dim = head_dim if value_head_dim is None else value_head_dim
        sizes = {"batch_size": batch_size, "num_kv_heads": num_kv_heads, "capacity": capacity}
        check_sizes("DenseCache", sizes | {"head_dim": head_dim, "value_head_dim": value_head_dim})
        check_dtype("DenseCache", dtype)
        super().__init__(batch_size, num_kv_heads, head_dim, value_head_dim)
        widths = [(head_dim, dtype), (value_head_dim, dtype)]
        self._planes = Planes.empty((batch_size, num_kv_heads, capacity), widths, device)

    @property
    def keys(self) -> Tensor:
        """The held keys ``[B, G, length, D]``, a view; of a shorter sequence only the first ``lengths[b]`` count."""
        return self._planes.views(0, self.length)[0]

    @property
    def values(self) -> Tensor:
        """The held values ``[B, G, length, Dv]``, a view like :attr:`keys`."""
        return self._planes.views(0, self.length)[1]

    def _hand_out(self, before: Counts, after: Counts) -> tuple[Held, ...]:
        keys, values = self._planes.views(0, max(after))
        return self._all_heads(keys, values, before, after)
