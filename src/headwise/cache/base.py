"""What all caches share: the counts, the checks, and the order in which things happen.

Every change is decided before anything is written, so that a refusal leaves the cache as it was. A kind of cache says
only how its memory is written, read, chosen from and copied.

Axes: ``B`` batch, ``G`` KV heads, ``T`` new tokens, ``D`` head dim, ``Dv`` value head dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.cache.copies import DeepCopies
from headwise.cache.counts import (
    Counts,
    check_tokens,
    is_uniform,
    per_sequence,
    read_counts,
    read_index,
    shared_or_each,
    what_differs,
)
from headwise.cache.held import Held, Stored
from headwise.cache.protocol import CacheFullError
from headwise.native_caches import Segment

__all__ = ["BaseCache", "Snapshot"]


class Snapshot:
    """The contents of a cache at one time, for its ``restore``. Its memory is freed with it, or by :meth:`release`.

    Attributes:
        lengths: how many tokens each sequence had.
    """

    def __init__(self, kind: type, owner: object, lengths: Counts, contents: Any) -> None:
        self.lengths = lengths
        self._kind = kind
        self._owner = owner
        self._contents = contents

    def release(self) -> None:
        """Give its memory back now; it can't be restored any more."""
        self._contents = None

    def __repr__(self) -> str:
        return f"<snapshot of a {self._kind.__name__} with lengths {list(self.lengths)}>"


