"""The native decode kernel against the oracle in float64: every option, size, stride and instruction set."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from headwise.attention import attention_with_lse
from headwise.attention.reference import reference_attention, reference_visible
from tests.attention.cases import Case, cases, make_case
from tests.native.decoding import ISAS, built, decode

pytestmark = built

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ALLOWED_FACTOR = 2.0
few = settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])


def held_in(case: Case, dtype: torch.dtype) -> Case:
    """The same call with its vectors in the dtype and what the kernels read as float32 in numbers that it holds."""
    single = {
        name: given.float() if isinstance(given, Tensor) and given.is_floating_point() else given
        for name, given in case.options.items()
    }
    return Case(case.query.to(dtype), case.key.to(dtype), case.value.to(dtype), single)


def assert_near_oracle(result: tuple[Tensor, Tensor], case: Case) -> None:
    """Errors are at most twice those of the math path in the same dtype, or of rounding the right result to it."""
    exact = reference_attention(case.query, case.key, case.value, **case.options)
    plain = attention_with_lse(case.query, case.key, case.value, **case.options, backend="math")
    for ours, theirs, right in zip(result, plain, exact[:2], strict=True):
        assert not ours.isnan().any()
        assert torch.equal(ours.isinf(), right.isinf())
        finite = ~right.isinf()
        if not finite.any():
            continue
        scores_size = float(exact.lse[~exact.lse.isinf()].abs().max()) if (~exact.lse.isinf()).any() else 0.0
        rounding = torch.finfo(ours.dtype).eps * float(right[finite].abs().max())
        # A weight e^s carries the rounding of its score, which is as large as the logarithm of the sum at least.
        rounding += torch.finfo(torch.float32).eps * max(1.0, scores_size)
        own, other = (float((one.double() - right)[finite].abs().max()) for one in (ours, theirs))
        assert own <= ALLOWED_FACTOR * max(other, rounding), f"error {own:.3g}, math path {other:.3g}"


@few
@given(case=cases(), dtype=st.sampled_from(DTYPES), isa=st.sampled_from(ISAS))
def test_every_option_gives_the_oracles_numbers(case: Case, dtype: torch.dtype, isa: str) -> None:
    case = held_in(case, dtype)
    assert_near_oracle(decode(case.query, case.key, case.value, isa=isa, **case.options), case)


@few
@given(
    group=st.integers(1, 71),
    width=st.integers(1, 256),
    value_width=st.integers(1, 256),
    keys=st.integers(1, 140),
    dtype=st.sampled_from(DTYPES),
    isa=st.sampled_from(ISAS),
)
def test_any_group_and_any_width(
    group: int, width: int, value_width: int, keys: int, dtype: torch.dtype, isa: str
) -> None:
    case = held_in(make_case(1, group, 1, 1, keys, width, value_width), dtype)
    assert_near_oracle(decode(case.query, case.key, case.value, isa=isa), case)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", range(1, 10))
def test_every_block_of_rows_and_columns(isa: str, dtype: torch.dtype, heads: int) -> None:
    for width in (3, 16, 67, 128, 230):
        case = held_in(make_case(1, heads, 1, 1, 83, width), dtype)
        assert_near_oracle(decode(case.query, case.key, case.value, isa=isa), case)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_many_items_merge_to_one_softmax(isa: str, dtype: torch.dtype) -> None:
    options: dict[str, Any] = {"sinks": torch.tensor([3.0, -1.0, 0.5]), "key_lengths": [2311, 1025, 0], "causal": True}
    case = held_in(make_case(3, 3, 1, 2, 2311, 5), dtype)
    case.options.update(options)
    assert_near_oracle(decode(case.query, case.key, case.value, isa=isa, **case.options), case)


def stretched(tensor: Tensor) -> Tensor:
    """The same numbers with other numbers in between: no axis but the last lies closely packed, nor the first ones in
    order."""
    batch, heads, length, width = tensor.shape
    memory = torch.full((length + 1, batch, heads + 2, width + 3), torch.nan, dtype=tensor.dtype)
    view = memory[1:, :, 1:-1, 2:-1].permute(1, 2, 0, 3)
    view.copy_(tensor)
    return view


@pytest.mark.parametrize("isa", ISAS)
def test_strides_are_followed_and_nothing_between_is_read(isa: str) -> None:
    case = held_in(make_case(2, 6, 2, 3, 71, 19, 23), torch.float32)
    plain = decode(case.query, case.key, case.value, isa=isa)
    query, key, value = (stretched(tensor) for tensor in (case.query, case.key, case.value))
    assert all(not tensor.is_contiguous() for tensor in (query, key, value))
    for ours, expected in zip(decode(query, key, value, isa=isa), plain, strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["repeated", "every_second", "transposed"])
def test_masks_and_biases_of_any_stride(isa: str, kind: str) -> None:
    case = held_in(make_case(2, 6, 2, 3, 71, 7), torch.float32)
    full = (2, 6, 3, 71)
    if kind == "repeated":
        mask, bias = (torch.rand(2, 1, 3, 1) < 0.7).expand(full), torch.randn(6, 1, 71).expand(full)
    elif kind == "every_second":
        mask, bias = (torch.rand(2, 6, 3, 142) < 0.7)[..., ::2], torch.randn(2, 6, 3, 142)[..., ::2]
    else:
        mask, bias = (torch.rand(71, 3, 6, 2) < 0.7).permute(3, 2, 1, 0), torch.randn(71, 3, 6, 2).permute(3, 2, 1, 0)
    case.options.update(mask=mask, bias=bias)
    assert_near_oracle(decode(case.query, case.key, case.value, isa=isa, **case.options), case)


@pytest.mark.parametrize("bias_dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_a_bias_may_have_a_dtype_of_its_own(isa: str, bias_dtype: torch.dtype) -> None:
    case = held_in(make_case(1, 6, 2, 3, 71, 7), torch.float32)
    bias = torch.randn(6, 3, 71).to(bias_dtype)
    case.options["bias"] = bias.float()
    assert_near_oracle(decode(case.query, case.key, case.value, isa=isa, bias=bias), case)


@few
@given(case=cases(), isa=st.sampled_from(ISAS), poison=st.sampled_from([torch.nan, torch.inf, 3e38]))
def test_what_nobody_may_read_reaches_nothing(case: Case, isa: str, poison: float) -> None:
    case = held_in(case, torch.float32)
    visible = {name: given for name, given in case.options.items() if name in VISIBILITY}
    poisoned = case.poisoned(reference_visible(case.query, case.key, **visible), poison)
    clean = decode(case.query, case.key, case.value, isa=isa, **case.options)
    for ours, expected in zip(
        decode(poisoned.query, poisoned.key, poisoned.value, isa=isa, **case.options), clean, strict=True
    ):
        assert torch.equal(ours, expected)


VISIBILITY = ("mask", "causal", "window", "offset", "key_lengths")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_a_value_that_some_heads_see_reaches_only_those(isa: str, dtype: torch.dtype, poison: float) -> None:
    case = held_in(make_case(1, 10, 1, 1, 97, 13, 37), dtype)
    mask = torch.rand(1, 10, 1, 97) < 0.6
    mask[:, ::2, :, 41] = True
    mask[:, 1::2, :, 41] = False
    clean, _ = decode(case.query, case.key, case.value, mask=mask, isa=isa)
    case.value[:, :, 41] = poison
    output, lse = decode(case.query, case.key, case.value, mask=mask, isa=isa)
    assert not output[:, ::2].isfinite().any()
    assert torch.equal(output[:, 1::2], clean[:, 1::2])
    assert lse.isfinite().all()
    case.key[:, :, 41] = poison
    output, lse = decode(case.query, case.key, case.value, mask=mask, isa=isa)
    assert torch.equal(output[:, 1::2], clean[:, 1::2])
    assert lse[:, 1::2].isfinite().all()
    assert not output[:, ::2].isfinite().any()


@pytest.mark.parametrize("isa", ISAS)
def test_a_nan_that_is_seen_is_shown(isa: str) -> None:
    case = held_in(make_case(1, 4, 2, 1, 97, 13), torch.float32)
    case.key[:, 1, 70] = torch.nan
    output, lse = decode(case.query, case.key, case.value, isa=isa)
    assert output[:, 2:].isnan().all()
    assert lse[:, 2:].isnan().all()
    assert output[:, :2].isfinite().all()


@pytest.mark.parametrize("isa", ISAS)
def test_rows_without_weight(isa: str) -> None:
    """Nothing but -inf, in part of a tile, whole tiles, or everywhere: output 0 and LSE -inf, with a sink as well."""
    case = held_in(make_case(1, 4, 1, 1, 1300, 13), torch.float32)
    bias = torch.zeros(4, 1, 1300)
    bias[0] = -torch.inf
    bias[1, :, :1200] = -torch.inf
    bias[2, :, 1::2] = -torch.inf
    for sinks in (None, torch.tensor([2.0, 1.0, 0.0, -torch.inf])):
        case.options.update(bias=bias, sinks=sinks)
        output, lse = decode(case.query, case.key, case.value, isa=isa, bias=bias, sinks=sinks)
        assert torch.equal(output[0, 0], torch.zeros(1, 13))
        assert float(lse[0, 0]) == -torch.inf
        assert_near_oracle((output, lse), case)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [1e-30, 1e4, 1e15])
def test_huge_and_tiny_numbers(isa: str, size: float) -> None:
    case = held_in(make_case(1, 6, 2, 1, 89, 11), torch.float32)
    query = case.query * size
    exact = reference_attention(query, case.key, case.value)
    output, lse = decode(query, case.key, case.value, isa=isa)
    largest = float(exact.lse.abs().max())
    assert float((lse - exact.lse).abs().max()) <= 2 * 11 * torch.finfo(torch.float32).eps * largest
    if size > 1e5:  # one key takes all the weight
        assert torch.equal(output, exact.output.float())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(0, 6, 2, 1, 5), (2, 6, 2, 0, 5), (2, 6, 2, 1, 0), (2, 0, 2, 1, 5)])
def test_sizes_of_zero(isa: str, shape: tuple[int, int, int, int, int]) -> None:
    case = held_in(make_case(*shape, 7), torch.float32)
    output, lse = decode(case.query, case.key, case.value, isa=isa)
    assert torch.equal(output, torch.zeros_like(output))
    assert torch.equal(lse, torch.full_like(lse, -torch.inf))


@pytest.mark.parametrize("isa", ISAS)
def test_widths_of_zero(isa: str) -> None:
    case = held_in(make_case(1, 4, 2, 1, 5, 0, 3), torch.float32)
    output, lse = decode(case.query, case.key, case.value, isa=isa)
    expected = case.value.mean(2, keepdim=True).repeat_interleave(2, 1)
    allowed = 5 * torch.finfo(torch.float32).eps * float(case.value.abs().max())  # five terms of a sum
    assert float((output - expected).abs().max()) <= allowed
    output, _ = decode(case.query, case.key, case.value[..., :0], isa=isa)
    assert output.shape == (1, 4, 1, 0)
    assert lse.isfinite().all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_from_run_to_run_and_for_any_threads(isa: str, dtype: torch.dtype) -> None:
    case = held_in(make_case(2, 6, 2, 3, 2311, 31), dtype)
    first = decode(case.query, case.key, case.value, isa=isa)
    for threads in (1, 2, 3):
        for ours, expected in zip(
            decode(case.query, case.key, case.value, isa=isa, threads=threads), first, strict=True
        ):
            assert torch.equal(ours, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(6, 2, 64), (7, 1, 128), (4, 4, 80)])
def test_error_is_at_most_twice_that_of_pytorch(
    isa: str, dtype: torch.dtype, heads: int, kv_heads: int, width: int
) -> None:
    case = held_in(make_case(2, heads, kv_heads, 1, 611, width), dtype)
    query, key, value = case.query * 2, case.key, case.value
    exact = reference_attention(query, key, value).output
    repeated = [tensor.repeat_interleave(heads // kv_heads, 1) for tensor in (key, value)]
    with sdpa_kernel(SDPBackend.MATH):
        theirs = scaled_dot_product_attention(query, *repeated)
    ours, _ = decode(query, key, value, isa=isa)
    error, budget = (float((one.double() - exact).square().mean().sqrt()) for one in (ours, theirs))
    assert 0 < error <= ALLOWED_FACTOR * budget, f"error {error:.3g}, PyTorch's {budget:.3g}"
