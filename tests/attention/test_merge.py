"""Attention over parts of the keys, joined, is attention over all of them."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise.attention import attention_with_lse, merge
from tests.attention.cases import Case, cases, make_case
from tests.helpers.compare import EXACT, assert_same, assert_same_function


def part(case: Case, low: int, high: int, leaves: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The same call over some of its keys, with absolute positions kept, and no sink."""
    options = {name: given for name, given in (case.options | leaves).items() if name not in ("sinks", "query")}
    key, value = (options.pop(name)[:, :, low:high] for name in ("key", "value"))
    for name in ("mask", "bias"):
        if name in options and options[name].dim() and options[name].shape[-1] > 1:
            options[name] = options[name][..., low:high]
    keys, queries = case.key.shape[2], case.query.shape[2]
    lengths = options.pop("key_lengths", None)
    offset = options.pop("offset", None)
    if offset is None:
        offset = keys - queries if lengths is None else lengths - queries
    if lengths is not None:
        options["key_lengths"] = (lengths - low).clamp(0, high - low)
    return attention_with_lse(leaves["query"], key, value, offset=offset - low, **options, backend="math")


@settings(max_examples=60)
@given(case=cases(), cuts=st.lists(st.integers(0, 11), max_size=3))
def test_parts_of_the_keys_join_to_the_whole_with_gradients(case: Case, cuts: list[int]) -> None:
    keys = case.key.shape[2]
    bounds = [0, *sorted(min(cut, keys) for cut in cuts), keys]  # parts may be empty

    def joined(**leaves: Tensor) -> tuple[Tensor, Tensor]:
        parts = [part(case, low, high, leaves) for low, high in pairwise(bounds)]
        return merge([output for output, _ in parts], [lse for _, lse in parts], sinks=leaves.get("sinks"))

    def whole(**leaves: Tensor) -> tuple[Tensor, Tensor]:
        return attention_with_lse(**leaves, **case.fixed(), backend="math")

    assert_same_function(joined, whole, case.inputs(), atol=20 * EXACT)


def test_an_empty_part_counts_nothing_whatever_it_holds() -> None:
    case = make_case(2, 6, 3, 5, 7, 11, 13)
    whole = attention_with_lse(case.query, case.key, case.value)
    nothing = torch.full_like(whole.output, torch.nan), torch.full_like(whole.lse, -torch.inf)
    leaves = [tensor.clone().requires_grad_() for tensor in (whole.output, whole.lse, *nothing)]
    joined = merge([leaves[0], leaves[2]], [leaves[1], leaves[3]])
    assert torch.equal(joined.output, whole.output)
    assert torch.equal(joined.lse, whole.lse)
    (joined.output.sum() + joined.lse.sum()).backward()
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in leaves)
    blind = merge([nothing[0]], [nothing[1]], sinks=torch.ones(6, dtype=torch.float64))
    assert torch.equal(blind.output, torch.zeros_like(whole.output))
    assert torch.equal(blind.lse, nothing[1])


def test_a_stacked_tensor_is_as_good_as_a_list() -> None:
    case = make_case(1, 4, 2, 3, 5, 7)
    parts = [attention_with_lse(case.query, case.key, case.value, scale=scale) for scale in (0.1, 0.7)]
    outputs, lses = (torch.stack([piece[side] for piece in parts]) for side in (0, 1))
    joined, expected = merge(outputs, lses), merge([p.output for p in parts], [p.lse for p in parts])
    assert_same(joined.output, expected.output, atol=0.0)
    assert_same(joined.lse, expected.lse, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_come_back_in_their_own_type_and_no_worse_than_rounding(dtype: torch.dtype) -> None:
    case = make_case(2, 6, 3, 5, 37, 16)
    query, key, value = (tensor.to(dtype) for tensor in (case.query, case.key, case.value))
    exact = attention_with_lse(query.double(), key.double(), value.double()).output
    parts = [attention_with_lse(query, key[:, :, cut], value[:, :, cut]) for cut in (slice(0, 13), slice(13, 37))]
    joined = merge([p.output for p in parts], [p.lse for p in parts])
    assert (joined.output.dtype, joined.lse.dtype) == (dtype, torch.float32)
    whole = attention_with_lse(query, key, value).output
    error, budget = (float((result.double() - exact).square().mean().sqrt()) for result in (joined.output, whole))
    assert 0 < error <= 2 * budget


REFUSED: dict[str, tuple[Any, str]] = {
    "nothing": (([], []), "merge: expected as many outputs as LSEs, one at least, got 0 and 0"),
    "counts": (([torch.zeros(1, 2, 3, 5)], []), "merge: expected as many outputs as LSEs, one at least, got 1 and 0"),
    "shapes": (
        ([torch.zeros(1, 2, 3, 5)] * 2, [torch.zeros(1, 2, 3), torch.zeros(1, 2, 4)]),
        "merge: expected outputs [B, H, L, Dv] and LSEs [B, H, L] of equal shapes, got output [1, 2, 3, 5] and LSE "
        "[1, 2, 4] in part 1 beside an output [1, 2, 3, 5] in part 0",
    ),
    "first part": (
        ([torch.zeros(1, 2, 3, 5)], [torch.zeros(1, 2, 4)]),
        "merge: expected outputs [B, H, L, Dv] and LSEs [B, H, L] of equal shapes, got output [1, 2, 3, 5] and LSE "
        "[1, 2, 4] in part 0",
    ),
}


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        merge(*given)
