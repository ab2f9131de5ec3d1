"""Memory for tokens: tensors ``[B, heads, slots, width]`` that are written, moved and copied together.

Slots hold the tokens of a sequence in order. Where all sequences are equally long everything happens by slices; else
by index tensors that are made on the host. No operation reads a slot that it isn't told to read.

Axes: ``B`` batch, ``T`` new tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from headwise.cache.counts import Counts, is_uniform
from headwise.native_caches import Memory

__all__ = ["Planes", "lasting", "pick", "token_index"]

Made = TypeVar("Made")

_MOST_STRETCHES = 16
_BITS = {torch.int8: 8, torch.uint8: 4}  # of a code, by what holds it


class Planes:
    """Tensors that share batch, heads and slots.

    Args:
        tensors: each ``[B, heads, slots, width]``; widths and dtypes may differ.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tuple(tensors)
        self._memory: tuple[tuple[Tensor, ...], Memory] | None = None

    @classmethod
    def empty(
        cls,
        shape: tuple[int, int, int],
        kinds: Sequence[tuple[int, torch.dtype | None]],
        device: torch.device | str | None,
    ) -> Planes:
        """Memory of ``shape = (B, heads, slots)`` with a (width, dtype) for each tensor."""
        # Unwritten memory is left as it is: nobody reads it, so nobody pays for zeros.
        return cls(lasting(lambda: [torch.empty(*shape, width, dtype=dtype, device=device) for width, dtype in kinds]))

    def __getstate__(self) -> tuple[Tensor, ...]:
        return self.tensors

    def __setstate__(self, tensors: tuple[Tensor, ...]) -> None:
        # A copy or a pickle that is read in inference mode is made of tensors that only that mode may write.
        self.tensors = tuple(lasting(tensor.clone) if tensor.is_inference() else tensor for tensor in tensors)
        self._memory = None

    @property
    def slots(self) -> int:
        """Tokens per sequence that there is room for."""
        return self.tensors[0].shape[2]

    @property
    def device(self) -> torch.device:
        """Where the memory lies."""
        return self.tensors[0].device

    @property
    def memory(self) -> Memory:
        """As the compiled kernels find keys and values, or codes and scales of keys, then of values."""
        if self._memory is None or self._memory[0] is not self.tensors:
            self._memory = (self.tensors, _memory_of(*self.tensors))
        return self._memory[1]

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def token_nbytes(self) -> int:
        """Bytes of one token of one sequence, over all heads and tensors."""
        return sum(tensor.shape[1] * tensor.shape[3] * tensor.dtype.itemsize for tensor in self.tensors)

    def views(self, start: int, stop: int) -> tuple[Tensor, ...]:
        """Slots ``start`` to ``stop`` of every tensor."""
        return tuple(tensor[:, :, start:stop] for tensor in self.tensors)

    def write(self, tokens: Sequence[Tensor], first: Counts, count: Counts, skip: Counts | None = None) -> None:
        """Put ``count[b]`` tokens into the slots from ``first[b]`` on.

        Args:
            tokens: for each tensor ``[B, heads, T, width]``.
            first: first slot per sequence.
            count: tokens per sequence.
            skip: how many leading tokens to leave out per sequence; default 0.
        """
        if not max(count):
            return
        skip = (0,) * len(count) if skip is None else skip
        if is_uniform(first) and is_uniform(count) and is_uniform(skip):
            for tensor, new in zip(self.tensors, tokens, strict=True):
                tensor[:, :, first[0] : first[0] + count[0]] = new[:, :, skip[0] : skip[0] + count[0]]
            return
        rows, offsets = token_index(count)
        self.put(tokens, rows, torch.tensor(skip)[rows] + offsets, torch.tensor(first)[rows] + offsets)

    def put(self, tokens: Sequence[Tensor], rows: Tensor, source: Tensor, target: Tensor) -> None:
        """Token ``source[i]`` of sequence ``rows[i]`` goes to slot ``target[i]``; indices ``[N]``, on the host."""
        rows, source, target = (index.to(self.device) for index in (rows, source, target))
        for tensor, new in zip(self.tensors, tokens, strict=True):
            # An index copies what it reads before anything is written, so the two may be the same memory.
            tensor.transpose(1, 2)[rows, target] = new.transpose(1, 2)[rows, source]

    def move_to_front(self, source: Counts, count: Counts) -> None:
        """Move ``count[b]`` tokens from the slots at ``source[b]`` to the first ones."""
        if not (is_uniform(source) and is_uniform(count)):
            self.write(self.tensors, (0,) * len(count), count, source)
            return
        distance, end = source[0], source[0] + count[0]
        # Stretches no longer than the distance don't overlap what they replace: no copy besides is needed. Where there
        # would be very many of them, one copy costs less.
        step = distance if distance * _MOST_STRETCHES >= count[0] else max(count[0], 1)
        for tensor in self.tensors if distance else ():
            for start in range(distance, end, step):
                stretch = tensor[:, :, start : min(start + step, end)]
                stretch = stretch if step <= distance else stretch.clone()
                tensor[:, :, start - distance : start - distance + stretch.shape[2]] = stretch

    def select(self, index: Counts, used: int) -> None:
        """Sequence ``b`` becomes what ``index[b]`` was, in its first ``used`` slots; the batch gets ``len(index)``."""
        same_size = len(index) == self.tensors[0].shape[0]
        changed = [row for row, source in enumerate(index) if not same_size or row != source]
        if not changed:
            return
        rows, sources = (
            torch.tensor(numbers, device=self.device) for numbers in (changed, [index[row] for row in changed])
        )
        chosen = [tensor[:, :, :used].index_select(0, sources) for tensor in self.tensors]
        if not same_size:
            self._allocate(len(index))
        for tensor, part in zip(self.tensors, chosen, strict=True):
            tensor[:, :, :used].index_copy_(0, rows, part)

    def copy(self, used: int) -> tuple[Tensor, ...]:
        """A copy of the first ``used`` slots."""
        return tuple(view.clone() for view in self.views(0, used))

    def paste(self, copied: Sequence[Tensor]) -> None:
        """Be as at the time of the copy, batch size included."""
        if copied[0].shape[0] != self.tensors[0].shape[0]:
            self._allocate(copied[0].shape[0])
        for view, part in zip(self.views(0, copied[0].shape[2]), copied, strict=True):
            view.copy_(part)

    def _allocate(self, batch: int) -> None:
        """Memory for another batch size, with nothing in it."""
        old = self.tensors
        self.tensors = lasting(lambda: tuple(tensor.new_empty(batch, *tensor.shape[1:]) for tensor in old))


