"""What every cache of keys and values can do. ``tests/contract`` holds each of them to it.

Axes: ``B`` batch, ``G`` KV heads, ``T`` new tokens, ``n`` held tokens, ``D`` head dim, ``Dv`` value head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from headwise.cache.held import Held

__all__ = ["CacheFullError", "KeyValueCache"]


class CacheFullError(ValueError):
    """The tokens don't fit. Nothing was stored and nothing was lost."""


@runtime_checkable
class KeyValueCache(Protocol):
    """Keys and values of one layer for the tokens seen so far.

    A cache is for inference: it stores numbers, not graphs. The sequences of a batch may differ in length.
    """

    @property
    def batch_size(self) -> int:
        """``B``."""

    @property
    def num_kv_heads(self) -> int:
        """``G``."""

    @property
    def head_dim(self) -> int:
        """``D``, the width of a key."""

    @property
    def value_head_dim(self) -> int:
        """``Dv``, the width of a value."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of what is appended and handed out."""

    @property
    def device(self) -> torch.device:
        """Where the memory lies."""

    @property
    def length(self) -> int:
        """How many tokens were appended and not rolled back: of the longest sequence."""

    @property
    def lengths(self) -> Tensor:
        """The same of every sequence, int64 ``[B]``."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory held for keys and values, scales included; of a pool, that of the blocks held."""

    @property
    def nbytes_logical(self) -> int:
        """Bytes that the held tokens take: the part of ``nbytes`` in use."""

    def append(self, key: Tensor, value: Tensor, lengths: Tensor | Sequence[int] | None = None) -> tuple[Held, ...]:
        """Store new tokens behind the held ones.

        Args:
            key: ``[B, G, T, D]``; ``T`` may be 0.
            value: ``[B, G, T, Dv]``.
            lengths: how many leading tokens of each sequence are real, ``[B]``; the rest is padding on the right and
                isn't stored. Default: all ``T``.

        Returns:
            All that the new tokens may see, themselves included: with a window smaller than ``T`` this is more than
            the cache goes on to hold.

        Raises:
            TypeError: a dtype differs from the cache's.
            CacheFullError: the tokens don't fit.
            ValueError: a shape or device differs, or gradients would be lost. In every case nothing is stored and
                nothing is lost.
        """

    def held(self) -> tuple[Held, ...]:
        """All that the next token may see, itself not included."""

    def rollback(self, tokens: int | Tensor | Sequence[int]) -> None:
        """Forget the last ``tokens`` tokens, of all sequences or ``[B]``; what stays is as it was before, to the bit.

        Raises:
            ValueError: more than are held, a negative number, or more than the cache can take back. Nothing changes.
        """

    def check_rollback(self, tokens: int | Tensor | Sequence[int]) -> None:
        """Raise what :meth:`rollback` would raise, and change nothing: for several caches that go back together."""

    def reorder(self, batch_index: Tensor | Sequence[int]) -> None:
        """Sequence ``b`` becomes a copy of what sequence ``batch_index[b]`` was; ``B`` entries (beam search).

        Raises:
            ValueError: another number of entries, or one out of range.
        """

    def select(self, batch_index: Tensor | Sequence[int]) -> None:
        """As :meth:`reorder`, with any number of entries (at least one): ``B`` becomes that number.

        Raises:
            ValueError: no entry, or one out of range.
        """

    def snapshot(self) -> Any:
        """The present contents, to be handed to :meth:`restore` as often as one likes; later changes don't reach it."""

    def restore(self, snapshot: Any) -> None:
        """Be as at the time of the snapshot, batch size included.

        Raises:
            TypeError: this is no snapshot of a cache of this kind.
            ValueError: it was taken from another cache.
        """

    def reset(self) -> None:
        """Forget all tokens; the memory is kept, or given back to the pool it came from."""
