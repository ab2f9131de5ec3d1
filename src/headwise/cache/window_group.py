"""The KV heads of a layer that look equally far back, and the buffer they share.

Slot 0 of the buffer holds the token at an absolute position that may differ between the sequences (``starts``) and
moves on as tokens leave the window.

Axes: ``B`` batch, ``T`` new tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.cache.counts import Counts, is_uniform, minus, shared_or_each, what_differs
from headwise.cache.held import Held
from headwise.cache.planes import Planes, pick

__all__ = ["WindowGroup"]

_LEAST_SLACK = 16


class WindowGroup:
    """Keys and values of some heads.

    Attributes:
        kv_heads: the KV heads.
        left: how many keys before its own a query sees; None = all.
        planes: keys and values ``[B, heads, slots, width]``.
        starts: absolute position of slot 0, per sequence.
    """

    def __init__(self, kv_heads: tuple[int, ...], left: int | None, planes: Planes, starts: Counts) -> None:
        self.kv_heads, self.left, self.planes, self.starts = kv_heads, left, planes, starts

    @classmethod
    def empty(
        cls,
        batch_size: int,
        kv_heads: tuple[int, ...],
        left: int | None,
        *,
        margin: int,
        slack: int | None,
        capacity: int | None,
        widths: tuple[int, int],
        dtype: torch.dtype | None,
        device: torch.device | str | None,
    ) -> WindowGroup:
        """A group without tokens; without ``left`` it has room for ``capacity`` of them."""
        if left is None:
            assert capacity is not None  # the cache asks for it
            slots = capacity
        else:
            slots = left + margin + (max(_LEAST_SLACK, (left + margin) // 8) if slack is None else slack)
            slots = slots if capacity is None else min(slots, capacity)
        kinds = [(width, dtype) for width in widths]
        planes = Planes.empty((batch_size, len(kv_heads), slots), kinds, device)
        return cls(kv_heads, left, planes, (0,) * batch_size)

    def needed(self, position: int) -> int:
        """The first key that a query at a position sees."""
        return 0 if self.left is None else max(0, position - self.left)

    def append(self, tokens: Sequence[Tensor], before: Counts, new: Counts, earliest: Counts) -> Held:
        """Store new tokens and hand out all that they may see.

        Args:
            tokens: keys ``[B, G, T, D]`` and values ``[B, G, T, Dv]`` of all heads of the cache.
            before: tokens per sequence so far.
            new: how many leading new ones are real.
            earliest: the first position that a query may stand at after this, rolled back as far as is allowed.
        """
        tokens = [pick(tensor, 1, self.kv_heads) for tensor in tokens]
        after = _plus(before, new)
        kept = tuple(self.needed(min(now, later)) for now, later in zip(before, earliest, strict=True))
        if not self._fits(after, self.starts):
            if not self._fits(after, kept):
                return self._pass_through(tokens, before, new, kept, tuple(map(self.needed, earliest)))
            self.planes.move_to_front(minus(kept, self.starts), minus(before, kept))
            self.starts = kept
        self.planes.write(tokens, minus(before, self.starts), new)
        return self.part(before, after)

    def _fits(self, after: Counts, starts: Counts) -> bool:
        return max(minus(after, starts)) <= self.planes.slots

    def _pass_through(self, tokens: list[Tensor], before: Counts, new: Counts, first: Counts, last: Counts) -> Held:
        """Hand out more than there is room for, from position ``first`` on, and keep it only from ``last`` on."""
        after, old, skip = _plus(before, new), minus(before, first), minus(first, self.starts)
        if is_uniform(old) and is_uniform(skip) and is_uniform(new):
            whole = Planes([new_tokens[:, :, : new[0]] for new_tokens in tokens])
            if old[0]:
                parts = zip(self.planes.views(skip[0], skip[0] + old[0]), whole.tensors, strict=True)
                whole = Planes([torch.cat(pair, 2) for pair in parts])
        else:
            slots = max(minus(after, first))
            whole = Planes([tensor.new_empty(*tensor.shape[:2], slots, tensor.shape[3]) for tensor in tokens])
            whole.write(self.planes.tensors, (0,) * len(new), old, skip)
            whole.write(tokens, old, new)
        self.planes.write(whole.tensors, (0,) * len(new), minus(after, last), minus(last, first))
        self.starts = last
        return self._part(whole, first, before, after)

    def part(self, before: Counts, after: Counts) -> Held:
        """What queries from position ``before`` on see of tokens up to ``after``: a view."""
        return self._part(self.planes, self.starts, before, after)

    def _part(self, planes: Planes, starts: Counts, before: Counts, after: Counts) -> Held:
        # Slots before the first one that any sequence needs are left out.
        skip = min(minus(tuple(map(self.needed, before)), starts))
        starts = tuple(start + skip for start in starts)
        held = minus(after, starts)
        keys, values = planes.views(skip, skip + max(held))
        device = planes.device
        return Held(
            kv_heads=self.kv_heads,
            keys=keys,
            values=values,
            start=shared_or_each(starts, device),
            offset=shared_or_each(minus(before, starts), device),
            key_lengths=what_differs(held, max(held), device),
        )

    def select(self, index: Counts, counts: Counts) -> None:
        """Choose sequences."""
        self.planes.select(index, max(minus(counts, self.starts)))
        self.starts = tuple(self.starts[source] for source in index)

    def copy(self, counts: Counts) -> tuple[Counts, tuple[Tensor, ...]]:
        """The contents for a snapshot."""
        return self.starts, self.planes.copy(max(minus(counts, self.starts)))

    def paste(self, copied: tuple[Counts, tuple[Tensor, ...]]) -> None:
        """Be what :meth:`copy` gave."""
        self.starts, tensors = copied
        self.planes.paste(tensors)


def _plus(first: Counts, second: Counts) -> Counts:
    return tuple(one + other for one, other in zip(first, second, strict=True))
