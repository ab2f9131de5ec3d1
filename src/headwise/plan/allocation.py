"""What a runtime takes for all states of a model: the sum, a line per kind of layer, and the sum over the ranks.

All bytes are those of one rank of tensor parallelism, for the whole batch; data parallelism and pipelines divide
nothing here. Three numbers are kept apart: the logical minimum is the allocation of the runtime ``logical``, what is
allocated that of any other, and growth is the difference between two contexts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from headwise.plan.errors import PlanError
from headwise.plan.layers import Architecture
from headwise.plan.request import Request
from headwise.plan.states import Chunk, Encoder, Extent, Fixed, State, Window

__all__ = ["Allocation", "Extra", "Group", "Runtime", "StateBytes", "allocate"]


@dataclass(frozen=True)
class StateBytes:
    """The bytes of one state on one rank, all sequences together.

    Attributes:
        total: all of them, ``padding`` included.
        planes: name and bytes of each plane, in the order of the state's planes.
        equation: how ``total`` comes about, with the numbers.
        entries: how many entries are allocated for all sequences.
        padding: bytes that belong to no plane, such as the end of a page.
    """

    total: int
    planes: tuple[tuple[str, int], ...]
    equation: str
    entries: int
    padding: int = 0


@dataclass(frozen=True)
class Extra:
    """Bytes that a runtime allocates for no single state, such as the places with which it fills up a group."""

    name: str
    total: int
    equation: str


class Runtime(Protocol):
    """A policy: how states, length and batch become allocated bytes."""

    @property
    def name(self) -> str:
        """How the command line calls it."""
        ...

    @property
    def options(self) -> Mapping[str, Any]:
        """Its options in force; None: as the runtime does by itself."""
        ...

    def state_bytes(self, state: State, request: Request, architecture: Architecture) -> StateBytes:
        """What one state takes; PlanError where the runtime can't hold it."""
        ...

    def extras(self, architecture: Architecture, request: Request) -> tuple[Extra, ...]:
        """What is allocated besides the states."""
        ...

    def entry_bytes(self, state: State, request: Request, architecture: Architecture) -> int:
        """Bytes of one entry of one sequence on one rank, without the rounding to pages; 0 where another holds it."""
        ...

    def grows(self, state: State, request: Request, architecture: Architecture) -> bool:
        """Whether a further token costs a further entry beyond all windows and chunks."""
        ...

    def deals_queries(self, architecture: Architecture) -> bool:
        """Whether ranks of tensor parallelism have query heads of their own."""
        ...

    def growth(self, architecture: Architecture, request: Request) -> Fraction:
        """Bytes of a further token of one sequence beyond all windows and chunks, on the average over whole pages."""
        ...


@dataclass(frozen=True)
class Group:
    """States of equal shape: one line of the answer."""

    states: tuple[State, ...]
    each: StateBytes

    @property
    def total(self) -> int:
        """Bytes of all of them."""
        return len(self.states) * self.each.total

    @property
    def label(self) -> str:
        """``25 layers, window 1024, key 8 × 256, value 8 × 256``."""
        state, count = self.states[0], len(self.states)
        layers = "1 layer" if count == 1 else f"{count} layers"
        owned = "" if state.owner is None else ", held by another layer"
        planes = ", ".join(f"{plane.name} {plane.heads} × {plane.dim}" for plane in state.planes)
        kind = "" if state.kind == "self" else f" {state.kind},"
        return f"{layers},{kind} {_extent_label(state.extent)}, {planes}{owned}"


@dataclass(frozen=True)
class Allocation:
    """The answer of one runtime to one request.

    Attributes:
        runtime: its name.
        request: what was asked.
        groups: states of equal shape together, in the order of their first layers.
        extras: what is allocated besides the states.
    """

    runtime: str
    request: Request
    groups: tuple[Group, ...]
    extras: tuple[Extra, ...] = ()

    @property
    def total(self) -> int:
        """All bytes of one rank."""
        return sum(group.total for group in self.groups) + sum(extra.total for extra in self.extras)

    @property
    def total_over_ranks(self) -> int:
        """All bytes of all ranks: more than without tensor parallelism where ranks hold copies."""
        return self.total * self.request.tp

    @property
    def per_state(self) -> tuple[tuple[State, StateBytes], ...]:
        """Every state and its bytes, in the order of the layers."""
        pairs = [(state, group.each) for group in self.groups for state in group.states]
        return tuple(sorted(pairs, key=lambda pair: pair[0].layer))

    @property
    def key_bytes(self) -> int:
        """Bytes of the planes that hold keys."""
        return self.role_bytes("key")

    @property
    def value_bytes(self) -> int:
        """Bytes of the planes that hold values."""
        return self.role_bytes("value")

    @property
    def fixed_bytes(self) -> int:
        """Bytes of the states whose size doesn't depend on the context."""
        return sum(group.total for group in self.groups if isinstance(group.states[0].extent, Fixed | Encoder))

    @property
    def padding_bytes(self) -> int:
        """Bytes that hold nothing."""
        padding = sum(len(group.states) * group.each.padding for group in self.groups)
        return padding + sum(extra.total for extra in self.extras)

    def role_bytes(self, role: str) -> int:
        """Bytes of the planes with that role."""
        return sum(
            len(group.states) * size
            for group in self.groups
            for plane, (_, size) in zip(group.states[0].planes, group.each.planes, strict=True)
            if plane.role == role
        )


def allocate(architecture: Architecture, request: Request, runtime: Runtime) -> Allocation:
    """What ``runtime`` allocates.

    Raises:
        PlanError: the runtime can't hold one of the states, lacks a number to size it, or a rank would hold a part of a
            query head.
    """
    groups = tuple(Group(states, _each(states[0], request, architecture, runtime)) for states in architecture.alike)
    if runtime.deals_queries(architecture):
        _check_query_heads(architecture, request.tp)
    return Allocation(runtime.name, request, groups, runtime.extras(architecture, request))


def _each(state: State, request: Request, architecture: Architecture, runtime: Runtime) -> StateBytes:
    if state.owner is not None:
        return StateBytes(0, tuple((plane.name, 0) for plane in state.planes), "held by another layer", 0)
    return runtime.state_bytes(state, request, architecture)


def _check_query_heads(architecture: Architecture, tp: int) -> None:
    """Keys and values may be copied to several ranks, queries not: no runtime computes a part of a head."""
    for heads, layer in architecture.query_heads.items():
        if heads % tp:
            raise PlanError(
                f"--tp: expected a number of ranks that divides the {heads} query heads of layer {layer}, got {tp}"
            )


def _extent_label(extent: Extent) -> str:
    if isinstance(extent, Window):
        return f"window {extent.size}"
    if isinstance(extent, Chunk):
        return f"chunk {extent.size}"
    if isinstance(extent, Fixed):
        return f"fixed {extent.entries}"
    return "encoder" if isinstance(extent, Encoder) else "full"
