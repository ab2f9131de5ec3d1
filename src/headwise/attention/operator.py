"""``headwise::attention`` as an operation of PyTorch: one node in a compiled or exported graph, with gradients.

Both directions run as ordinary PyTorch code behind a schema.

Symbols: ``B`` batch, ``L`` query length, ``S`` key length, ``H`` query heads, ``G`` KV heads, ``D`` head dim, ``Dv``
value head dim, ``N`` packed documents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.attention import compiled, streaming, validation
from headwise.attention.gradients import Gradients, gradients
from headwise.attention.masks import FAR, Reach, Span
from headwise.attention.precision import full_precision
from headwise.attention.problem import Problem

__all__ = ["attention_operator", "call_operator"]

_FORWARD: dict[str, Callable[[Problem], tuple[Tensor, Any]]] = {"math": streaming.forward, "native": compiled.forward}
_UNBOUNDED = -1  # in a flat list of window bounds
_DIFFERENTIABLE = tuple(Gradients.__dataclass_fields__)  # in the order of the schema


_INPUTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? sinks, Tensor? alibi_slopes, Tensor? mask, "
    "Tensor? offsets, Tensor? key_lengths, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, SymInt offset, "
    "int[] window_bounds, float scale, float? softcap, str kernel"
)

# Defined by schema and not by torch.library.custom_op, whose first call imports the compiler: seconds for everybody.
torch.library.define("headwise::attention", f"({_INPUTS}) -> (Tensor, Tensor)")
torch.library.define(
    "headwise::attention_backward",
    f"(Tensor output_gradient, Tensor lse_gradient, Tensor lse, bool[] wanted, {_INPUTS}) -> Tensor[]",
)


@torch.library.impl("headwise::attention", "CompositeExplicitAutograd")
def _forward_operator(query: Tensor, *inputs: Any) -> tuple[Tensor, Tensor]:
    """Attention and its LSE; :func:`headwise.attention.attention` is the public door, which checks and fills in.

    Inputs: ``query`` ``[B, H, L, D]``, ``key`` ``[B, G, S, D]``, ``value`` ``[B, G, S, Dv]``, ``bias`` and ``mask`` of
    four axes, each full or 1, ``sinks`` ``[H]``, ``alibi_slopes`` ``[1 or B, H, 1, 1]``, ``offsets`` ``[B]`` (where it
    is None, ``offset`` holds for all), ``key_lengths`` ``[B]``, ``cu_seqlens_q`` and ``cu_seqlens_k`` ``[N + 1]``,
    ``window_bounds`` left and right for all heads or of each in turn (-1 = unbounded), ``kernel`` what computes it
    (``math`` or ``native``; gradients are those of ``math``). Outputs: ``[B, H, L, Dv]`` in
    the query's dtype and LSE ``[B, H, L]`` in the compute dtype.
    """
    with full_precision(query.device):
        return _FORWARD[inputs[-1]](_problem(query, *inputs))


@torch.library.register_fake("headwise::attention")
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    rows = query.shape[:3]
    lse_dtype = torch.promote_types(query.dtype, torch.float32)
    return query.new_empty((*rows, value.shape[-1])), query.new_empty(rows, dtype=lse_dtype)


@torch.library.impl("headwise::attention_backward", "CompositeExplicitAutograd")
def _backward_operator(
    output_gradient: Tensor, lse_gradient: Tensor, lse: Tensor, wanted: Sequence[bool], *inputs: Any
) -> list[Tensor]:
    """Gradients of the wanted ones of ``query, key, value, bias, sinks, alibi_slopes``, in that order."""
    names = [name for name, asked in zip(_DIFFERENTIABLE, wanted, strict=True) if asked]
    problem = _problem(*inputs)
    with full_precision(lse.device):
        found = gradients(problem, lse, output_gradient, lse_gradient, names)
    return [getattr(found, name).to(getattr(problem, name).dtype) for name in names]


@torch.library.register_fake("headwise::attention_backward")
def _(output_gradient: Tensor, lse_gradient: Tensor, lse: Tensor, wanted: Sequence[bool], *inputs: Any) -> list[Tensor]:
    pairs = zip(inputs, wanted, strict=False)
    return [tensor.new_empty(tensor.shape) for tensor, asked in pairs if asked]


def _problem(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    sinks: Tensor | None,
    alibi_slopes: Tensor | None,
    mask: Tensor | None,
    offsets: Tensor | None,
    key_lengths: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    offset: int,
    window_bounds: Sequence[int],
    scale: float,
    softcap: float | None,
    kernel: str,
) -> Problem:
    # In a compiled graph nobody could look at these numbers before.
    validation.check_key_lengths(key_lengths, query.shape[0], key.shape[2], query.device)
    packing = None if cu_seqlens_q is None or cu_seqlens_k is None else (cu_seqlens_q, cu_seqlens_k)
    return Problem(
        query=query,
        key=key,
        value=value,
        mask=mask,
        bias=bias,
        reach=Reach(_spans(window_bounds), offset if offsets is None else offsets, key_lengths),
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
        packing=packing,
    )


def call_operator(problem: Problem, kernel: str) -> tuple[Tensor, Tensor]:
    """Output and LSE of a checked problem by the registered operation, which runs ``kernel``."""
    assert problem.value is not None  # the public door asks for a value
    offset, packing = problem.reach.offset, problem.packing or (None, None)
    output, lse = attention_operator(
        problem.query,
        problem.key,
        problem.value,
        problem.bias,
        problem.sinks,
        problem.alibi_slopes,
        problem.mask,
        offset if isinstance(offset, Tensor) else None,
        problem.reach.key_lengths,
        *packing,
        0 if isinstance(offset, Tensor) else offset,
        _bounds(problem.reach.spans),
        problem.scale,
        problem.softcap,
        kernel,
    )
    return output, lse


def _bounds(spans: Sequence[Span]) -> list[int]:
    return [_UNBOUNDED if bound is None else min(bound, FAR) for span in spans for bound in span]


def _spans(bounds: Sequence[int]) -> tuple[Span, ...]:
    given = [None if bound == _UNBOUNDED else bound for bound in bounds]
    return tuple(zip(given[::2], given[1::2], strict=True))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors, ctx.numbers = inputs[:11], inputs[11:]
    ctx.save_for_backward(output[1], *tensors)


def _differentiate(ctx: Any, output_gradient: Tensor, lse_gradient: Tensor) -> tuple[Tensor | None, ...]:
    lse, *tensors = ctx.saved_tensors
    wanted = [bool(needed) for needed in ctx.needs_input_grad[: len(_DIFFERENTIABLE)]]
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        problem = _problem(*tensors, *ctx.numbers)
        found = streaming.differentiable_backward(problem, output_gradient, lse_gradient, wanted)
    else:
        found = _attention_backward(output_gradient, lse_gradient, lse, wanted, *tensors, *ctx.numbers)
    remaining = iter(found)
    spread = [next(remaining) if asked else None for asked in wanted]
    return *spread, *[None] * (len(ctx.needs_input_grad) - len(spread))


torch.library.register_autograd("headwise::attention", _differentiate, setup_context=_keep)
attention_operator = torch.ops.headwise.attention.default
_attention_backward = torch.ops.headwise.attention_backward.default