class BaseCache(DeepCopies, ABC):
    """Counts and checks of a cache; see :class:`~headwise.cache.KeyValueCache` for what the methods promise.

    Args:
        batch_size: ``B``.
        num_kv_heads: ``G``.
        head_dim: ``D``.
        value_head_dim: ``Dv``.
    """

    def __init__(self, batch_size: int, num_kv_heads: int, head_dim: int, value_head_dim: int) -> None:
        self._num_kv_heads, self._head_dim, self._value_head_dim = num_kv_heads, head_dim, value_head_dim
        self._counts: Counts = (0,) * batch_size
        self._identity = object()  # what snapshots know their cache by
        self._changes = 0  # what parts that were handed out know their time by

    @property
    def batch_size(self) -> int:
        """``B``."""
        return len(self._counts)

    @property
    def num_kv_heads(self) -> int:
        """``G``."""
        return self._num_kv_heads

    @property
    def head_dim(self) -> int:
        """``D``, the width of a key."""
        return self._head_dim

    @property
    def value_head_dim(self) -> int:
        """``Dv``, the width of a value."""
        return self._value_head_dim

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of what is appended and handed out."""
        return self._like().dtype

    @property
    def device(self) -> torch.device:
        """Where the memory lies."""
        return self._like().device

    @property
    def length(self) -> int:
        """How many tokens were appended and not rolled back: of the longest sequence."""
        return max(self._counts)

    @property
    def lengths(self) -> Tensor:
        """The same of every sequence, int64 ``[B]``."""
        return per_sequence(self._counts, self.device)

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes allocated."""

    @property
    @abstractmethod
    def nbytes_logical(self) -> int:
        """Bytes that the held tokens take."""

    def append(self, key: Tensor, value: Tensor, lengths: Tensor | Sequence[int] | None = None) -> tuple[Held, ...]:
        """Store new tokens behind the held ones.

        Args:
            key: ``[B, G, T, D]``; ``T`` may be 0.
            value: ``[B, G, T, Dv]``.
            lengths: how many leading tokens of each sequence are real, ``[B]``; default all ``T``. A tensor of another
                device than the host is waited for.

        Returns:
            All that the new tokens may see, themselves included.

        Raises:
            TypeError: a dtype differs from the cache's.
            CacheFullError: the tokens don't fit.
            ValueError: a shape or device differs, or gradients would be lost. In every case nothing is stored and
                nothing is lost.
        """
        return self._append({"key": (key, self._head_dim), "value": (value, self._value_head_dim)}, lengths)

    def _append(
        self, named: Mapping[str, tuple[Tensor, int]], lengths: Tensor | Sequence[int] | None
    ) -> tuple[Held, ...]:
        tokens = check_tokens(named, self.batch_size, self._num_kv_heads, self._like())
        new = (tokens,) * self.batch_size if lengths is None else read_counts("lengths", lengths, self.batch_size)
        if min(new) < 0 or max(new) > tokens:
            raise ValueError(
                f"lengths: expected numbers from 0 to {tokens} (the tokens that came), got {list(new)}; they count "
                "the leading tokens that are real"
            )
        after = tuple(count + more for count, more in zip(self._counts, new, strict=True))
        changes = 1 if max(new) else 0
        self._changes += changes
        try:
            held = self._store([tensor.detach() for tensor, _ in named.values()], new, after)
        except CacheFullError:
            self._changes -= changes  # it is as it was
            raise
        self._counts = after
        for part in held:
            part.queries = tokens
        return held

    def held(self) -> tuple[Held, ...]:
        """All that the next token may see, itself not included."""
        return self._hand_out(self._counts, self._counts)

    def rollback(self, tokens: int | Tensor | Sequence[int]) -> None:
        """Forget the last ``tokens`` tokens, of all sequences or ``[B]``; what stays is as it was before, to the bit.

        Raises:
            TypeError: something is no integer.
            ValueError: more than are held, a negative number, or more than the cache can take back. Nothing changes.
        """
        after = self._after_rollback(tokens)
        if after == self._counts:
            return
        self._changes += 1
        self._forget(after)
        self._counts = after

    def check_rollback(self, tokens: int | Tensor | Sequence[int]) -> None:
        """Raise what :meth:`rollback` would raise, and change nothing: for several caches that go back together."""
        self._after_rollback(tokens)

    def _after_rollback(self, tokens: int | Tensor | Sequence[int]) -> Counts:
        """How many tokens each sequence would keep, or a refusal."""
        for sequence, (count, back) in enumerate(
            zip(self._counts, counts := read_counts("rollback", tokens, self.batch_size), strict=True)
        ):
            if not 0 <= back <= count:
                where = "" if is_uniform(self._counts) and is_uniform(counts) else f" of sequence {sequence}"
                raise ValueError(f"rollback: expected 0 to {count} tokens{where} (those that are held), got {back}")
        after = tuple(count - back for count, back in zip(self._counts, counts, strict=True))
        self._refuse_to_forget(after)
        return after

    def reorder(self, batch_index: Tensor | Sequence[int]) -> None:
        """Sequence ``b`` becomes a copy of what sequence ``batch_index[b]`` was; ``B`` entries (beam search).

        Raises:
            ValueError: another number of entries, or one out of range.
        """
        index = read_index("reorder", batch_index, self.batch_size)
        if len(index) != self.batch_size:
            raise ValueError(
                f"reorder: expected {self.batch_size} entries, one per sequence, got {len(index)}; "
                "select changes the batch size"
            )
        self._take(index)

    def select(self, batch_index: Tensor | Sequence[int]) -> None:
        """As :meth:`reorder`, with any number of entries (at least one): ``B`` becomes that number.

        Raises:
            ValueError: no entry, or one out of range.
        """
        self._take(read_index("select", batch_index, self.batch_size))

    def _take(self, index: Counts) -> None:
        self._changes += 1
        self._select(index)
        self._counts = tuple(self._counts[source] for source in index)

    def snapshot(self) -> Snapshot:
        """The present contents, to be handed to :meth:`restore` as often as one likes; later changes don't reach it."""
        return Snapshot(type(self), self._identity, self._counts, self._copy())

    def restore(self, snapshot: Snapshot) -> None:
        """Be as at the time of the snapshot, batch size included.

        Raises:
            TypeError: this is no snapshot of a cache of this kind.
            ValueError: it was taken from another cache, or was released.
        """
        name = type(self).__name__
        if not isinstance(snapshot, Snapshot) or snapshot._kind is not type(self):
            got = snapshot if isinstance(snapshot, Snapshot) else type(snapshot).__name__
            raise TypeError(f"restore: expected a snapshot of a {name}, got {got}")
        if snapshot._owner is not self._identity:
            raise ValueError(f"restore: expected a snapshot of this {name}, got one of another; restore it there")
        if snapshot._contents is None:
            raise ValueError("restore: expected a snapshot that still has its contents, got one that was released")
        self._changes += 1
        self._paste(snapshot._contents)
        self._counts = snapshot.lengths

    def reset(self) -> None:
        """Forget all tokens; the memory is kept."""
        self._changes += 1
        self._counts = (0,) * self.batch_size

    def _refuse_to_forget(self, after: Counts) -> None:
        """Raise where sequences can't become so short any more."""

    def _forget(self, after: Counts) -> None:
        """Prepare for shorter sequences."""

    @abstractmethod
    def _like(self) -> Tensor:
        """A tensor of the cache's dtype and device."""

    @abstractmethod
    def _store(self, tokens: list[Tensor], new: Counts, after: Counts) -> tuple[Held, ...]:
        """Write ``new[b]`` leading tokens of each sequence and hand out, or refuse before anything changes."""

    @abstractmethod
    def _hand_out(self, before: Counts, after: Counts) -> tuple[Held, ...]:
        """Everything that queries at positions ``before[b]`` to ``after[b]`` may see of what is stored."""

    @abstractmethod
    def _select(self, index: Counts) -> None:
        """Choose sequences; the counts follow."""

    @abstractmethod
    def _copy(self) -> Any:
        """The contents for a snapshot."""

    @abstractmethod
    def _paste(self, contents: Any) -> None:
        """Be what :meth:`_copy` gave; the counts follow."""

    def _refuse_beyond(self, capacity: int, new: Counts, after: Counts) -> None:
        """Raise CacheFullError where a sequence would grow beyond ``capacity``."""
        for sequence, (more, end) in enumerate(zip(new, after, strict=True)):
            if end > capacity:
                count = end - more
                which = "" if is_uniform(after) and is_uniform(new) else f" of sequence {sequence}"
                raise CacheFullError(
                    f"{type(self).__name__}: expected at most {capacity - count} more tokens{which} ({count} of "
                    f"{capacity} are held), got {more}; build it with a larger capacity, or roll back or reset it"
                )

    def _all_heads(self, keys: Tensor, values: Tensor, before: Counts, after: Counts) -> tuple[Held]:
        """One part with every head and every position from 0 on."""
        return (
            Held(
                kv_heads=tuple(range(self._num_kv_heads)),
                keys=keys,
                values=values,
                start=0,
                offset=shared_or_each(before, self.device),
                key_lengths=what_differs(after, keys.shape[2], self.device),
            ),
        )

    def _all_stored(
        self,
        whole: Callable[[], tuple[Tensor, Tensor]],
        segments: Callable[[], Sequence[Segment]],
        before: Counts,
        after: Counts,
    ) -> tuple[Held]:
        """The same of keys and values that aren't two tensors: ``whole`` makes those, kernels read ``segments``."""
        tokens, now = max(after), self._changes
        stored = Stored(
            shape=(self.batch_size, self._num_kv_heads, tokens),
            widths=(self._head_dim, self._value_head_dim),
            like=self._like(),
            whole=whole,
            segments=segments,
            is_current=lambda: self._changes == now,
        )
        heads, offset = tuple(range(self._num_kv_heads)), shared_or_each(before, self.device)
        return (Held(heads, None, None, 0, offset, what_differs(after, tokens, self.device), stored),)

    def _extra(self) -> dict[str, Any]:
        """The sizes of this kind of cache, for ``repr``."""
        return {}

    def __repr__(self) -> str:
        told = {"batch_size": self.batch_size, "num_kv_heads": self.num_kv_heads}
        told |= self._extra() | {"head_dim": self.head_dim, "value_head_dim": self.value_head_dim}
        words = [f"{name}={value!r}" for name, value in told.items()]
        words += [f"dtype={self.dtype}", f"device={str(self.device)!r}"]
        words.append(f"length={self.length}" if is_uniform(self._counts) else f"lengths={list(self._counts)}")
        return f"{type(self).__name__}({', '.join(words)})"
