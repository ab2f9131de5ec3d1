"""Packed documents: nothing of a neighbour is seen, and nothing but documents is computed."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise.attention import attention, attention_weights, attention_with_lse, head_statistics
from headwise.attention.problem import Problem
from headwise.attention.reference import reference_attention
from headwise.study import Match, Offset
from tests.attention.cases import Case, make_case, score_options, windows
from tests.helpers.compare import EXACT, assert_same, assert_same_function
from tests.helpers.operations import Operations


def totals(lengths: list[int]) -> list[int]:
    return [sum(lengths[:count]) for count in range(len(lengths) + 1)]


@st.composite
def packed_cases(draw: st.DrawFn) -> Case:
    """Several documents, some of them empty, with as many keys as queries or with more or fewer."""
    heads, kv_heads = draw(st.sampled_from([(9, 3), (4, 4), (5, 1)]))
    queries = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    keys = draw(st.just(queries) | st.lists(st.integers(0, 5), min_size=len(queries), max_size=len(queries)))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    case = make_case(1, heads, kv_heads, sum(queries), sum(keys), 7, draw(st.sampled_from([7, 5])))
    case.options.update(draw(score_options(1, heads, max(sum(queries), 1), max(sum(keys), 1))))
    if min(sum(queries), sum(keys)) == 0:
        case.options.pop("bias", None)
    case.options["causal"] = draw(st.booleans())
    case.options["window"] = draw(st.none() | windows(heads))
    if draw(st.booleans()):
        case.options["mask"] = torch.rand(sum(queries), sum(keys)) < 0.7
    packed = totals(queries) if queries == keys and draw(st.booleans()) else (totals(queries), totals(keys))
    as_tensor = draw(st.booleans()) and isinstance(packed, list)
    case.options["cu_seqlens"] = torch.tensor(packed, dtype=torch.int32) if as_tensor else packed
    return case


@settings(max_examples=60)
@given(case=packed_cases(), backend=st.sampled_from([None, "math"]))
def test_packed_equals_oracle_forward_and_backward(case: Case, backend: str | None) -> None:
    def actual(**inputs: Tensor) -> tuple[Tensor, Tensor]:
        return attention_with_lse(**inputs, **case.fixed(), backend=backend)

    def expected(**inputs: Tensor) -> tuple[Tensor, Tensor]:
        return reference_attention(**inputs, **case.fixed())[:2]

    assert_same_function(actual, expected, case.inputs(), atol=10 * EXACT)
    weights = attention_weights(case.query, case.key, **case.options)
    assert_same(weights, reference_attention(case.query, case.key, case.value, **case.options).weights, atol=10 * EXACT)


@settings(max_examples=30)
@given(case=packed_cases())
def test_the_operation_takes_packed_documents_whole(case: Case) -> None:
    """As a compiled graph has it: the bounds are read inside."""
    from headwise.attention.operator import call_operator

    def actual(**inputs: Tensor) -> tuple[Tensor, Tensor]:
        return call_operator(Problem.of(**inputs, **case.fixed()), "math")

    def expected(**inputs: Tensor) -> tuple[Tensor, Tensor]:
        return attention_with_lse(**inputs, **case.fixed(), backend="math")

    assert_same_function(actual, expected, case.inputs(), atol=10 * EXACT)


def test_packed_documents_are_the_documents_alone() -> None:
    lengths = [5, 3, 11]
    case = make_case(1, 6, 2, sum(lengths), sum(lengths), 13)
    for options in ({"causal": True}, {"causal": True, "window": (2, 0)}, {}):
        packed = attention(case.query, case.key, case.value, cu_seqlens=totals(lengths), **options)
        parts = zip(*(tensor.split(lengths, 2) for tensor in (case.query, case.key, case.value)), strict=True)
        assert torch.equal(packed, torch.cat([attention(*part, **options) for part in parts], 2))


def test_a_neighbour_full_of_nan_is_not_noticed() -> None:
    case = make_case(1, 6, 2, 13, 13, 7)
    expected = attention(case.query, case.key, case.value, cu_seqlens=[0, 5, 13], causal=True)
    for tensor in (case.query, case.key, case.value):
        tensor[:, :, 5:] = torch.nan
    actual = attention(case.query, case.key, case.value, cu_seqlens=[0, 5, 13], causal=True)
    assert torch.equal(actual[:, :, :5], expected[:, :, :5])


def test_no_pair_of_two_documents_is_computed() -> None:
    count, length = 31, 17
    case = make_case(1, 4, 2, count * length, count * length, 3)
    bounds = totals([length] * count)
    for operation in (attention, attention_with_lse):
        with Operations(case.query, case.key, case.value) as ran:
            operation(case.query, case.key, case.value, cu_seqlens=bounds, causal=True)
        whole_map = 4 * (count * length) ** 2 * 8
        assert ran.largest_bytes <= max(case.query.nbytes, whole_map // count**2), ran.largest_name


def test_statistics_of_packed_documents_are_those_of_the_documents() -> None:
    lengths = [7, 5, 11]
    total = sum(lengths)
    case = make_case(1, 6, 2, total, total, 13)
    tokens = torch.randint(0, 3, (1, total))
    relations = [Offset(1, name="previous"), Match(1, tokens, name="induction", cu_seqlens=totals(lengths))]
    options: dict[str, Any] = {"causal": True, "window": [(4, 0), None] * 3, "sinks": torch.randn(6).double()}
    packed = head_statistics(case.query, case.key, relations, cu_seqlens=totals(lengths), **options)
    alone = []
    for start, stop in pairwise(totals(lengths)):
        own = [Offset(1, name="previous"), Match(1, tokens[:, start:stop], name="induction")]
        query, key = case.query[:, :, start:stop], case.key[:, :, start:stop]
        alone.append(head_statistics(query, key, own, **options))
    for name in ("mass", "uniform", "informative", "entropy", "largest", "distance", "lse", "seeing"):
        expected = torch.cat([getattr(part, name) for part in alone], -1)
        assert torch.equal(getattr(packed, name), expected), name
    assert packed.informative.any()


def test_a_compiled_graph_takes_packed_documents() -> None:
    torch.compiler.reset()
    case = make_case(1, 6, 2, 13, 13, 7)
    bounds = torch.tensor([0, 5, 13])

    def packed(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor]:
        return (attention(query, key, value, cu_seqlens=bounds, causal=True),)

    assert_same_function(torch.compile(packed, backend="aot_eager", fullgraph=True), packed, case.inputs())


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "batch": (
        {"batch": 2, "cu_seqlens": [0, 5]},
        ValueError,
        "cu_seqlens: expected packed documents in a batch of 1, got a batch of 2; reshape it",
    ),
    "end": (
        {"cu_seqlens": [0, 3]},
        ValueError,
        "cu_seqlens: expected running totals from 0 to 5 (the queries), got [0, 3]; "
        "entry n is where document n starts, the last one where the last document ends",
    ),
    "start": ({"cu_seqlens": [1, 5]}, ValueError, "cu_seqlens: expected running totals from 0 to 5"),
    "falling": ({"cu_seqlens": [0, 4, 3, 5]}, ValueError, "cu_seqlens: expected running totals from 0 to 5"),
    "keys": (
        {"cu_seqlens": ([0, 5], [0, 6])},
        ValueError,
        "cu_seqlens: expected running totals from 0 to 5 (the keys), got [0, 6]",
    ),
    "counts": (
        {"cu_seqlens": ([0, 5], [0, 2, 5])},
        ValueError,
        "cu_seqlens: expected as many documents of queries as of keys, got 1 and 2",
    ),
    "no document": (
        {"cu_seqlens": [0]},
        ValueError,
        "cu_seqlens: expected shape [documents + 1] with a document at least, got [1]",
    ),
    "floats": (
        {"cu_seqlens": torch.tensor([0.0, 5.0])},
        TypeError,
        "cu_seqlens: expected integers, got torch.float32; cast with .int()",
    ),
    "a number": (
        {"cu_seqlens": 5},
        TypeError,
        "cu_seqlens: expected a tensor or list of running totals, or a pair of these, got int",
    ),
    "offset": (
        {"cu_seqlens": [0, 5], "offset": 3},
        ValueError,
        "offset: expected none with cu_seqlens, whose documents end with their last keys",
    ),
    "key lengths": (
        {"cu_seqlens": [0, 5], "key_lengths": [5]},
        ValueError,
        "key_lengths: expected none with cu_seqlens, whose documents end with their last keys",
    ),
}


@pytest.mark.parametrize(("options", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    options = dict(options)
    case = make_case(options.pop("batch", 1), 4, 2, 5, 5, 3)
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        attention(case.query, case.key, case.value, **options)
