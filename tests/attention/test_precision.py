"""Errors of each dtype, held against the errors that PyTorch's own path makes on the same data in the same dtype.

The budget isn't picked: both are measured against float64 on the very numbers that the dtype holds, and ours may be at
most twice PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from headwise.attention import attention
from tests.attention.cases import make_case

ALLOWED_FACTOR = 2.0


def outputs_and_gradients(
    query: Tensor, key: Tensor, value: Tensor, backend: str | None, upstream: Tensor | None
) -> list[Tensor]:
    """The output, and where an upstream gradient is given the three gradients."""
    leaves = [tensor.detach().clone().requires_grad_(upstream is not None) for tensor in (query, key, value)]
    if backend == "pytorch":
        group = query.shape[1] // key.shape[1]
        repeated = [leaf.repeat_interleave(group, 1) for leaf in leaves[1:]]
        with sdpa_kernel(SDPBackend.MATH):
            output = scaled_dot_product_attention(leaves[0], *repeated, is_causal=True)
    else:
        output = attention(*leaves, causal=True, backend=backend)
    if upstream is None:
        return [output]
    output.backward(upstream.to(output.dtype))
    return [output.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "kv_heads", "length", "width"), [(6, 2, 37, 64), (4, 4, 131, 32), (28, 4, 19, 16)])
@pytest.mark.parametrize("backend", ["math", "native", "sdpa", None])
@pytest.mark.parametrize("backward", [False, True])
def test_error_is_at_most_twice_that_of_pytorch(
    dtype: torch.dtype, heads: int, kv_heads: int, length: int, width: int, backend: str | None, backward: bool
) -> None:
    case = make_case(2, heads, kv_heads, length, length, width)
    held = [tensor.to(dtype) for tensor in (case.query * 2, case.key, case.value)]
    upstream = torch.randn(case.query.shape, dtype=torch.float64).to(dtype).double() if backward else None
    if backward and backend == "sdpa" and dtype != torch.float32:
        with pytest.raises(
            ValueError, match=rf"^backend 'sdpa': its gradients in {dtype} are not accumulated in float32;"
        ):
            outputs_and_gradients(*held, backend, upstream)
        return
    exact = outputs_and_gradients(*(tensor.double() for tensor in held), "pytorch", upstream)
    ours = outputs_and_gradients(*held, backend, upstream)
    theirs = outputs_and_gradients(*held, "pytorch", upstream)
    names = ["output", "gradient of query", "gradient of key", "gradient of value"]
    for name, right, own, other in zip(names, exact, ours, theirs, strict=False):
        error, budget = (float((result.double() - right).square().mean().sqrt()) for result in (own, other))
        assert 0 < error <= ALLOWED_FACTOR * budget, f"{name}: error {error:.3g}, PyTorch's {budget:.3g}"


WINDOW = 11
SHAPES = [(6, 2, 37, 64), (4, 4, 131, 32), (28, 4, 19, 16)]


def window_bias(bias: Tensor) -> Tensor:
    """The bias ``[H, 1, S]`` as PyTorch takes it together with a causal window."""
    positions = torch.arange(bias.shape[-1])
    behind = positions[:, None] - positions
    hidden = (behind < 0) | (behind > WINDOW)
    return bias.expand(-1, len(positions), -1).masked_fill(hidden, -torch.inf)[None]


def biased(leaves: list[Tensor], own: bool) -> Tensor:
    """A window and a bias with a gradient."""
    query, key, value, bias = leaves
    if own:
        return attention(query, key, value, causal=True, window=(WINDOW, 0), bias=bias, backend="math")
    repeated = [tensor.repeat_interleave(query.shape[1] // key.shape[1], 1) for tensor in (key, value)]
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(query, *repeated, attn_mask=window_bias(bias))


def capped(leaves: list[Tensor], own: bool) -> Tensor:
    """A soft-cap and sinks with a gradient; the rival is the formula in plain operations, its softmax in float32."""
    query, key, value, bias = leaves
    sinks = bias[:, 0, 0]
    if own:
        return attention(query, key, value, causal=True, softcap=5.0, sinks=sinks, backend="math")
    key, value = (tensor.repeat_interleave(query.shape[1] // key.shape[1], 1) for tensor in (key, value))
    scores = torch.tanh(query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5 / 5.0) * 5.0
    scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    counted = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:3], 1)], -1)
    wide = torch.promote_types(counted.dtype, torch.float32)
    return torch.softmax(counted, -1, dtype=wide)[..., :-1].to(value.dtype) @ value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "kv_heads", "length", "width"), SHAPES)
@pytest.mark.parametrize("way", [biased, capped])
def test_gradients_of_everything_are_at_most_twice_as_wrong(
    way: Callable[[list[Tensor], bool], Tensor],
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    length: int,
    width: int,
) -> None:
    case = make_case(2, heads, kv_heads, length, length, width)
    bias = torch.randn(heads, 1, length, dtype=torch.float64)
    held = [tensor.to(dtype) for tensor in (case.query * 2, case.key, case.value, bias)]
    upstream = torch.randn(case.query.shape, dtype=torch.float64).to(dtype)

    def run(precise: bool, own: bool) -> list[Tensor]:
        leaves = [(tensor.double() if precise else tensor).clone().requires_grad_() for tensor in held]
        output = way(leaves, own)
        output.backward(upstream.to(output.dtype))
        return [output.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    exact, ours, theirs = run(True, False), run(False, True), run(False, False)
    names = ["output", "gradient of query", "gradient of key", "gradient of value", "gradient of bias or sinks"]
    for name, right, own, other in zip(names, exact, ours, theirs, strict=True):
        error, budget = (float((result.double() - right).square().mean().sqrt()) for result in (own, other))
        assert 0 < error <= ALLOWED_FACTOR * budget, f"{name}: error {error:.3g}, PyTorch's {budget:.3g}"
