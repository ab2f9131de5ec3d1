"""Blocks of queries: how a call is cut so that no more than a block of its scores is ever held."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

DEFAULT_BLOCK_BYTES = 32 * 2**20


def block_ranges(length: int, row_bytes: int, max_bytes: int | None = None) -> Iterator[tuple[int, int]]:
    """Ranges of at most ``max_bytes // row_bytes`` rows, one at least, that cover ``length`` rows."""
    rows = max(1, (DEFAULT_BLOCK_BYTES if max_bytes is None else max_bytes) // max(1, row_bytes))
    for start in range(0, length, rows):
        yield start, min(start + rows, length)


def cut(tensor: Tensor, start: int, stop: int, low: int, high: int) -> Tensor:
    """Rows and columns of a tensor whose last two axes may each be 1 for all."""
    rows = tensor if tensor.shape[2] == 1 else tensor[:, :, start:stop]
    return rows if tensor.shape[3] == 1 else rows[..., low:high]


def fold_heads(tensor: Tensor, groups: int) -> Tensor:
    """``[B, H, rows, D]`` to ``[B, G, R * rows, D]``: the heads that share a KV head become rows of one product."""
    batch, heads, rows, width = tensor.shape
    return tensor.reshape(batch, groups, heads // groups * rows, width)


class Workspace:
    """Memory in which the blocks of one call take turns.

    Fresh memory for each costs page faults, and blocks of slightly different sizes tear holes into the C library's heap
    that no later block fits: several times the memory that is in use at any moment.

    Args:
        elements: of the largest block.
        dtype, device: of all blocks.
    """

    def __init__(self, elements: int, dtype: torch.dtype, device: torch.device) -> None:
        self._elements, self._dtype, self._device = elements, dtype, device
        self._memory: dict[str, Tensor] = {}

    def take(self, name: str, shape: Sequence[int]) -> Tensor:
        """Memory of this shape, undefined in value; what was taken before under the same name is overwritten."""
        if name not in self._memory:
            self._memory[name] = torch.empty(self._elements, dtype=self._dtype, device=self._device)
        return self._memory[name][: math.prod(shape)].view(shape)
