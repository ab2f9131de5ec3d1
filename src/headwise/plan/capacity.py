"""The inverse: the longest context and the most sequences that memory allows.

Found by search, since pages, windows and pools make the bytes a staircase. No policy takes less for more tokens or
more sequences, so the first number that doesn't fit can be bracketed by doubling and then by halving. What the model
itself allows (``max_position_embeddings``) is another question: memory may allow more, or less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headwise.plan.allocation import Runtime, allocate
from headwise.plan.config import LARGEST
from headwise.plan.layers import Architecture
from headwise.plan.request import Request

__all__ = ["longest_context", "most_sequences"]


def longest_context(architecture: Architecture, request: Request, runtime: Runtime, room: int) -> int | None:
    """The longest context of ``request.batch`` sequences, whatever ``request.context`` says.

    Args:
        architecture: the model.
        request: all but the context; a shared prefix is a part of every context, so none is shorter.
        runtime: the policy.
        room: bytes of one rank that the weights leave.

    Returns:
        Tokens; 0 where not even the shortest context fits, None where any does, since nothing grows.

    Raises:
        PlanError: the runtime can't hold the model.
    """

    def fits(context: int) -> bool:
        return allocate(architecture, replace(request, context=context), runtime).total <= room

    return _most(fits, max(1, request.shared_prefix))


def most_sequences(architecture: Architecture, request: Request, runtime: Runtime, room: int) -> int | None:
    """The most sequences of ``request.context`` tokens, whatever ``request.batch`` says.

    Args:
        architecture: the model.
        request: all but the batch; a context of 0 is taken for 1, since an empty cache has no sequences to count.
        runtime: the policy.
        room: bytes of one rank that the weights leave.

    Returns:
        Sequences; 0 where not even one fits, None where any number does, since the model keeps nothing.

    Raises:
        PlanError: the runtime can't hold the model.
    """
    context = max(1, request.context)

    def fits(batch: int) -> bool:
        return allocate(architecture, replace(request, context=context, batch=batch), runtime).total <= room

    return _most(fits, 1)


def _most(fits: Callable[[int], bool], least: int) -> int | None:
    """The largest number from ``least`` on that fits; 0: none does; None: all do."""
    if not fits(least):
        return 0
    if fits(LARGEST):
        return None
    low, step = least, 1
    while low + step < LARGEST and fits(low + step):
        low, step = low + step, 2 * step
    high = min(low + step, LARGEST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
