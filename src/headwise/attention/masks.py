"""Which keys a query may attend, from positions: causal order, windows per head, and key lengths.

A query at absolute position ``p`` sees the keys at positions ``p - left`` to ``p + right``. ``None`` is unbounded.
Causal order is the bound ``right = 0``, so it needs no rule of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

import torch
from torch import Tensor

Span: TypeAlias = tuple[int | None, int | None]
WindowArgument: TypeAlias = Span | Sequence[Span | None] | None

UNBOUNDED: Span = (None, None)
# Far beyond every position, and far enough from the limits of int64 that a sum can't overflow.
FAR = 1 << 40


def head_spans(window: WindowArgument, causal: bool, heads: int) -> tuple[Span, ...]:
    """The visible span of every query head: one entry for all heads, or ``H`` entries.

    Args:
        window: ``None``, one ``(left, right)``, or a sequence of ``H`` of those or ``None``.
        causal: whether keys after the query's own position are hidden; caps ``right`` at 0.
        heads: ``H``.

    Raises:
        TypeError: a window is no pair of integers or ``None``.
        ValueError: a bound is negative, or the sequence has another length than ``H``.
    """
    spans = tuple(_causal_span(span, causal) for span in _parse_windows(window, heads))
    return spans[:1] if len(set(spans)) == 1 else spans


def _causal_span(span: Span, causal: bool) -> Span:
    left, right = span
    return (left, 0) if causal else (left, right)


def _parse_windows(window: WindowArgument, heads: int) -> list[Span]:
    if window is None:
        return [UNBOUNDED]
    if not isinstance(window, Sequence) or isinstance(window, str):
        hint = f"; a window of the last {window + 1} keys is ({window}, 0)" if isinstance(window, int) else ""
        raise TypeError(
            f"window: expected None, (left, right) or one of those per head, got {type(window).__name__}{hint}"
        )
    if len(window) == 2 and all(bound is None or isinstance(bound, (int, float)) for bound in window):
        return [_parse_span(window)]
    if len(window) != heads:
        raise ValueError(
            f"window: expected one (left, right) or {heads} of them, one per query head, got {len(window)}: {window!r}"
        )
    return [_parse_span(span) for span in window]


def _parse_span(span: object) -> Span:
    if span is None:
        return UNBOUNDED
    if not isinstance(span, Sequence) or len(span) != 2:
        raise TypeError(f"window: expected (left, right) or None, got {span!r}")
    for bound in span:
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int)):
            raise TypeError(f"window: expected whole numbers or None in (left, right), got {span!r}")
        if bound is not None and bound < 0:
            raise ValueError(
                f"window: expected bounds of 0 or more, got {span!r}; a query always sees its own key, "
                "and None means unbounded"
            )
    left, right = span
    return left, right


def within_spans(first: Tensor, last: Tensor, keys: Tensor, spans: Sequence[Span]) -> Tensor | None:
    """Which keys lie in the spans of queries that stand from ``first`` to ``last``.

    Spans of neighbouring positions overlap or touch (each holds its own position), so the union over a run of
    positions is again one span, from ``first - left`` to ``last + right``.

    Args:
        first, last: absolute positions ``[B or 1, rows]``.
        keys: key positions ``[S]``.
        spans: one or ``H`` spans.

    Returns:
        Booleans ``[B or 1, 1 or H, rows, S]``, or None where no span is bounded.
    """
    visible = None
    if any(left is not None for left, _ in spans):
        lefts = keys.new_tensor([FAR if left is None else min(left, FAR) for left, _ in spans])
        visible = keys >= first[:, None, :, None] - lefts[None, :, None, None]
    if any(right is not None for _, right in spans):
        rights = keys.new_tensor([FAR if right is None else min(right, FAR) for _, right in spans])
        before = keys <= last[:, None, :, None] + rights[None, :, None, None]
        visible = before if visible is None else visible & before
    return visible


@dataclass(frozen=True)
class Reach:
    """Where positions alone let queries look: spans per head, and how many keys are held.

    Attributes:
        spans: ``(left, right)`` for all heads (one entry) or for each of ``H``.
        offset: absolute position of the first query, for all sequences or ``[B]``.
        key_lengths: ``[B]`` or None; keys from there on are hidden.
    """

    spans: tuple[Span, ...]
    offset: int | Tensor
    key_lengths: Tensor | None

    def within(self, first: Tensor, last: Tensor, keys: Tensor) -> Tensor | None:
        """Which of the positions ``keys`` queries from ``first`` to ``last`` reach, or None where nothing limits them.

        Shapes: ``first`` and ``last`` ``[B or 1, rows]``, result ``[B or 1, 1 or H, rows, len(keys)]``.
        """
        held = None if self.key_lengths is None else keys < self.key_lengths[:, None, None, None]
        return join(within_spans(first, last, keys, self.spans), held)

    def range(self, start: int, stop: int, keys: int) -> tuple[int, int]:
        """A range of the ``keys`` keys that holds all that queries ``start`` to ``stop`` reach; (0, 0) if empty."""
        offsets, held = known_range(self.offset), known_range(keys if self.key_lengths is None else self.key_lengths)
        if offsets is None or held is None:
            return 0, keys
        lefts, rights = [left for left, _ in self.spans], [right for _, right in self.spans]
        low = 0 if None in lefts else offsets[0] + start - max(left for left in lefts if left is not None)
        end = keys if None in rights else offsets[1] + stop + max(right for right in rights if right is not None)
        low, high = max(low, 0), min(end, held[1])
        return (low, high) if low < high else (0, 0)

    def hides(self, start: int, stop: int, low: int, high: int) -> bool:
        """Whether any of the keys ``low`` to ``high`` may be out of reach for one of the queries; True if in doubt."""
        if self.key_lengths is None and self.spans == (UNBOUNDED,):
            return False
        offsets, held = known_range(self.offset), known_range(high if self.key_lengths is None else self.key_lengths)
        if offsets is None or held is None or held[0] < high:
            return True
        first, last = offsets[0] + start, offsets[1] + stop - 1
        too_early = any(left is not None and low < last - left for left, _ in self.spans)
        return too_early or any(right is not None and high - 1 > first + right for _, right in self.spans)

    def seeing(self, positions: Tensor, keys: int) -> Tensor:
        """Whether queries at ``positions`` ``[B or 1, L]`` reach at least one of ``keys`` keys: ``[B|1, H|1, L]``."""
        lefts = positions.new_tensor([FAR if left is None else min(left, FAR) for left, _ in self.spans])
        rights = positions.new_tensor([FAR if right is None else min(right, FAR) for _, right in self.spans])
        low = (positions[:, None] - lefts[None, :, None]).clamp(min=0)
        high = (positions[:, None] + rights[None, :, None]).clamp(max=keys - 1)
        if self.key_lengths is not None:
            high = torch.minimum(high, self.key_lengths[:, None, None] - 1)
        return low <= high

    def shifted(self, low: int, high: int) -> Reach:
        """The same reach when only the keys ``low`` to ``high`` are kept and counted from 0."""
        lengths = None if self.key_lengths is None else (self.key_lengths - low).clamp(0, high - low)
        return Reach(self.spans, self.offset - low, lengths)


def known_range(number: int | Tensor) -> tuple[int, int] | None:
    """The least and the greatest of some numbers, or None where finding out would wait for a device."""
    if isinstance(number, int):
        return number, number
    if not is_cheap_to_look_at(number) or number.numel() == 0:
        return None
    return int(number.min()), int(number.max())


def is_cheap_to_look_at(tensor: Tensor) -> bool:
    """Whether Python may read numbers out of a tensor: not where it waits for a device or breaks a compiled graph."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def join(*parts: Tensor | None) -> Tensor | None:
    """The conjunction of the masks that are given; None where there are none."""
    given = [part for part in parts if part is not None]
    return reduce(torch.logical_and, given) if given else None
