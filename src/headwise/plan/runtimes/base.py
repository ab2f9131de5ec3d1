"""What all policies share: heads of a rank, the storage of a plane, tokens of the encoder, and the equation."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from inspect import signature
from typing import Any, Generic, TypeVar

from headwise.plan.allocation import Extra, StateBytes
from headwise.plan.errors import PlanError, shown
from headwise.plan.layers import Architecture
from headwise.plan.request import Request
from headwise.plan.states import Encoder, Fixed, Grows, Plane, State
from headwise.plan.storage import Storage
from headwise.plan.storages import BF16, storage_named

__all__ = [
    "STATE_ROLES",
    "BaseRuntime",
    "LastAnswer",
    "check_flag",
    "check_storage",
    "check_whole",
    "counted",
    "empty",
    "encoder_tokens",
    "one_storage",
    "padded",
    "pages",
    "rank_heads",
    "refused",
]

# Planes of fixed size: they don't follow the KV dtype in any runtime.
STATE_ROLES = ("convolution", "recurrent")

_Answer = TypeVar("_Answer")


class LastAnswer(Generic[_Answer]):
    """What was last found out about a whole model, so that a question about each of its layers needn't ask again."""

    def __init__(self) -> None:
        self._last: tuple[Architecture, object, _Answer] | None = None

    def of(self, architecture: Architecture, key: object, find: Callable[[], _Answer]) -> _Answer:
        """The answer for this very model and an equal key, found only if the last question was another."""
        last = self._last  # one read: another thread may ask meanwhile
        if last is None or last[0] is not architecture or last[1] != key:
            last = self._last = (architecture, key, find())
        return last[2]


class BaseRuntime:
    """A policy in which every entry of a state takes the same bytes.

    Subclasses say how many entries are allocated; one in which more differs overrides :meth:`state_bytes`.
    """

    name = ""
    default_state = BF16

    @property
    def options(self) -> dict[str, Any]:
        """Its options in force by their own names, each an attribute; None: as the runtime does by itself."""
        return {name: getattr(self, name) for name in signature(type(self)).parameters}

    def state_bytes(self, state: State, request: Request, architecture: Architecture) -> StateBytes:
        """Entries times bytes of an entry."""
        entries, how = self.entries(state, request, architecture)
        sizes = self.plane_sizes(state, request, architecture)
        planes = tuple((plane.name, entries * size) for plane, size in zip(state.planes, sizes, strict=True))
        equation = f"{how} x {self.entry_equation(state, request, architecture)}"
        return StateBytes(entries * sum(sizes), planes, equation, entries)

    def entries(self, state: State, request: Request, architecture: Architecture) -> tuple[int, str]:
        """Entries allocated for all sequences, and how that number comes about."""
        raise NotImplementedError

    def extras(self, architecture: Architecture, request: Request) -> tuple[Extra, ...]:
        """Nothing besides the states."""
        return ()

    def grows(self, state: State, request: Request, architecture: Architecture) -> bool:
        """Whether every further token costs an entry: windows and chunks don't let it."""
        return isinstance(state.extent, Grows)

    def deals_queries(self, architecture: Architecture) -> bool:
        """Ranks have query heads of their own; a runtime that leaves some models' attention whole says for which."""
        return True

    def growth(self, architecture: Architecture, request: Request) -> Fraction:
        """Bytes of a further token of one sequence; a runtime whose pools or padding grow besides adds to it."""
        grow = (state for state in architecture.states if self.grows(state, request, architecture))
        return Fraction(sum(self.entry_bytes(state, request, architecture) for state in grow))

    def entry_bytes(self, state: State, request: Request, architecture: Architecture) -> int:
        """Bytes of one entry of one sequence on one rank; 0 where another layer holds it."""
        return sum(self.plane_sizes(state, request, architecture)) if state.owner is None else 0

    def plane_sizes(self, state: State, request: Request, architecture: Architecture) -> tuple[int, ...]:
        """Bytes of each plane of one entry on one rank."""
        return tuple(
            self.storage_of(plane, state, request, architecture).row_bytes(
                rank_heads(plane, state, request.tp), plane.dim
            )
            for plane in state.planes
        )

    def storage_of(self, plane: Plane, state: State, request: Request, architecture: Architecture) -> Storage:
        """How a plane is stored: values may differ from keys, and states of fixed size don't follow either."""
        if plane.role in STATE_ROLES:
            return request.state_storage or (storage_named(state.dtype) if state.dtype else self.default_state)
        if plane.role == "value":
            return request.value_storage or request.storage
        return request.storage

    def entry_equation(self, state: State, request: Request, architecture: Architecture) -> str:
        """``(8 x 128 x 2 B + 8 x 128 x 2 B)``."""
        terms = [
            self.storage_of(plane, state, request, architecture).equation(
                rank_heads(plane, state, request.tp), plane.dim
            )
            for plane in state.planes
        ]
        return f"({' + '.join(terms)})"


