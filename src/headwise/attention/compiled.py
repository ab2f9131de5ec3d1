"""The way to the compiled kernels: a checked problem as they take it.

Symbols: ``B`` batch, ``L`` query length, ``S`` key length, ``H`` query heads, ``D`` head dim, ``Dv`` value head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from headwise.attention.masks import FAR, UNBOUNDED, Span
from headwise.attention.problem import Problem
from headwise.errors import UserError
from headwise.native import decode_attention, is_built, prefill_attention, used_instruction_set
from headwise.native_caches import Segment, decode_segments

__all__ = [
    "INSTRUCTION_SET",
    "WIDEST",
    "InstructionSetError",
    "call_options",
    "check_instruction_set",
    "dense",
    "forward",
    "forward_in_place",
    "has_many_rows",
]


class InstructionSetError(UserError, ValueError):
    """The environment variable ``HEADWISE_ISA`` names no instruction set that was built and that is here."""


def _settled() -> tuple[str | None, str | None]:
    """The instruction set whose kernels are used, or what is wrong with the one that was asked for."""
    try:
        return (used_instruction_set() if is_built() else None), None
    except ValueError as error:
        return None, str(error)


# What the kernels use here, None where they weren't built. Settled once: a graph that is being compiled can't ask. An
# import must not fail over what is wrong with it, so a call does.
INSTRUCTION_SET, _WRONG = _settled()
WIDEST = 256  # elements of a key or a value that the kernels take
# Queries times heads of a group from which on tiles are faster than reading each key once. Measured at 4,096 keys, 32/8
# heads of width 128, on one thread: equal at 32 rows, 1.2 (float32) to 1.5 times (bfloat16) as fast at 64.
PREFILL_ROWS = 32

_ALL = -1  # a window without a bound


def check_instruction_set(device: torch.device) -> None:
    """Refuse to choose a backend on a CPU whose kernels were asked for by a name that none of them has.

    Raises:
        InstructionSetError: ``HEADWISE_ISA`` names no instruction set that is here.
    """
    if _WRONG is not None and device.type == "cpu":
        raise InstructionSetError(_WRONG)


def forward(problem: Problem, need_lse: bool = True) -> tuple[Tensor, Tensor | None]:
    """Output ``[B, H, L, Dv]`` in the query's dtype and LSE ``[B, H, L]`` in float32, without gradients."""
    value = problem.value
    assert value is not None  # the public door asks for a value
    rows = problem.query.shape[:3]
    output = torch.empty((*rows, value.shape[3]), dtype=problem.query.dtype)
    lse = torch.empty(rows, dtype=torch.float32) if need_lse else None
    run = prefill_attention if has_many_rows(problem) else decode_attention
    run(
        dense(problem.query),
        dense(problem.key),
        dense(value),
        output,
        lse=lse,
        key_lengths=None if problem.reach.key_lengths is None else problem.reach.key_lengths.tolist(),
        **call_options(problem),
    )
    return output, lse


def forward_in_place(problem: Problem, segments: Sequence[Segment]) -> Tensor:
    """Output ``[B, H, L, Dv]`` over keys and values that lie in segments; those of the problem give their sizes only.

    The segments hold what key lengths would allow.
    """
    assert problem.value is not None  # it has the width
    output = torch.empty((*problem.query.shape[:3], problem.value.shape[3]), dtype=problem.query.dtype)
    decode_segments(
        dense(problem.query),
        segments,
        output,
        kv_heads=problem.num_kv_heads,
        keys=problem.key_length,
        **call_options(problem),
    )
    return output


def call_options(problem: Problem) -> dict[str, Any]:
    """What is the same for all kernels."""
    left, right = _windows(problem.reach.spans, problem.num_heads)
    return {
        "offsets": _per_sequence(problem.reach.offset, problem.batch_size),
        "left": left,
        "right": right,
        "mask": problem.mask,
        "bias": None if problem.bias is None else _number(problem.bias),
        "sinks": None if problem.sinks is None else problem.sinks.float().contiguous(),
        "slopes": None if problem.alibi_slopes is None else _slopes(problem.alibi_slopes),
        "scale": problem.scale,
        "softcap": problem.softcap or 0.0,
        "threads": torch.get_num_threads(),
    }


def has_many_rows(problem: Problem) -> bool:
    """Whether a key serves so many queries, over all heads of its group, that tiles are worth making."""
    return problem.query_length * problem.num_heads >= PREFILL_ROWS * problem.num_kv_heads


@lru_cache(maxsize=256)  # the same for every token
def _windows(spans: tuple[Span, ...], heads: int) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Left and right bound of every head, as the kernels write them."""
    if spans == (UNBOUNDED,):
        return None, None
    each = spans * heads if len(spans) == 1 else spans
    left, right = zip(*each, strict=True)
    return _bounds(left), _bounds(right)


def _bounds(side: Sequence[int | None]) -> tuple[int, ...]:
    return tuple(_ALL if bound is None else min(bound, FAR) for bound in side)


def _per_sequence(offset: int | Tensor, batch: int) -> list[int]:
    return [offset] * batch if isinstance(offset, int) else offset.tolist()


def dense(tensor: Tensor) -> Tensor:
    # Kernels read rows; other strides are as they come.
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _slopes(slopes: Tensor) -> Tensor:
    """``[1 or B, H, 1, 1]`` to ``[H]`` or ``[B, H]``."""
    flat = slopes[..., 0, 0].float().contiguous()
    return flat[0] if flat.shape[0] == 1 else flat


def _number(bias: Tensor) -> Tensor:
    return bias if bias.dtype in (torch.float32, torch.bfloat16, torch.float16) else bias.float()
