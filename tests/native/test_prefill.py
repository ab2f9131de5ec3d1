"""The prefill kernel of every instruction set against the oracle: any options, any sizes, unread memory poisoned."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise.attention.reference import reference_attention, reference_visible
from headwise.native import prefill_attention
from tests.attention.cases import Case, cases, make_case, score_options, visibility
from tests.native.decoding import ISAS, built
from tests.native.prefill_calls import assert_near, held_in, run_prefill

pytestmark = built

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@st.composite
def long_cases(draw: st.DrawFn) -> Case:
    """More rows than a panel and more keys than a tile hold, or none at all."""
    heads, kv_heads = draw(st.sampled_from([(4, 2), (3, 1), (2, 2)]))
    queries, keys = draw(st.sampled_from([(19, 101), (53, 13), (3, 211), (1, 0), (2, 1)]))
    width, value_width = draw(st.sampled_from([(5, 3), (17, 37), (1, 19), (0, 2), (3, 0)]))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    case = make_case(1, heads, kv_heads, queries, keys, width, value_width)
    case.options.update(draw(visibility(1, heads, queries, keys)))
    case.options.update(draw(score_options(1, heads, queries, keys)))
    if width == 0:
        case.options.setdefault("scale", 1.0)
    return case


def oracle(case: Case) -> tuple[Tensor, Tensor]:
    result = reference_attention(case.query, case.key, case.value, **case.options)
    return result.output, result.lse


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=30)
@given(case=cases() | long_cases(), dtype=st.sampled_from(DTYPES), poison=st.sampled_from([torch.nan, torch.inf, 3e4]))
def test_any_call_is_the_oracles(isa: str, case: Case, dtype: torch.dtype, poison: float) -> None:
    held = held_in(case, dtype)
    read = reference_visible(held.query, held.key, **held.options)
    assert_near(held, run_prefill(held.poisoned(read, poison), isa), *oracle(held))


@cache  # every instruction set is held against the same, and the oracle takes its time
def poisoned_values(dtype: torch.dtype, poison: float) -> tuple[Case, Tensor, Tensor]:
    """Causal order: later queries of the same tile see the poisoned keys, earlier ones do not."""
    torch.manual_seed(11)
    case = held_in(make_case(1, 3, 1, 37, 101, 17, 19), dtype)
    for key in (70, 81, 99):
        case.value[:, :, key, 3] = poison
    case.key[:, :, 88] = torch.nan
    case.options["causal"] = True
    return case, *oracle(case)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_values_reach_only_the_rows_that_see_them(isa: str, dtype: torch.dtype, poison: float) -> None:
    case, expected, lse = poisoned_values(dtype, poison)
    assert expected[0, 0, 5].isfinite().all()
    assert expected[0, 0, 30].isnan().all()
    output, found_lse = run_prefill(case, isa)
    spared, counted = expected.isfinite(), ~lse.isnan()
    assert torch.equal(output.isfinite(), spared)
    assert torch.equal(output.isnan(), expected.isnan())
    assert torch.equal(found_lse.isnan(), ~counted)
    harmless = Case(case.query, case.key.nan_to_num(0), case.value.nan_to_num(0, 0, 0), case.options)
    found = output.where(spared, 0), found_lse.where(counted, 0)
    assert_near(harmless, found, expected.where(spared, 0), lse.where(counted, 0))


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_that_sees_nothing_but_nan_says_so(isa: str) -> None:
    case = held_in(make_case(1, 2, 2, 19, 19, 5, 3), torch.float32)
    case.key[:, :, 0] = torch.nan
    case.options["causal"] = True
    output, lse = run_prefill(case, isa)
    assert output.isnan().all()
    assert lse.isnan().all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_whose_bias_is_as_low_as_can_be_everywhere_spreads_evenly(isa: str, dtype: torch.dtype) -> None:
    """So do models mask: with the lowest number and not with -inf."""
    case = held_in(make_case(1, 2, 2, 37, 13, 7, 5), dtype)
    bias = torch.zeros(37, 13, dtype=dtype)
    bias[3], bias[5, 2:] = torch.finfo(dtype).min, torch.finfo(dtype).min
    case.options.update(bias=bias, scale=0.0)
    output, _ = run_prefill(case, isa)
    mean, first_two = case.value.double().mean(2), case.value[:, :, :2].double().mean(2)
    spread = 4 * torch.finfo(dtype).eps * float(case.value.abs().max())
    assert (output[:, :, 3].double() - mean).abs().max() <= spread
    assert (output[:, :, 5].double() - first_two).abs().max() <= spread


@pytest.mark.parametrize("isa", ISAS)
def test_rows_that_see_nothing_are_zero_whatever_the_sink(isa: str) -> None:
    case = held_in(make_case(1, 3, 1, 53, 7, 5, 11), torch.float32)
    case.options.update(causal=True, offset=-20, sinks=torch.tensor([2.0, -torch.inf, 50.0]))
    output, lse = run_prefill(case, isa)
    assert (output[:, :, :20] == 0).all()
    assert (lse[:, :, :20] == -torch.inf).all()
    assert_near(case, (output, lse), *oracle(case))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("sizes", [(0, 3, 1, 5, 7, 11), (2, 3, 1, 0, 7, 11), (2, 3, 1, 5, 0, 11), (2, 3, 1, 5, 7, 0)])
def test_sizes_of_zero(isa: str, sizes: tuple[int, ...]) -> None:
    """No sequence, no query, no key; and no width, where all scores are 0."""
    case = held_in(make_case(*sizes, 13), torch.float32)
    case.options["scale"] = 1.0
    output, lse = run_prefill(case, isa)
    assert_near(case, (output, lse), *oracle(case))
    if sizes[4] == 0:
        assert (output == 0).all()
        assert (lse == -torch.inf).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_in_any_number_of_threads(isa: str, dtype: torch.dtype) -> None:
    """Several panels share tiles in one thread and none do in seven; a mask and windows per head take part."""
    case = held_in(make_case(1, 6, 2, 151, 193, 17, 13), dtype)
    case.options.update(window=[(3, 0), None, (70, 5), (3, 0), (41, None), None], mask=torch.rand(151, 193) < 0.9)
    one = run_prefill(case, isa, 1)
    for threads in (1, 2, 7):
        other = run_prefill(case, isa, threads)
        assert all(torch.equal(first, second) for first, second in zip(one, other, strict=True)), f"{threads} threads"


@cache
def windows_per_head(dtype: torch.dtype) -> tuple[Case, Tensor, Tensor]:
    torch.manual_seed(13)
    case = held_in(make_case(1, 6, 2, 23, 139, 7, 11), dtype)
    case.options["window"] = [(29, 0), None, (29, 0), (0, 0), (100, 3), None]
    return case, *oracle(case)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_of_one_group_may_have_windows_of_their_own(isa: str, dtype: torch.dtype) -> None:
    case, output, lse = windows_per_head(dtype)
    assert_near(case, run_prefill(case, isa), output, lse)


def strided(tensor: Tensor, strides: tuple[int, ...], at: int) -> Any:
    """The kernel's view of memory that PyTorch has no words for: negative strides, from element ``at`` on."""
    address = tensor.data_ptr() + at * tensor.element_size()
    shape, device = tuple(tensor.shape), tensor.device
    return SimpleNamespace(
        data_ptr=lambda: address, shape=shape, stride=lambda: strides, dtype=tensor.dtype, device=device
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_may_run_backwards_and_start_anywhere(isa: str, dtype: torch.dtype) -> None:
    batch, heads, queries, keys, width = 2, 3, 19, 41, 7
    case = held_in(make_case(batch, heads, heads, queries, keys, width), dtype)
    memory = torch.full((batch, keys, heads, width + 2), torch.nan, dtype=dtype)  # [B, S, G, .]: odd addresses
    memory[..., 1 : 1 + width] = case.key.flip(2).transpose(1, 2)
    step = heads * (width + 2)
    backwards = strided(case.key, (keys * step, width + 2, -step, 1), 0)
    address = memory.data_ptr() + ((keys - 1) * step + 1) * memory.element_size()
    backwards.data_ptr = lambda: address
    room = torch.full((batch, queries, heads, width + 3), 5.0, dtype=dtype)
    output = room[..., 2 : 2 + width].transpose(1, 2)  # [B, H, L, Dv] within other numbers
    settings_of = {"offsets": [3, 8], "scale": 0.7, "right": [0] * heads, "isa": isa}
    prefill_attention(case.query, backwards, case.value, output, **settings_of)
    case.options.update(offset=torch.tensor([3, 8]), scale=0.7, causal=True)
    expected, lse = oracle(case)
    assert_near(case, (output, lse.float()), expected, lse)
    assert (room[..., :2] == 5).all()
    assert (room[..., 2 + width :] == 5).all()


@cache
def every_second(dtype: torch.dtype, batch: int, heads: int, keys: int) -> tuple[Case, Tensor, Tensor]:
    """Every second entry of a longer mask and bias, whose others would hide everything."""
    torch.manual_seed(17)
    case = held_in(make_case(2, 3, 1, 19, 101, 5, 3), dtype)
    mask = torch.zeros(batch, heads, 19, keys, 2, dtype=torch.bool)
    mask[..., 0] = torch.rand(batch, heads, 19, keys) < 0.8
    bias = torch.full((batch, heads, 19, keys, 2), -torch.inf, dtype=dtype)
    bias[..., 0] = torch.randn(batch, heads, 19, keys).to(dtype)
    case.options.update(mask=mask[..., 0], bias=bias[..., 0])
    return case, *oracle(case)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 101), (1, 3, 101)])  # batch, heads, keys
@pytest.mark.parametrize("dtype", DTYPES)
def test_masks_and_biases_broadcast_and_stride(isa: str, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    case, output, lse = every_second(dtype, *shape)
    assert_near(case, run_prefill(case, isa), output, lse)
