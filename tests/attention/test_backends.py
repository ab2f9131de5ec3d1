"""Which backend serves a call, what a named one refuses, and the rows that trip kernels up."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headwise.attention import AttentionOutput, attention, attention_weights, attention_with_lse
from headwise.attention.backends import BACKENDS, choose_backend, sdpa
from headwise.attention.problem import Problem
from headwise.attention.reference import reference_attention
from tests.attention.cases import Case, make_case
from tests.helpers.compare import assert_same
from tests.helpers.operations import FUSED, Operations

REFUSED_BY_SDPA = {
    "soft-cap": ({"softcap": 5.0}, "it has no soft-cap"),
    "sinks": ({"sinks": torch.zeros(6)}, "it has no sinks"),
    "bias": (
        {"bias": torch.zeros(5, 7, dtype=torch.float64, requires_grad=True)},
        "it gives no gradient for a bias or for ALiBi slopes",
    ),
    "slopes": (
        {"alibi_slopes": torch.zeros(6, requires_grad=True)},
        "it gives no gradient for a bias or for ALiBi slopes",
    ),
}


def usual_case() -> Case:
    return make_case(2, 6, 3, 5, 7, 11)


@pytest.mark.parametrize(("options", "reason"), REFUSED_BY_SDPA.values(), ids=REFUSED_BY_SDPA)
def test_sdpa_says_what_it_cannot_do(options: dict[str, Any], reason: str) -> None:
    case = usual_case()
    message = f"backend 'sdpa': {reason}; leave backend=None to let one be chosen"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        attention(case.query, case.key, case.value, **options, backend="sdpa")
    attention(case.query, case.key, case.value, **options)  # another one is chosen


def test_sdpa_refuses_log_sum_exp_and_unequal_widths() -> None:
    case = make_case(2, 6, 3, 5, 7, 11, 13)
    untrusted = "it gives no log-sum-exp that can be trusted, which statistics need too; 'native' and 'math' give one"
    with pytest.raises(ValueError, match=f"^backend 'sdpa': {untrusted}; leave backend=None to let one be chosen$"):
        attention_with_lse(case.query, case.key, case.value, backend="sdpa")
    with pytest.raises(
        ValueError, match=r"^backend 'sdpa': it takes equal widths of key and value only, got 11 and 13;"
    ):
        attention(case.query, case.key, case.value, backend="sdpa")


def test_the_first_backend_that_can_is_chosen() -> None:
    case = usual_case()

    def chosen(need_lse: bool = False, **options: Any) -> str:
        problem = Problem.of(case.query, case.key, case.value, **options)
        return choose_backend(BACKENDS, None, problem, need_lse).name

    assert chosen() == chosen(causal=True, window=[(1, 0)] * 6) == "sdpa"
    assert chosen(bias=torch.zeros(7)) == "sdpa"
    assert chosen(bias=torch.zeros(7, requires_grad=True)) == "math"
    assert chosen(need_lse=True) == chosen(softcap=1.0) == chosen(sinks=torch.zeros(6)) == "math"
    with torch.no_grad():
        assert chosen(bias=torch.zeros(7, requires_grad=True)) == "sdpa"


FUSED_CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "windows": {"causal": True, "window": [(2, 0), None] * 3},
    "mask": {"mask": torch.ones(2, 1, 1, 23, dtype=torch.bool).tril()},
    "bias": {"bias": torch.zeros(6, 1, 1)},
    "slopes": {"alibi_slopes": torch.ones(6)},
    "lengths": {"key_lengths": [23, 19]},
}


@pytest.mark.parametrize("options", FUSED_CALLS.values(), ids=FUSED_CALLS)
@pytest.mark.parametrize("queries", [1, 3, 23])
@pytest.mark.parametrize("transposed", [False, True])
def test_sdpa_always_runs_the_fused_kernel(options: dict[str, Any], queries: int, transposed: bool) -> None:
    case = make_case(2, 6, 3, queries, 23, 11)
    key, value = case.key, case.value
    if transposed:  # a last axis with gaps sends PyTorch to the path that copies
        key, value = (tensor.transpose(2, 3).contiguous().transpose(2, 3) for tensor in (key, value))
    with Operations() as ran:
        attention(case.query, key, value, **options, backend="sdpa")
    assert ran.names.count(FUSED) == 1
    assert not [name for name in ran.names if "mm" in name]


@pytest.mark.parametrize("backend", ["sdpa", "math"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_rows_that_see_nothing(backend: str, dtype: torch.dtype) -> None:
    case = make_case(2, 6, 3, 5, 7, 11)
    mask = torch.ones(2, 1, 5, 7, dtype=torch.bool)
    mask[0, :, 1], mask[1] = False, False  # one query of the first sequence, all of the second
    backward = backend == "math" or dtype.itemsize > 2
    leaves = [tensor.to(dtype).requires_grad_(backward) for tensor in (case.query, case.key, case.value)]
    output = attention(*leaves, mask=mask, backend=backend)
    assert output.dtype == dtype
    by_query, by_key = [output], []
    if backward:
        output.sum().backward()
        gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
        by_query, by_key = [output, gradients[0]], gradients[1:]
    for result in by_query:
        assert result[0, :, 1].eq(0).all()
        assert result[1].eq(0).all()
        assert result[0, :, 0].ne(0).any()
    for result in by_key:
        assert result[1].eq(0).all()
        assert result[0].isfinite().all()


@pytest.mark.parametrize("queries", [5, 19])  # folded into one product, and not
def test_rows_that_see_nothing_are_not_left_to_pytorch(queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def older_pytorch(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor, **options: Any) -> Tensor:
        blind = ~attn_mask.any(-1, keepdim=True)
        return scaled_dot_product_attention(query, key, value, attn_mask, **options).masked_fill(blind, torch.nan)

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", older_pytorch)
    case = make_case(2, 6, 3, queries, 7, 11)
    mask = torch.ones(queries, 7, dtype=torch.bool)
    mask[3] = False
    output = attention(case.query, case.key, case.value, mask=mask, backend="sdpa")
    assert output[:, :, 3].eq(0).all()
    assert_same(output, reference_attention(case.query, case.key, case.value, mask=mask).output)


def test_rows_that_see_nothing_have_no_lse_and_no_weights() -> None:
    case = usual_case()
    sinks = torch.ones(6, dtype=torch.float64, requires_grad=True)
    options = {"causal": True, "offset": -2, "sinks": sinks}
    result = attention_with_lse(case.query, case.key, case.value, **options)
    assert result.lse[:, :, :2].eq(-torch.inf).all()
    assert result.lse[:, :, 2:].isfinite().all()
    assert result.output[:, :, :2].eq(0).all()
    weights = attention_weights(case.query, case.key, **options)
    assert weights[:, :, :2].eq(0).all()
    assert weights[:, :, 2:].sum(-1).gt(0).all()
    result.lse[:, :, :2].exp().sum().backward()
    assert sinks.grad is not None
    assert sinks.grad.eq(0).all()


def test_a_padded_query_may_hold_anything() -> None:
    case = usual_case()
    query = case.query.clone()
    query[:, :, 1] = torch.nan
    mask = torch.ones(5, 1, dtype=torch.bool)
    mask[1] = False
    for backend in ("sdpa", "math"):
        leaves = [tensor.detach().clone().requires_grad_() for tensor in (query, case.key, case.value)]
        output = attention(*leaves, mask=mask, backend=backend)
        output.square().sum().backward()
        for tensor in (output, *(leaf.grad for leaf in leaves)):
            assert tensor is not None
            assert tensor.isfinite().all()


def test_a_bias_of_minus_infinity_hides_like_a_mask() -> None:
    case = usual_case()
    mask = torch.rand(2, 1, 5, 7) < 0.5
    mask[1, :, 3] = False
    bias = torch.zeros(2, 1, 5, 7, dtype=torch.float64).masked_fill(~mask, -torch.inf)
    for backend in ("sdpa", "math"):
        expected = attention(case.query, case.key, case.value, mask=mask, backend=backend)
        assert_same(attention(case.query, case.key, case.value, bias=bias, backend=backend), expected)
    expected_lse = attention_with_lse(case.query, case.key, case.value, mask=mask).lse
    assert_same(attention_with_lse(case.query, case.key, case.value, bias=bias).lse, expected_lse)
    assert expected_lse[1, :, 3].eq(-torch.inf).all()


@pytest.mark.parametrize("backend", ["sdpa", "math"])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
@pytest.mark.parametrize("causal", [False, True])
def test_empty_axes(backend: str, batch: int, queries: int, keys: int, causal: bool) -> None:
    case = make_case(batch, 4, 2, queries, keys, 5)
    leaves = [tensor.requires_grad_() for tensor in (case.query, case.key, case.value)]
    output = attention(*leaves, causal=causal, backend=backend)
    assert output.shape == (batch, 4, queries, 5)
    assert output.eq(0).all()
    output.sum().backward()
    assert attention_weights(case.query, case.key, causal=causal).shape == (batch, 4, queries, keys)
    assert attention_with_lse(*leaves, causal=causal).lse.shape == (batch, 4, queries)


@pytest.mark.parametrize(
    ("dtype", "lse_dtype"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)
def test_results_have_the_promised_types(dtype: torch.dtype, lse_dtype: torch.dtype) -> None:
    query, key, value = (tensor.to(dtype) for tensor in (usual_case().query, usual_case().key, usual_case().value))
    for autocast in (False, True):  # which must not change them
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            result = attention_with_lse(query, key, value)
            assert isinstance(result, AttentionOutput)
            assert (result.output.dtype, result.lse.dtype) == (dtype, lse_dtype)
            assert attention(query, key, value).dtype == attention_weights(query, key).dtype == dtype


def test_what_is_given_is_not_changed() -> None:
    case = usual_case()
    options: dict[str, Any] = {
        "mask": torch.rand(2, 1, 1, 7) < 0.5,
        "bias": torch.randn(6, 1, 7, dtype=torch.float64),
        "key_lengths": torch.tensor([5, 0]),
        "offset": torch.tensor([2, 3]),
        "alibi_slopes": torch.rand(6),
    }
    given = [case.query, case.key, case.value, *options.values()]
    before = [tensor.clone() for tensor in given]
    for backend in ("sdpa", "math"):
        attention(case.query, case.key, case.value, **options, backend=backend)
    for tensor, copy in zip(given, before, strict=True):
        assert torch.equal(tensor, copy)


def test_views_of_a_larger_cache_are_read_in_place() -> None:
    case = make_case(2, 6, 3, 1, 19, 11)
    memory = torch.full((2, 3, 41, 11), torch.nan, dtype=torch.float64)
    memory[:, :, :19] = case.key
    expected = reference_attention(case.query, case.key, case.value, causal=True).output
    value = torch.full((2, 3, 41, 11), torch.nan, dtype=torch.float64)
    value[:, :, :19] = case.value
    for backend in ("sdpa", "math"):
        lengths = attention(case.query, memory, value, key_lengths=[19, 19], causal=True, backend=backend)
        views = attention(case.query, memory[:, :, :19], value[:, :, :19], causal=True, backend=backend)
        assert_same(lengths, expected)
        assert_same(views, expected)
