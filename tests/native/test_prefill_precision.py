"""Errors of the prefill kernel against float64, held against those of PyTorch's own path in the same dtype."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tests.attention.cases import make_case
from tests.native.decoding import ISAS, built
from tests.native.prefill_calls import held_in, run_prefill

pytestmark = built

ALLOWED_FACTOR = 2.0


def pytorch(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    group, queries, keys = query.shape[1] // key.shape[1], query.shape[2], key.shape[2]
    visible = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    repeated = [tensor.repeat_interleave(group, 1) for tensor in (key, value)]
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(query, *repeated, attn_mask=visible)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "queries", "keys", "width", "spread", "mean"),
    [
        (6, 2, 37, 37, 64, 2.0, 0.0),
        (4, 2, 67, 1031, 128, 1.0, 0.0),  # many keys of like weight
        (2, 1, 61, 61, 64, 8.0, 0.0),  # one key outweighs the rest
        (4, 4, 47, 509, 32, 0.1, 3.0),  # values that do not cancel
    ],
)
def test_error_is_at_most_twice_that_of_pytorch(
    isa: str,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    queries: int,
    keys: int,
    width: int,
    spread: float,
    mean: float,
) -> None:
    case = make_case(1, heads, kv_heads, queries, keys, width)
    case.query.mul_(spread)
    case.value.add_(mean)
    case.options["causal"] = True
    held = held_in(case, dtype)
    tensors = (held.query, held.key, held.value)
    exact = pytorch(*(tensor.double() for tensor in tensors))
    error, budget = (
        float((result.double() - exact).square().mean().sqrt())
        for result in (run_prefill(held, isa)[0], pytorch(*tensors))
    )
    assert 0 < error <= ALLOWED_FACTOR * budget, f"error {error:.3g}, PyTorch's {budget:.3g}"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lse_is_as_exact_as_in_float32_whatever_the_weights_are_rounded_to(isa: str, dtype: torch.dtype) -> None:
    case = make_case(1, 4, 2, 53, 701, 64)
    held = held_in(case, dtype)
    scale = 64**-0.5

    def lse(query: Tensor, key: Tensor) -> Tensor:
        return torch.logsumexp(query @ key.repeat_interleave(2, 1).mT * scale, -1)

    exact = lse(held.query.double(), held.key.double())
    error, budget = (
        float((result.double() - exact).square().mean().sqrt())
        for result in (run_prefill(held, isa)[1], lse(held.query.float(), held.key.float()))
    )
    assert 0 < error <= ALLOWED_FACTOR * budget, f"error {error:.3g}, PyTorch's {budget:.3g}"
