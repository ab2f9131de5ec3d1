"""What a cache hands out: parts over which attention runs, as two tensors or as they lie in the cache's memory.

Axes: ``B`` batch, ``G`` KV heads, ``n`` held tokens, ``D`` head dim, ``Dv`` value head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.native_caches import Segment

__all__ = ["Held", "Stored"]


class Stored:
    """Keys and values in another form than one tensor each. Good until their cache changes.

    Args:
        shape: ``[B, heads, n]``, where ``n`` is that of the longest sequence.
        widths: ``D`` and ``Dv``.
        like: a tensor of their dtype and device.
        whole: makes both tensors, ``[B, heads, n, D]`` and ``[B, heads, n, Dv]``.
        segments: tells where the compiled kernels find them; None where they can't read them.
        is_current: whether the cache is as it was when it handed them out.
    """

    __slots__ = ("_is_current", "_segments", "_whole", "device", "dtype", "shape", "widths")

    def __init__(
        self,
        shape: tuple[int, int, int],
        widths: tuple[int, int],
        like: Tensor,
        whole: Callable[[], tuple[Tensor, Tensor]],
        segments: Callable[[], Sequence[Segment]] | None,
        is_current: Callable[[], bool],
    ) -> None:
        self.shape, self.widths, self.dtype, self.device = shape, widths, like.dtype, like.device
        self._whole, self._segments, self._is_current = whole, segments, is_current

    @property
    def is_readable(self) -> bool:
        """Whether the compiled kernels know how to read them where they lie."""
        return self._segments is not None

    def segments(self) -> Sequence[Segment]:
        """Where the compiled kernels find them.

        Raises:
            ValueError: the cache has changed since.
        """
        self._check()
        assert self._segments is not None  # the caller asked before
        return self._segments()

    def whole(self) -> tuple[Tensor, Tensor]:
        """Both tensors, copies that live as long as they are used.

        Raises:
            ValueError: the cache has changed since.
        """
        self._check()
        return self._whole()

    def stand_ins(self) -> tuple[Tensor, Tensor]:
        """Two tensors of the same shape that take no memory and hold nothing, for checks of shapes."""
        nothing = torch.empty((1, 1, 1, 1), dtype=self.dtype, device=self.device)
        key, value = (nothing.expand(*self.shape, width) for width in self.widths)
        return key, value

    def _check(self) -> None:
        if not self._is_current():
            raise ValueError(
                "Held: expected a part that is read before its cache changes, got one of before; run attention over "
                "it or read its keys first, or take a new one from held()"
            )


class Held:
    """What some KV heads of a cache hold, as attention needs it: ``attend`` runs over one or several of these.

    A cache in which every head sees equally far hands out one part with all heads. With windows per head, heads that
    see equally far are one part. A cache that stores something else than tensors of keys and values makes those when
    they are first asked for, which must be before it changes; ``attend`` doesn't need them for few queries on a CPU.

    Attributes:
        kv_heads: the KV heads of this part, in the order of axis 1.
        keys: ``[B, len(kv_heads), n, D]``; may be a view of the cache's memory, which the next call may overwrite.
        values: ``[B, len(kv_heads), n, Dv]``.
        start: absolute position of ``keys[:, :, 0]``, for all sequences or ``[B]``.
        offset: where the first query of the append stands, counted from ``keys[:, :, 0]``; for all sequences or
            ``[B]``. Without an append: where the next token will stand.
        key_lengths: how many leading keys each sequence holds, ``[B]``, or None where all hold ``n``. What lies behind
            is memory that must not be read: it may be NaN. With windows, older tokens than a sequence can see may lie
            before; the window hides them.
        stored: keys and values as they lie in the cache, or None where they are ``keys`` and ``values``.
        queries: how many tokens the append brought that handed this out, padding included: so many queries run over
            it. None where no append did, and any number may.
    """

    __slots__ = ("_keys", "_values", "key_lengths", "kv_heads", "offset", "queries", "start", "stored")

    def __init__(
        self,
        kv_heads: tuple[int, ...],
        keys: Tensor | None,
        values: Tensor | None,
        start: int | Tensor,
        offset: int | Tensor,
        key_lengths: Tensor | None,
        stored: Stored | None = None,
        queries: int | None = None,
    ) -> None:
        self.kv_heads, self.start, self.offset, self.key_lengths = kv_heads, start, offset, key_lengths
        self._keys, self._values, self.stored, self.queries = keys, values, stored, queries

    @property
    def keys(self) -> Tensor:
        """``[B, len(kv_heads), n, D]``."""
        if self._keys is None:
            self._make_whole()
        assert self._keys is not None
        return self._keys

    @property
    def values(self) -> Tensor:
        """``[B, len(kv_heads), n, Dv]``."""
        if self._values is None:
            self._make_whole()
        assert self._values is not None
        return self._values

    @property
    def tokens(self) -> int:
        """``n``, of the longest sequence."""
        return self.keys.shape[2] if self.stored is None else self.stored.shape[2]

    @property
    def is_whole(self) -> bool:
        """Whether keys and values are there as tensors, given or made already."""
        return self._keys is not None

    def _make_whole(self) -> None:
        assert self.stored is not None  # else both were given
        self._keys, self._values = self.stored.whole()

    def _fields(self) -> tuple[Any, ...]:
        return self.kv_heads, self.keys, self.values, self.start, self.offset, self.key_lengths

    def _replace(self, **changes: Any) -> Held:
        """The same with other fields, as named tuples have it; keys and values are tensors then."""
        names = ("kv_heads", "keys", "values", "start", "offset", "key_lengths")
        return Held(**(dict(zip(names, self._fields(), strict=True)) | {"queries": self.queries} | changes))

    def __reduce__(self) -> tuple[Any, ...]:
        # How to read what lies in a cache can't leave it; copies and pickles take the tensors.
        return Held, (*self._fields(), None, self.queries)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._fields())

    def __getitem__(self, index: Any) -> Any:
        return self._fields()[index]

    def __len__(self) -> int:
        return len(self._fields())

    def __repr__(self) -> str:
        return f"<keys and values of KV heads {list(self.kv_heads)}, {self.tokens} tokens>"
