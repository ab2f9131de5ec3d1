"""Attention by PyTorch's fused kernel, wherever it takes grouped heads without copying K and V.

What the fused CPU kernel needs (PyTorch 2.13): equal widths of key and value, a last axis without gaps, no gradient
for the mask. Outside of this PyTorch silently runs a path that repeats K and V for every query head, so such calls are
refused here. It returns 0 for a row that sees nothing but reports LSE 0, so LSE is refused too. Its ``is_causal`` is
aligned at the top left and is used only where that means the same. Its gradients in half precision round the weights
before they are summed: 1.5 to 3 times the error of PyTorch's unfused path, measured, where twice is the limit here.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headwise.attention.backends.table import Backend, any_wants_gradient
from headwise.attention.blocks import block_ranges, fold_heads
from headwise.attention.problem import Problem

# Up to here the rows of a mask are copied for each head of a group, so that one product serves the group. Measured on
# a CPU: at 1 to 4 queries folding is 1.2 to 12 times as fast as the kernel's own grouping, at 32 queries equal.
_FOLDED_QUERIES = 16


def _refusal(problem: Problem, need_lse: bool) -> str | None:
    if need_lse:
        return "it gives no log-sum-exp that can be trusted, which statistics need too; 'native' and 'math' give one"
    if problem.softcap is not None:
        return "it has no soft-cap"
    if problem.sinks is not None:
        return "it has no sinks"
    if problem.value is not None and problem.value.shape[-1] != problem.query.shape[-1]:
        return (
            f"it takes equal widths of key and value only, got {problem.query.shape[-1]} and {problem.value.shape[-1]}"
        )
    if any_wants_gradient(problem.bias, problem.alibi_slopes):
        return "it gives no gradient for a bias or for ALiBi slopes"
    half_on_cpu = problem.query.dtype != problem.compute_dtype and problem.query.device.type == "cpu"
    if half_on_cpu and any_wants_gradient(problem.query, problem.key, problem.value):
        return f"its gradients in {problem.query.dtype} are not accumulated in float32"
    if problem.packing is not None:
        return "it takes packed documents one by one"
    if any(isinstance(length, torch.SymInt) for length in (*problem.query.shape, *problem.key.shape)):
        return "how it cuts a call depends on its lengths, which an exported graph leaves open"
    if any_wants_gradient(problem.query, problem.key, problem.value) and _keeps_masks(problem):
        return "its gradients would keep a mask of all pairs of queries and keys"
    return None


def _keeps_masks(problem: Problem) -> bool:
    return not _plainly_causal(problem) and len(_ranges(problem)) > 1


def _compute(problem: Problem, need_lse: bool) -> tuple[Tensor, None]:
    if _plainly_causal(problem):
        return _fused(problem, problem.query, problem.key, problem.value, None, causal=True), None
    problem = problem.narrowed()
    output = [_block(problem, start, stop) for start, stop in _ranges(problem)]
    return (torch.cat(output, 2) if len(output) > 1 else output[0]), None


def _plainly_causal(problem: Problem) -> bool:
    """Whether the call is what ``is_causal`` means: query ``i`` sees keys ``0`` to ``i``, nothing more to it."""
    square = problem.query_length == problem.key_length and problem.query_length > 1
    aligned = isinstance(problem.reach.offset, int) and problem.reach.offset == 0
    bare = problem.mask is None and problem.bias is None and problem.alibi_slopes is None
    # The kernel scales after it has masked: a scale of 0 would make -inf NaN, a negative one would show what is hidden.
    positive = problem.scale > 0
    unbounded = problem.reach.key_lengths is None and problem.reach.spans == ((None, 0),)
    return square and aligned and bare and positive and unbounded


def _ranges(problem: Problem) -> list[tuple[int, int]]:
    """All queries at once where no mask has to be written down, else blocks whose mask stays small."""
    length = problem.query_length
    if problem.bias is None and problem.alibi_slopes is None and not problem.hides(0, length):
        return [(0, length)]
    # Windows or biases per head, masks per sequence: the mask is as large as these need.
    given = [tensor for tensor in (problem.mask, problem.bias, problem.alibi_slopes) if tensor is not None]
    heads = max(len(problem.reach.spans), *(tensor.shape[1] for tensor in given), 1)
    ragged = problem.reach.key_lengths is not None or isinstance(problem.reach.offset, Tensor)
    batch = problem.batch_size if ragged else max(1, *(tensor.shape[0] for tensor in given), 1)
    row_bytes = batch * heads * problem.key_length * problem.compute_dtype.itemsize
    return list(block_ranges(length, row_bytes)) or [(0, 0)]


def _block(problem: Problem, start: int, stop: int) -> Tensor:
    low, high = keys = problem.key_range(start, stop)
    visible = problem.visible(start, stop, keys) if problem.hides(start, stop, keys) else None
    query = problem.clean_query(start, stop, visible).to(problem.query.dtype)
    key, value = (_without(tensor, problem.unread_keys, low, high) for tensor in (problem.key, problem.value))
    output = _fused(problem, query, key, value, _mask(problem, start, stop, keys, visible), causal=False)
    # What PyTorch gives for a row that sees nothing has changed between versions.
    return output if visible is None else output.masked_fill(~visible.any(-1, keepdim=True), 0.0)


def _without(tensor: Tensor | None, unread: Tensor | None, low: int, high: int) -> Tensor:
    """Some keys or values in their own dtype, zero where no query of the call may read them."""
    assert tensor is not None  # the public door asks for a value
    part = tensor[:, :, low:high]
    return part if unread is None else part.masked_fill(unread[:, :, low:high, None], 0.0)


def _mask(problem: Problem, start: int, stop: int, keys: tuple[int, int], visible: Tensor | None) -> Tensor | None:
    additive = problem.additive(start, stop, keys)
    if additive is None or visible is None:
        return visible if additive is None else additive.expand(-1, -1, stop - start, keys[1] - keys[0])
    return additive.masked_fill(~visible, -torch.inf)


def _fused(
    problem: Problem, query: Tensor, key: Tensor, value: Tensor | None, mask: Tensor | None, *, causal: bool
) -> Tensor:
    """One call of PyTorch, with the heads of a group as rows of one product where the mask allows it."""
    assert value is not None  # the public door asks for a value
    rows, groups = query.shape[2], problem.num_kv_heads
    key, value = _last_axis_dense(key), _last_axis_dense(value)
    if causal or (mask is not None and rows > _FOLDED_QUERIES and query.device.type == "cpu"):
        return scaled_dot_product_attention(
            _last_axis_dense(query),
            key,
            value,
            attn_mask=mask,
            is_causal=causal,
            scale=problem.scale,
            enable_gqa=groups != problem.num_heads,
        )
    mask = None if mask is None else _fold_mask(mask, problem.num_heads, groups)
    output = scaled_dot_product_attention(fold_heads(query, groups), key, value, attn_mask=mask, scale=problem.scale)
    return output.reshape(*problem.query.shape[:2], rows, output.shape[-1])


def _fold_mask(mask: Tensor, heads: int, groups: int) -> Tensor:
    """``[B or 1, H or 1, rows, S]`` to ``[B or 1, G or 1, R * rows, S]``, as :func:`fold_heads` orders the rows."""
    batch, mask_heads, rows, keys = mask.shape
    if heads == groups or (mask_heads == 1 and rows == 1):
        return mask
    if mask_heads == heads:
        return mask.reshape(batch, groups, heads // groups * rows, keys)
    return mask.expand(-1, heads // groups, -1, -1).reshape(batch, 1, heads // groups * rows, keys)


def _last_axis_dense(tensor: Tensor) -> Tensor:
    # The fused kernel needs it; a copy of the compact tensor is cheaper than the path without the kernel.
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


SDPA = Backend("sdpa", _refusal, _compute)