def rank_heads(plane: Plane, state: State, tp: int) -> int:
    """Heads that one of ``tp`` ranks holds: below one head per rank, ranks hold copies.

    Raises:
        PlanError: the heads can be dealt neither evenly nor as whole copies.
    """
    if state.sharding == "replicated" or tp == 1:
        return plane.heads
    if plane.heads % tp == 0:
        return plane.heads // tp
    if tp % plane.heads == 0:
        return 1
    raise PlanError(
        f"--tp: expected a number of ranks that divides the {plane.heads} heads of {plane.name} in layer "
        f"{state.layer}, or is a multiple of them, got {tp}"
    )


def encoder_tokens(state: State, request: Request, architecture: Architecture) -> int:
    """Entries of a cross state for one sequence: what the request says, else the model's own length.

    Raises:
        PlanError: neither says.
    """
    extent = state.extent
    usual = extent.length if isinstance(extent, Encoder) else None
    for length in (request.encoder_length, usual, architecture.encoder_length):
        if length is not None:
            return length
    raise PlanError(
        f"--encoder-length: expected how many tokens the encoder of {architecture.model_type} gives to cross "
        "attention, the config doesn't say"
    )


def counted(each: int, shared: int, batch: int, unit: str = "tokens") -> tuple[int, str]:
    """``each`` entries a sequence, ``shared`` of them the same ones for all: their number, and the sum with numbers."""
    if shared and batch > 1:
        return shared + batch * (each - shared), f"({shared} shared + {batch} x {each - shared}) {unit}"
    noun = unit.removesuffix("s") if each == 1 else unit
    return batch * each, f"{each} {noun}" if batch == 1 else f"{batch} x {each} {noun}"


def empty(state: State, unit: str) -> tuple[int, str]:
    """No entries: there is no sequence yet, not even for states that the first token makes as large as they get."""
    return 0, f"0 {unit} before the first token" if isinstance(state.extent, Fixed | Encoder) else f"0 {unit}"


def padded(number: int, multiple: int) -> int:
    """``number`` rounded up to a multiple."""
    return pages(number, multiple) * multiple


def pages(number: int, size: int) -> int:
    """How many pages of ``size`` hold ``number``."""
    return -(-number // size)


def check_whole(runtime: str, name: str, value: object, least: int = 1, most: int = 1 << 30) -> int:
    """A whole number that a runtime takes as an option.

    Raises:
        PlanError: it is none, or out of range.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise PlanError(f"{runtime}: expected {name} to be a whole number from {least} to {most}, got {shown(value)}")
    return value


def check_flag(runtime: str, name: str, value: object) -> bool:
    """An option that is on or off.

    Raises:
        PlanError: it is neither.
    """
    if not isinstance(value, bool):
        raise PlanError(f"{runtime}: expected {name} to be true or false, got {shown(value)}")
    return value


def check_storage(runtime: str, storage: Storage, known: tuple[str, ...], option: str = "--kv-dtype") -> Storage:
    """A storage that the runtime has for its cache.

    Raises:
        PlanError: it hasn't.
    """
    if storage.name not in known:
        raise PlanError(f"{runtime}: expected a {option} that it has, one of {', '.join(known)}, got {storage.name}")
    return storage


def one_storage(runtime: str, plane: Plane, request: Request, known: tuple[str, ...]) -> Storage:
    """The storage of a runtime that keeps keys and values alike, in whole blocks of each head.

    Raises:
        PlanError: it hasn't that storage, values are to differ, or blocks run over a head's end.
    """
    storage = check_storage(runtime, request.storage, known)
    if request.value_storage is not None and request.value_storage != storage:
        raise PlanError(
            f"{runtime}: expected keys and values in one dtype, got {storage.name} and {request.value_storage.name}"
        )
    if plane.dim % storage.block:
        raise PlanError(
            f"{runtime}: expected heads that blocks of {storage.block} divide for {storage.name}, got {plane.name} of "
            f"{plane.dim}; use another --kv-dtype"
        )
    return storage


def refused(runtime: str, state: State, why: str) -> PlanError:
    """The error for a state that a runtime can't hold, to be raised."""
    return PlanError(f"{runtime}: can't hold the {state.kind} state of layer {state.layer}: {why}")
