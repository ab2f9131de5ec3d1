"""A cache for causal sliding windows that keeps only what some head can still see.

Heads that see equally far share a buffer of ``left + margin + slack`` slots. Tokens are written one behind the other,
so that what is handed out is a view in order. When the buffer is full, the ``left + margin`` tokens that are still
needed move to its front: one copy every ``slack`` tokens. A true ring would save that copy, but hand out keys out of
order.

Axes: ``B`` batch, ``G`` KV heads, ``T`` new tokens, ``D`` head dim, ``Dv`` value head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.cache.base import BaseCache
from headwise.cache.counts import Counts, check_dtype, check_sizes
from headwise.cache.held import Held
from headwise.cache.window_group import WindowGroup

__all__ = ["WindowCache"]


class WindowCache(BaseCache):
    """Keys and values of one layer whose heads look back over a window.

    Memory doesn't grow with the number of tokens, and neither does it bound it (unless ``capacity`` is given). Pass
    the same windows to :func:`headwise.cache.attend`: the cache decides what is kept, attention what is seen. A wider
    one there isn't refused: it sees the slots that happen to be there still.

    Args:
        batch_size: ``B``.
        num_kv_heads: ``G``.
        window: how many keys **before** its own a query sees, the ``left`` of ``(left, 0)``: Hugging Face's
            ``sliding_window`` minus 1. One number, the pair ``(left, 0)`` as a tuple, or a list with one of these for
            each of ``G`` KV heads, whose query heads then all see that far at most. ``None``: such heads see
            everything, and ``capacity`` says how much that can be.
        head_dim: ``D``.
        value_head_dim: ``Dv``, default ``D``.
        margin: how many tokens :meth:`rollback` can take back after tokens have left the window.
        slack: free slots behind what is kept; more of them mean fewer moves. Default an eighth of what is kept, at
            least 16.
        capacity: most tokens per sequence; needed where a window is ``None``. No buffer is larger.
        dtype: default PyTorch's default dtype.
        device: default PyTorch's default device.

    Raises:
        TypeError: a window is none, or ``dtype`` no floating one that attention knows.
        ValueError: a size is out of range, a window looks ahead, there are not ``G`` windows, or one is None without
            ``capacity``.
    """

    def __init__(
        self,
        batch_size: int,
        num_kv_heads: int,
        window: int | tuple[int | None, int] | Sequence[int | tuple[int | None, int] | None] | None,
        head_dim: int,
        value_head_dim: int | None = None,
        *,
        margin: int = 0,
        slack: int | None = None,
        capacity: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        value_head_dim = head_dim if value_head_dim is None else value_head_dim
        sizes = {"batch_size": batch_size, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
        sizes |= {"value_head_dim": value_head_dim}
        sizes |= {name: size for name, size in (("slack", slack), ("capacity", capacity)) if size is not None}
        check_sizes("WindowCache", sizes)
        check_sizes("WindowCache", {"margin": margin}, least=0)
        check_dtype("WindowCache", dtype)
        super().__init__(batch_size, num_kv_heads, head_dim, value_head_dim)
        self._windows = _read_windows(window, num_kv_heads, capacity)
        self._margin, self._capacity = margin, capacity
        self._longest = self._counts  # the most tokens that each sequence ever had: what it has dropped follows
        self._groups: list[WindowGroup] = []
        for left in dict.fromkeys(self._windows):
            heads = tuple(head for head, window in enumerate(self._windows) if window == left)
            made = WindowGroup.empty(
                batch_size,
                heads,
                left,
                margin=margin,
                slack=slack,
                capacity=capacity,
                widths=(head_dim, value_head_dim),
                dtype=dtype,
                device=device,
            )
            self._groups.append(made)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """How many keys before its own a query of each KV head sees; None = all."""
        return self._windows

    @property
    def margin(self) -> int:
        """How many tokens can be taken back after tokens have left the window."""
        return self._margin

    @property
    def capacity(self) -> int | None:
        """Most tokens per sequence, or None where nothing bounds them."""
        return self._capacity

    @property
    def nbytes(self) -> int:
        """Bytes allocated: for each window ``B * heads * (left + margin + slack) * (D + Dv) * itemsize``."""
        return sum(group.planes.nbytes for group in self._groups)

    @property
    def nbytes_logical(self) -> int:
        """Bytes of the tokens that a head can still see, now or after a rollback within the margin."""
        return sum(
            group.planes.token_nbytes * (count - group.needed(longest - self._margin))
            for group in self._groups
            for count, longest in zip(self._counts, self._longest, strict=True)
        )

    def reset(self) -> None:
        """Forget all tokens; the memory is kept."""
        super().reset()
        self._longest = self._counts
        for group in self._groups:
            group.starts = self._counts

    def _like(self) -> Tensor:
        return self._groups[0].planes.tensors[0]

    def _store(self, tokens: list[Tensor], new: Counts, after: Counts) -> tuple[Held, ...]:
        if self._capacity is not None:
            self._refuse_beyond(self._capacity, new, after)
        longest = tuple(map(max, self._longest, after))
        # What a later rollback may lead back to, and what the first new query stands at.
        earliest = tuple(most - self._margin for most in longest)
        held = tuple(group.append(tokens, self._counts, new, earliest) for group in self._groups)
        self._longest = longest
        return held

    def _hand_out(self, before: Counts, after: Counts) -> tuple[Held, ...]:
        return tuple(group.part(before, after) for group in self._groups)

    def _refuse_to_forget(self, after: Counts) -> None:
        shortest = self._shortest()
        for sequence, (end, longest) in enumerate(zip(after, self._longest, strict=True)):
            least = 0 if shortest is None or longest <= shortest + self._margin else longest - self._margin
            if end < least:
                count = self._counts[sequence]
                raise ValueError(
                    f"rollback: expected at most {count - least} tokens of sequence {sequence}, got {count - end}: "
                    f"beyond margin={self._margin} behind its longest length {longest} keys have left the window of "
                    f"{shortest} and are gone; build the WindowCache with a larger margin"
                )

    def _shortest(self) -> int | None:
        """The smallest window, which drops first; None where no head has one."""
        return min((left for left in self._windows if left is not None), default=None)

    def _select(self, index: Counts) -> None:
        for group in self._groups:
            group.select(index, self._counts)
        self._longest = tuple(self._longest[source] for source in index)

    def _copy(self) -> tuple[Counts, list[Any]]:
        return self._longest, [group.copy(self._counts) for group in self._groups]

    def _paste(self, contents: tuple[Counts, list[Any]]) -> None:
        self._longest, copies = contents
        for group, copied in zip(self._groups, copies, strict=True):
            group.paste(copied)

    def _extra(self) -> dict[str, Any]:
        same = len(self._groups) == 1
        told: dict[str, Any] = {"window": self._windows[0] if same else list(self._windows), "margin": self._margin}
        return told if self._capacity is None else told | {"capacity": self._capacity}


def _read_windows(
    window: int | tuple[int | None, int] | Sequence[Any] | None, heads: int, capacity: int | None
) -> tuple[int | None, ...]:
    """One bound per KV head, checked."""
    is_pair = isinstance(window, tuple) and len(window) == 2
    if isinstance(window, Sequence) and not isinstance(window, str) and not is_pair:
        windows = tuple(_left(one) for one in window)
    else:
        windows = (_left(window),) * heads
    if len(windows) != heads:
        raise ValueError(f"WindowCache: expected one window or {heads}, one per KV head, got {len(windows)}")
    for left in windows:
        check_sizes("WindowCache", {} if left is None else {"window": left}, least=0)
    if None in windows and capacity is None:
        raise ValueError(
            "WindowCache: expected capacity= with a window of None, got none; heads that see everything need room "
            "for all tokens"
        )
    return windows


def _left(window: Any) -> int | None:
    """How far back one window looks, of a number or of ``(left, 0)``."""
    if window is None or isinstance(window, int):
        return window
    if not isinstance(window, tuple) or len(window) != 2:
        raise TypeError(
            f"WindowCache: expected window to be how many keys before its own a query sees, or (left, 0), or a list "
            f"with one per KV head, got {window!r}"
        )
    if window[1] != 0:
        raise ValueError(
            f"WindowCache: expected a window that looks back only, (left, 0), got {window!r}; one number per KV head "
            "is a list"
        )
    return _left(window[0])
