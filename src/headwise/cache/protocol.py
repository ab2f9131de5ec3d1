"""What every cache of keys and values can do. ``tests/contract`` holds each of them to it.

Axes: ``B`` batch, ``G`` KV heads, ``T`` new tokens, ``D`` head dim, ``Dv`` value head dim.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class KeyValueCache(Protocol):
    """Keys and values of one layer for the tokens seen so far.

    A cache is for inference: it stores numbers, not graphs. What it hands out may be a view of its memory, which the
    next call may overwrite.
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
    def capacity(self) -> int:
        """How many tokens of each sequence fit."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of what is appended and handed out."""

    @property
    def device(self) -> torch.device:
        """Where the memory lies."""

    @property
    def length(self) -> int:
        """How many tokens of each sequence are held."""

    @property
    def keys(self) -> Tensor:
        """The held keys ``[B, G, length, D]``."""

    @property
    def values(self) -> Tensor:
        """The held values ``[B, G, length, Dv]``."""

    @property
    def nbytes(self) -> int:
        """Bytes allocated for keys and values."""

    @property
    def nbytes_logical(self) -> int:
        """Bytes that the held tokens take: the part of ``nbytes`` in use."""

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys ``[B, G, T, D]`` and values ``[B, G, T, Dv]`` behind the held ones, and hand out all of them.

        Raises:
            TypeError: a dtype differs from the cache's.
            ValueError: a shape or device differs, gradients would be lost, or the tokens don't fit. Nothing is
                stored and nothing is lost then.
        """

    def rollback(self, tokens: int) -> None:
        """Forget the last ``tokens`` tokens.

        Raises:
            ValueError: more than are held, or a negative number.
        """

    def reset(self) -> None:
        """Forget all tokens; the memory is kept."""
