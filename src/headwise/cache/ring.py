"""The latest tokens of every sequence: the one at position p lies in slot p % size.

Axes: ``B`` batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.cache.counts import Counts, is_uniform
from headwise.cache.planes import Planes, token_index

__all__ = ["Ring"]


class Ring:
    """A ring over the slots of some planes.

    Args:
        planes: the memory; the number of slots is the size.
    """

    def __init__(self, planes: Planes) -> None:
        self.planes = planes

    @property
    def size(self) -> int:
        """Tokens per sequence that there is room for."""
        return self.planes.slots

    def write(self, tokens: Sequence[Tensor], skip: Counts, first: Counts, count: Counts) -> None:
        """Put ``count[b]`` tokens, without the ``skip[b]`` first ones, where positions from ``first[b]`` on belong."""
        if not max(count):
            return
        if is_uniform(skip) and is_uniform(first) and is_uniform(count):
            for slot, done, stretch in self._stretches(first[0], count[0]):
                source = skip[0] + done
                for tensor, new in zip(self.planes.tensors, tokens, strict=True):
                    tensor[:, :, slot : slot + stretch] = new[:, :, source : source + stretch]
            return
        rows, offsets = token_index(count)
        slots = (torch.tensor(first)[rows] + offsets) % self.size
        self.planes.put(tokens, rows, torch.tensor(skip)[rows] + offsets, slots)

    def read(self, target: Planes, place: Counts, first: Counts, count: Counts) -> None:
        """Put the ``count[b]`` tokens from position ``first[b]`` on into the slots of ``target`` at ``place[b]``."""
        if not max(count):
            return
        if is_uniform(place) and is_uniform(first) and is_uniform(count):
            for slot, done, stretch in self._stretches(first[0], count[0]):
                to = place[0] + done
                for tensor, held in zip(target.tensors, self.planes.tensors, strict=True):
                    tensor[:, :, to : to + stretch] = held[:, :, slot : slot + stretch]
            return
        rows, offsets = token_index(count)
        slots = (torch.tensor(first)[rows] + offsets) % self.size
        target.put(self.planes.tensors, rows, slots, torch.tensor(place)[rows] + offsets)

    def runs(self, first: Counts, count: Counts) -> list[tuple[Counts, Counts, Counts]]:
        """The tokens from position ``first[b]`` on as one or two runs of slots: (position, tokens, slot) of each."""
        if not max(count):
            return []
        slots = tuple(begin % self.size for begin in first)
        heads = tuple(min(tokens, self.size - slot) for tokens, slot in zip(count, slots, strict=True))
        found = [(first, heads, slots)]
        if heads != count:
            begins = tuple(begin + head for begin, head in zip(first, heads, strict=True))
            rest = tuple(tokens - head for tokens, head in zip(count, heads, strict=True))
            found.append((begins, rest, (0,) * len(first)))
        return found

    def _stretches(self, first: int, count: int) -> list[tuple[int, int, int]]:
        """(slot, tokens before it, tokens) of each run, where all sequences have the same."""
        return [(slot, begin - first, tokens) for (begin,), (tokens,), (slot,) in self.runs((first,), (count,))]