def lasting(make: Callable[[], Made]) -> Made:
    """What ``make`` gives, as tensors that can be written at any time: those of inference mode can only there."""
    # A graph that is being compiled can't ask, and makes nothing that outlives a step.
    if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
        return make()
    with torch.inference_mode(False):
        return make()


def _memory_of(first: Tensor, second: Tensor, *others: Tensor) -> Memory:
    if not others:
        return Memory(first, second)
    value, value_scales = others
    return Memory(first, value, bits=_BITS[first.dtype], key_scales=second, value_scales=value_scales)


def token_index(count: Counts) -> tuple[Tensor, Tensor]:
    """Row and number (from 0) of every token where row ``b`` has ``count[b]``; both ``[sum(count)]``, on the host."""
    rows, offsets = (torch.arange(max(count))[None] < torch.tensor(count)[:, None]).nonzero(as_tuple=True)
    return rows, offsets


def pick(tensor: Tensor, axis: int, indices: Sequence[int]) -> Tensor:
    """Some entries of an axis: the tensor itself for all of them, a view where they are neighbours, else a copy."""
    first = indices[0] if indices else 0
    if list(indices) == list(range(first, first + len(indices))):
        whole = len(indices) == tensor.shape[axis]
        return tensor if whole else tensor.narrow(axis, first, len(indices))
    return tensor.index_select(axis, torch.tensor(indices, device=tensor.device))
