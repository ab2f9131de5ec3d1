"""What vLLM sees of a model: layers with a cache, their pages, and the groups that share one pool.

A *unit* is what vLLM calls a layer with a KV cache spec: one attention state, or all states of one recurrent layer
together, which share a page. Units of one type form groups of equally many layers; all groups draw blocks of the same
size from one pool, and places that a group can't fill stay empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import lcm

from headwise.plan.errors import PlanError
from headwise.plan.runtimes.base import pages
from headwise.plan.states import State

__all__ = ["Layout", "Unit", "aligned_block", "group_size", "sequence_blocks"]


@dataclass(frozen=True)
class Unit:
    """One layer's cache.

    Attributes:
        states: one attention state, or the states of a recurrent layer.
        kind: ``full``, ``window``, ``chunk``, ``cross`` or ``recurrent``.
        size: of the window or chunk, else 0.
        block: tokens of a block; 0 for a recurrent layer.
        page: bytes of a block, with its padding.
        content: bytes of a block that hold something.
    """

    states: tuple[State, ...]
    kind: str
    size: int
    block: int
    page: int
    content: int

    @property
    def type(self) -> tuple[object, ...]:
        """Units of equal type share a group."""
        return self.kind, self.size, self.block, self.page, tuple(state.shape for state in self.states)

    @property
    def label(self) -> str:
        """How the type is called in a line of the answer."""
        return f"{self.kind} {self.size}" if self.size else self.kind


class Layout:
    """All units of a model, and what they have in common.

    One type of cache needs no groups: each layer has blocks of its own size, and all use one table of blocks. Several
    types share a pool, and so need blocks of one size in bytes: smaller ones get more tokens a block.

    Raises:
        PlanError: a smaller block doesn't divide the largest.
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        self.grouped = len({(unit.kind, unit.size) for unit in units}) > 1
        largest = max((unit.page for unit in units), default=0)
        self.units = tuple(_enlarged(unit, largest) for unit in units) if self.grouped else tuple(units)
        self.of_state = {state: unit for unit in self.units for state in unit.states}
        self.recurrent = any(unit.kind == "recurrent" for unit in units)
        # A prefix that is found again has to end where the blocks of all types do.
        self.common_block = lcm(*(unit.block for unit in self.units if unit.kind not in ("cross", "recurrent")))
        # For each type of unit, the places in its groups that no layer fills.
        self.empty_places = self._empty_places()

    def _empty_places(self) -> tuple[tuple[Unit, int], ...]:
        if not self.grouped:
            return ()
        counts = Counter(unit.type for unit in self.units)
        size = group_size(list(counts.values()))
        types = {unit.type: unit for unit in self.units}
        return tuple((unit, -counts[key] % size) for key, unit in types.items() if counts[key] % size)


def _enlarged(unit: Unit, largest: int) -> Unit:
    if unit.page == largest:
        return unit
    if largest % unit.page or not unit.block:
        raise PlanError(
            f"vllm: expected blocks of one size, got {unit.page} bytes for layer {unit.states[0].layer} and {largest} "
            "for another, which it doesn't divide; vLLM can't share a pool between them"
        )
    ratio = largest // unit.page
    return replace(unit, block=unit.block * ratio, page=largest, content=unit.content * ratio)


def group_size(counts: Sequence[int]) -> int:
    """Layers of each group, given how many layers each type has.

    The fewest of a type, unless the most is less than half as much again: then the most, and a few places stay empty.
    """
    fewest, most = min(counts), max(counts)
    return most if 2 * most < 3 * fewest else fewest


def aligned_block(state_page: int, token_bytes: int, block: int, alignment: int) -> int:
    """Tokens of an attention block next to recurrent layers: so many that its page holds one recurrent state."""
    step = max(block, alignment)
    return max(block, step * pages(state_page, step * token_bytes))


def sequence_blocks(unit: Unit, length: int, batched: int, drafts: int, encoder: Callable[[State], int]) -> int:
    """Blocks that one sequence of ``length`` tokens holds at most."""
    if unit.kind == "recurrent":
        return 1 + drafts
    if unit.kind == "cross":
        return pages(encoder(unit.states[0]), unit.block)
    if unit.kind == "window":
        # One more, since a window need not start where a block does.
        return pages(min(unit.size - 1 + batched, length), unit.block) + 1
    if unit.kind == "chunk":
        return pages(min(unit.size + batched, length), unit.block)
    return pages(length, unit.block)
