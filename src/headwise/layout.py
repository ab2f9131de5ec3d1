"""The head layout of one attention layer, and how heads are named.

Symbols: `H` query heads (`num_heads`), `G` KV heads (`num_kv_heads`), `R = H / G` group size, `D` head dim
(`head_dim`), `Dv` value head dim. Query head `h` reads KV head `h // R`. Heads and layers count from 0.

Standard library only: planning, parsing and printing must start at once, without torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias, cast

__all__ = ["HeadLayout", "Window", "head_name", "parse_head"]

# How many keys before and after the query's own position are visible; None on a side: no bound on that side.
Window: TypeAlias = tuple[int | None, int | None]

_HEAD_NAME = re.compile(r"L(0|[1-9][0-9]*)\.H(0|[1-9][0-9]*)")


@dataclass(frozen=True)
class HeadLayout:
    """How many query heads share how many KV heads, how wide they are, and how far each one sees.

    Attributes:
        num_heads: H, the number of query heads. It must be a multiple of `num_kv_heads`.
        num_kv_heads: G, the number of KV heads: G = H is multi-head, G = 1 multi-query, between them grouped-query.
        head_dim: D, elements in one query vector and in one key vector.
        value_head_dim: Dv, elements in one value vector; None: as many as `head_dim`.
        window: `(left, right)`, in keys: how many before and after the query's own position are visible, its own key
            always included; None on a side leaves that side unbounded. One pair holds for every head; a tuple of H
            entries, each a pair or None, gives every head its own; None leaves all heads unbounded. A Hugging Face
            `sliding_window` of w is `(w - 1, 0)`.

    Raises:
        TypeError: a size is not an int, or `window` is neither None, a pair, nor a tuple of those.
        ValueError: a size is below 1, `num_heads` is not a multiple of `num_kv_heads`, a window side is negative, or
            there isn't one window per head.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_head_dim: int | None = None
    window: Window | tuple[Window | None, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("num_heads", "num_kv_heads", "head_dim"):
            _check_size(name, getattr(self, name))
        if self.value_head_dim is not None:
            _check_size("value_head_dim", self.value_head_dim)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                "HeadLayout: expected num_heads to be a multiple of num_kv_heads, "
                f"got num_heads={self.num_heads} and num_kv_heads={self.num_kv_heads}; "
                f"use one of {_divisors(self.num_heads)} KV heads"
            )
        _check_window(self.window, self.num_heads)

    @property
    def group_size(self) -> int:
        """R = H / G: how many query heads read one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def value_dim(self) -> int:
        """Dv in elements: `value_head_dim`, or `head_dim` where that is None."""
        return self.head_dim if self.value_head_dim is None else self.value_head_dim

    def kv_head(self, head: int) -> int:
        """The KV head that query head `head` reads: `head // R`.

        Raises:
            IndexError: `head` is not in 0 .. H - 1.
        """
        _check_index("kv_head", "query head", head, self.num_heads)
        return head // self.group_size

    def heads_of(self, kv_head: int) -> range:
        """The R query heads that read KV head `kv_head`, in order.

        Raises:
            IndexError: `kv_head` is not in 0 .. G - 1.
        """
        _check_index("heads_of", "KV head", kv_head, self.num_kv_heads)
        return range(kv_head * self.group_size, (kv_head + 1) * self.group_size)

    def window_of(self, head: int) -> Window:
        """The window of query head `head` as `(left, right)` in keys; `(None, None)` where it sees everything.

        Raises:
            IndexError: `head` is not in 0 .. H - 1.
        """
        _check_index("window_of", "query head", head, self.num_heads)
        window = self.window
        own = window if window is None or _is_pair(window) else window[head]
        return (None, None) if own is None else cast(Window, own)


def head_name(layer: int, head: int) -> str:
    """The name of a query head: layer 5, head 1 is `L5.H1`.

    Raises:
        ValueError: `layer` or `head` is negative.
    """
    if layer < 0 or head < 0:
        raise ValueError(f"head_name: expected layer and head to count from 0, got layer={layer} and head={head}")
    return f"L{layer}.H{head}"


def parse_head(name: str) -> tuple[int, int]:
    """The `(layer, head)` that a name such as `L5.H1` stands for.

    Raises:
        ValueError: `name` is not written as `L<layer>.H<head>`.
    """
    match = _HEAD_NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"parse_head: expected a head written as L5.H1 (layer 5, head 1, from 0), got {name!r}")
    return int(match[1]), int(match[2])


def _check_size(name: str, value: object) -> None:
    # bool is an int to Python, but num_heads=True is a slip.
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"HeadLayout: expected {name} to be an int, got {value!r}; give a whole number of at least 1")
    if value < 1:
        raise ValueError(f"HeadLayout: expected {name} to be at least 1, got {value}; give its true size")


def _check_index(who: str, what: str, index: int, count: int) -> None:
    if not 0 <= index < count:
        raise IndexError(f"HeadLayout.{who}: expected a {what} from 0 to {count - 1}, got {index}")


def _check_window(window: object, num_heads: int) -> None:
    if window is None:
        return
    if not isinstance(window, tuple):
        raise TypeError(
            f"HeadLayout: expected window to be None, (left, right) or a tuple of one per head, got {window!r}; "
            "a sliding_window of w is (w - 1, 0)"
        )
    if _is_pair(window):
        _check_pair(window)
        return
    if len(window) != num_heads:
        raise ValueError(
            f"HeadLayout: expected one window for each of {num_heads} heads, got {len(window)}; "
            "give one (left, right) for all heads, or one entry per head"
        )
    for entry in window:
        if entry is not None:
            _check_pair(entry)


def _check_pair(window: object) -> None:
    if not _is_pair(window):
        raise TypeError(
            f"HeadLayout: expected a window to be (left, right) in whole keys, None for no bound, got {window!r}"
        )
    if any(side is not None and side < 0 for side in window):  # type: ignore[attr-defined]
        raise ValueError(f"HeadLayout: expected window sides of at least 0 keys, got {window!r}; use None for no bound")


def _is_pair(window: object) -> bool:
    """Whether `window` is `(left, right)`, rather than one entry per head."""
    return isinstance(window, tuple) and len(window) == 2 and all(_is_side(side) for side in window)


def _is_side(side: object) -> bool:
    return side is None or (isinstance(side, int) and not isinstance(side, bool))


def _divisors(number: int) -> str:
    return ", ".join(str(divisor) for divisor in range(1, number + 1) if number % divisor == 0)
