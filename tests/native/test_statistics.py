"""What the kernels read off the weights, in every instruction set, against the whole map in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.attention.forms import EqualIds, Members, SingleKey
from headwise.attention.reference import reference_visible
from tests.attention.cases import Case, cases, make_case
from tests.native.decoding import ISAS, built
from tests.native.prefill_calls import assert_near, held_in, run_prefill
from tests.native.statistics_calls import (
    Found,
    assert_statistics,
    from_the_map,
    random_forms,
    run_statistics,
    told,
    without_values,
)
from tests.native.test_prefill import DTYPES, long_cases

pytestmark = built


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=30)
@given(
    case=cases() | long_cases(),
    dtype=st.sampled_from(DTYPES),
    poison=st.sampled_from([torch.nan, torch.inf, 3e4]),
    seed=st.integers(0, 2**31),
)
def test_any_call_is_what_the_map_says(isa: str, case: Case, dtype: torch.dtype, poison: float, seed: int) -> None:
    held = held_in(case, dtype)
    forms = random_forms(case.query.shape[0], case.query.shape[2], case.key.shape[2], seed)
    expected = from_the_map(held, forms)
    read = reference_visible(held.query, held.key, **held.options)
    found = run_statistics(held.poisoned(read, poison), forms, isa)
    assert_near(held, (found.output, found.lse), expected.output, expected.lse)
    assert_statistics(held, found, expected)


def same_bits(one: Found, other: Found) -> bool:
    return all(
        torch.equal(first, second) for first, second in zip(vars(one).values(), vars(other).values(), strict=True)
    )


def long_case(dtype: torch.dtype) -> Case:
    """Several panels share tiles in one thread and none do in seven; a mask and windows per head take part."""
    torch.manual_seed(23)
    case = held_in(make_case(1, 6, 2, 151, 193, 17, 13), dtype)
    case.options.update(window=[(3, 0), None, (70, 5), (3, 0), (41, None), None], mask=torch.rand(151, 193) < 0.9)
    return case


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_in_any_number_of_threads_and_with_or_without_values(isa: str, dtype: torch.dtype) -> None:
    case, forms = long_case(dtype), random_forms(1, 151, 193, 29)
    one = run_statistics(case, forms, isa, 1)
    for threads in (1, 2, 7):
        assert same_bits(one, run_statistics(case, forms, isa, threads)), f"{threads} threads"
    alone = run_statistics(without_values(case), forms, isa, 3)
    for name in ("lse", "mass", "entropy", "largest", "distance", "hits", "seen"):
        assert torch.equal(getattr(alone, name), getattr(one, name)), name


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_output_and_lse_are_those_of_prefill_to_the_bit(isa: str, dtype: torch.dtype) -> None:
    case = long_case(dtype)
    found = run_statistics(case, random_forms(1, 151, 193, 31), isa)
    output, lse = run_prefill(case, isa)
    assert torch.equal(found.output, output)
    assert torch.equal(found.lse, lse)


@pytest.mark.parametrize("isa", ISAS)
def test_a_key_that_never_counts_leaves_nothing_of_its_weight_behind(isa: str) -> None:
    """Subtracting it afterwards would: all but a billionth of the softmax lies on it."""
    case = held_in(make_case(1, 2, 1, 101, 101, 5), torch.float32)
    case.query.zero_()
    case.options["bias"] = 20.0 * torch.eye(101)
    everywhere = torch.zeros(1, 101, dtype=torch.int64)
    found = run_statistics(case, [EqualIds(everywhere, everywhere, torch.arange(101)[None])], isa)
    others = 100 / (100 + torch.tensor(20.0).double().exp())
    assert found.largest.min() > 1 - 1e-6
    torch.testing.assert_close(found.mass[0].double(), others.expand(1, 2, 101), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("isa", ISAS)
def test_a_sink_that_takes_everything_leaves_zeros(isa: str) -> None:
    case = held_in(make_case(1, 3, 1, 53, 7, 5, 11), torch.float32)
    case.options.update(causal=True, offset=-20, sinks=torch.tensor([2.0, -torch.inf, 300.0]))
    forms = random_forms(1, 53, 7, 37)
    found = run_statistics(case, forms, isa)
    assert_statistics(case, found, from_the_map(case, forms))
    for name in ("mass", "entropy", "largest", "distance"):
        assert (getattr(found, name)[..., 2, :] == 0).all(), name
        assert (getattr(found, name)[..., :20] == 0).all(), name


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_that_sees_nan_says_so_everywhere(isa: str) -> None:
    case = held_in(make_case(1, 2, 2, 19, 19, 5, 3), torch.float32)
    case.key[:, :, 7] = torch.nan
    case.options["causal"] = True
    found = run_statistics(case, random_forms(1, 19, 19, 41), isa)
    for name in ("mass", "entropy", "largest", "distance", "lse"):
        values = getattr(found, name)
        assert values[..., 7:].isnan().all(), name
        assert values[..., :7].isfinite().all(), name


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("sizes", [(0, 3, 1, 5, 7, 11), (2, 3, 1, 0, 7, 11), (2, 3, 1, 5, 0, 11), (2, 3, 1, 5, 7, 0)])
def test_sizes_of_zero(isa: str, sizes: tuple[int, ...]) -> None:
    case = held_in(make_case(*sizes, 13), torch.float32)
    case.options["scale"] = 1.0
    forms = random_forms(sizes[0], sizes[3], sizes[4], 43)
    assert_statistics(case, run_statistics(case, forms, isa), from_the_map(case, forms))
    assert run_statistics(case, [], isa).mass.shape == (0, sizes[0], 3, sizes[3])


@pytest.mark.parametrize("isa", ISAS)
def test_arrays_of_relations_may_have_a_stride_per_sequence_and_nothing_between_is_read(isa: str) -> None:
    case = held_in(make_case(3, 2, 1, 19, 101, 5, 3), torch.float32)
    plain = random_forms(3, 19, 101, 47)[:4]

    def spread(tensor: torch.Tensor) -> torch.Tensor:
        """The same rows backwards in memory that says something else, where only the last axis lies closely."""
        rows, size = tensor.shape
        memory = torch.ones(2 * rows + 1, size + 3, dtype=tensor.dtype)
        memory[1 : 2 * rows : 2, 2:-1] = tensor
        view = memory[1 : 2 * rows : 2, 2:-1]
        assert torch.equal(view, tensor)
        return view

    relations = [
        (form, *(None if array is None else spread(array) for array in arrays))
        for form, *arrays in (told(one) for one in plain)
    ]
    assert not relations[0][1].is_contiguous()
    assert same_bits(run_statistics(case, plain, isa), run_statistics(case, plain, isa, relations=relations))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "queries", "keys", "width", "spread"),
    [(6, 2, 37, 37, 64, 2.0), (2, 1, 29, 1031, 128, 1.0), (2, 1, 61, 61, 64, 8.0), (1, 1, 7, 3001, 16, 0.1)],
)
def test_errors_are_at_most_twice_those_of_pytorch(
    isa: str, dtype: torch.dtype, heads: int, kv_heads: int, queries: int, keys: int, width: int, spread: float
) -> None:
    torch.manual_seed(53)
    case = make_case(1, heads, kv_heads, queries, keys, width)
    case.query.mul_(spread)
    held = held_in(case, dtype)
    forms = random_forms(1, queries, keys, 59)[:7]
    positions, offset = torch.arange(keys), keys - queries

    def by_pytorch(precision: torch.dtype) -> dict[str, torch.Tensor]:
        query, key = held.query.to(precision), held.key.to(precision).repeat_interleave(heads // kv_heads, 1)
        scores = query @ key.mT * width**-0.5
        weights, distance = scores.softmax(-1), (torch.arange(queries)[:, None] + offset - positions).abs()
        return {
            "mass": torch.stack([(weights * form.keys(keys)).sum(-1) for form in forms]),
            "entropy": torch.special.entr(weights).sum(-1),
            "largest": weights.amax(-1),
            "distance": (weights * distance).sum(-1),
            "lse": scores.logsumexp(-1),
        }

    found, exact, plain = run_statistics(held, forms, isa), by_pytorch(torch.float64), by_pytorch(torch.float32)
    for name, right in exact.items():
        error, budget = (
            float((result.double() - right).square().mean().sqrt()) for result in (getattr(found, name), plain[name])
        )
        assert 0 < error <= 2 * budget, f"{name}: error {error:.3g}, PyTorch's {budget:.3g}"


def test_forms_give_their_keys() -> None:
    assert SingleKey(torch.tensor([[1, -1, 2]])).keys(2).tolist() == [[[False, True], [False, False], [False, False]]]
    ids = EqualIds(torch.tensor([[4, -1, 6]]), torch.tensor([[6, -1, 4, 4]]), torch.tensor([[2, 0, 1]]))
    assert ids.keys(4).tolist() == [[[False, False, False, True], [False] * 4, [True, False, False, False]]]
    assert ids.within(2, 4).keys(2).tolist() == [[[False, True], [False] * 2, [False] * 2]]
    members = Members(torch.tensor([[True, False, True]]), 2)
    assert members.keys(3).tolist() == [[[True, False, True]] * 2]
    assert members.within(1, 3).keys(2).tolist() == [[[False, True]] * 2]
