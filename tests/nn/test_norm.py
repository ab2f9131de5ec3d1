"""The norm against its formula in float64 and against the norms of transformers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from headwise.nn import RMSNorm
from tests.helpers.compare import assert_same, assert_same_function
from tests.nn.widened import Widened

SHAPE = (2, 3, 5, 7)
EPS = 1e-3


def made(offset: bool, dtype: torch.dtype = torch.float64) -> RMSNorm:
    norm = RMSNorm(SHAPE[-1], eps=EPS, unit_offset=offset, dtype=dtype)
    torch.nn.init.normal_(norm.weight)
    return norm


@pytest.mark.parametrize("offset", [False, True])
def test_the_formula_holds(offset: bool) -> None:
    norm = made(offset)

    def expected(x: Tensor, weight: Tensor) -> tuple[Tensor]:
        return (x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * (1 + weight if offset else weight),)

    def actual(x: Tensor, weight: Tensor) -> tuple[Tensor]:
        return (torch.func.functional_call(norm, {"weight": weight}, (x,)),)

    assert_same_function(actual, expected, {"x": torch.randn(SHAPE, dtype=torch.float64), "weight": norm.weight})


@pytest.mark.parametrize("theirs", [Qwen3RMSNorm, Gemma3RMSNorm])
def test_state_and_numbers_are_those_of_transformers(theirs: type[torch.nn.Module]) -> None:
    other = theirs(SHAPE[-1], eps=EPS).double()
    norm, x = RMSNorm(SHAPE[-1], eps=EPS, unit_offset=theirs is Gemma3RMSNorm), torch.randn(SHAPE, dtype=torch.float64)
    assert torch.equal(norm.weight, other.weight.float())  # as they start
    torch.nn.init.normal_(other.weight)
    norm.double().load_state_dict(other.state_dict())
    with Widened():
        expected = other(x)
    assert_same(norm(x), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("offset", [False, True])
def test_narrow_types_lose_no_more_than_in_transformers(dtype: torch.dtype, offset: bool) -> None:
    norm, x = made(offset, dtype), torch.randn(SHAPE, dtype=dtype)
    other = (Gemma3RMSNorm if offset else Qwen3RMSNorm)(SHAPE[-1], eps=EPS).to(dtype)
    other.load_state_dict(norm.state_dict())
    exact = made(offset)
    exact.weight.data = norm.weight.detach().double()
    distances = [(module(x).double() - exact(x.double())).abs().max() for module in (norm, other)]
    assert norm(x).dtype == dtype
    assert distances[0] <= 2 * distances[1]


def test_squares_do_not_overflow_in_half_precision() -> None:
    x = torch.full(SHAPE, 3e4, dtype=torch.float16)
    assert_same(made(False, torch.float16).to(torch.float16)(x).isfinite().double(), torch.ones(SHAPE).double())


def test_print_tells_the_settings() -> None:
    assert "eps=0.001" in repr(made(False))
    assert "unit_offset=True" in repr(made(True))
