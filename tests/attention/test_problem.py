"""The validated meaning of a call: who sees what, scores, and blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings

from headwise.attention.blocks import DEFAULT_BLOCK_BYTES, fold_heads
from headwise.attention.problem import Problem
from headwise.attention.reference import reference_attention, reference_visible
from tests.attention.cases import Case, cases, make_case
from tests.helpers.compare import assert_same

INFINITY = torch.inf


def problem_of(case: Case) -> Problem:
    return Problem.of(case.query, case.key, case.value, **case.options)


@settings(max_examples=60)
@given(case=cases())
def test_visible_equals_oracle(case: Case) -> None:
    problem = problem_of(case)
    expected = reference_visible(case.query, case.key, **case.options)
    length, keys = case.query.shape[2], case.key.shape[2]
    visible = problem.visible(0, length)
    assert visible.shape[2:] == (length, keys)
    assert torch.equal(visible.expand_as(expected), expected)
    for start in range(length):
        assert torch.equal(problem.visible(start, start + 1).expand_as(expected[:, :, :1]), expected[:, :, start, None])
        low, high = problem.key_range(start, start + 1)
        assert not expected[:, :, start, :low].any()
        assert not expected[:, :, start, high:].any()
        if not problem.hides(start, start + 1):
            assert expected[:, :, start].all()
    assert torch.equal(problem.seeing().expand(expected.shape[:3]), expected.any(-1))
    read = expected.any(2).unflatten(1, (case.key.shape[1], -1)).any(2)  # [B, G, S]
    unread = problem.unread_keys
    assert torch.equal(~read, torch.zeros_like(read) if unread is None else unread.expand_as(read))


@settings(max_examples=40)
@given(case=cases())
def test_narrowing_moves_positions_along(case: Case) -> None:
    problem, narrowed = problem_of(case), problem_of(case).narrowed()
    length = case.query.shape[2]
    low, high = problem.key_range(0, length)
    assert narrowed.key_length == high - low
    assert torch.equal(narrowed.visible(0, length), problem.visible(0, length, (low, high)))
    assert_same(narrowed.scores(0, length), problem.scores(0, length, (low, high)))


@settings(max_examples=30)
@given(case=cases())
def test_scores_are_the_logits_of_the_oracle(case: Case) -> None:
    expected = reference_attention(case.query, case.key, case.value, **case.options)
    scores = problem_of(case).scores(0, case.query.shape[2])
    lse = expected.lse[..., None].masked_fill(expected.lse[..., None].isinf(), 0.0)
    assert_same((scores - lse).exp(), expected.weights, atol=1e-11)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"causal": True}, ["1110", "1111"]),
        ({"causal": True, "offset": 0}, ["1000", "1100"]),
        ({"causal": True, "offset": 1}, ["1100", "1110"]),
        ({"window": (1, 0)}, ["0110", "0011"]),
        ({"window": (0, 0), "offset": 1}, ["0100", "0010"]),
        ({"window": (1, None), "offset": 1}, ["1111", "0111"]),
        ({"window": (1, None), "causal": True}, ["0110", "0011"]),
        ({"window": (0, 1), "offset": 0}, ["1100", "0110"]),
        ({"key_lengths": [3], "causal": True}, ["1100", "1110"]),
        ({"key_lengths": [1], "causal": True}, ["0000", "1000"]),
        ({"key_lengths": [2]}, ["1100", "1100"]),
        ({"mask": torch.tensor([True, False, True, True]), "causal": True}, ["1010", "1011"]),
    ],
)
def test_who_sees_what(options: dict[str, Any], rows: list[str]) -> None:
    # Two queries over four keys, so that an alignment at the top left shows.
    problem = Problem.of(torch.zeros(1, 1, 2, 3), torch.zeros(1, 1, 4, 3), **options)
    got = ["".join(str(int(seen)) for seen in row) for row in problem.visible(0, 2)[0, 0]]
    assert got == rows


def test_windows_differ_per_head() -> None:
    problem = Problem.of(torch.zeros(1, 3, 1, 2), torch.zeros(1, 1, 5, 2), causal=True, window=[(1, 0), None, (2, 7)])
    assert problem.visible(0, 1)[0, :, 0].int().tolist() == [[0, 0, 0, 1, 1], [1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]


def test_order_is_scale_softcap_bias_mask() -> None:
    query, key = torch.tensor([[[[2.0]]]]), torch.tensor([[[[3.0], [5.0], [torch.nan]]]])
    problem = Problem.of(
        query, key, scale=0.5, softcap=2.0, bias=torch.tensor([10.0, 20.0, 0.0]), key_lengths=[2], offset=0,
        alibi_slopes=torch.tensor([0.25]),
    )  # fmt: skip
    expected = [2 * torch.tanh(torch.tensor(3 / 2.0)) + 10, 2 * torch.tanh(torch.tensor(5 / 2.0)) + 20 - 0.25]
    assert_same(problem.scores(0, 1)[0, 0, 0], torch.stack([*expected, torch.tensor(-INFINITY)]), atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "computed"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_half_types_are_accumulated_in_float32(dtype: torch.dtype, computed: torch.dtype) -> None:
    # 257 ones add up to 257, which bfloat16 can't hold; the scaled score is exact in float32.
    ones = torch.ones(1, 1, 1, 257, dtype=dtype)
    scores = Problem.of(ones, ones, scale=1.0).scores(0, 1)
    assert_same(scores, torch.full((1, 1, 1, 1), 257.0, dtype=computed), atol=0.0)


def test_autocast_does_not_reach_the_scores() -> None:
    ones = torch.ones(1, 1, 1, 257)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert Problem.of(ones, ones, scale=1.0).scores(0, 1).item() == 257.0


def test_blocks_cover_all_rows_under_the_budget() -> None:
    problem = problem_of(make_case(2, 6, 3, 23, 11, 7))
    row_bytes = 2 * 6 * 11 * 8
    assert list(problem.blocks()) == [(0, 23)]
    assert list(problem.blocks(5 * row_bytes + 1)) == [(0, 5), (5, 10), (10, 15), (15, 20), (20, 23)]
    assert list(problem.blocks(1))[:2] == [(0, 1), (1, 2)]
    assert DEFAULT_BLOCK_BYTES == 32 * 1024 * 1024


def test_positions_count_from_the_offset() -> None:
    query, key = torch.zeros(2, 1, 3, 5), torch.zeros(2, 1, 7, 5)
    assert Problem.of(query, key).positions(1, 3).tolist() == [[5, 6]]
    assert Problem.of(query, key, key_lengths=[2, 7]).positions(1, 3).tolist() == [[0, 1], [5, 6]]
    assert Problem.of(query, key, offset=torch.tensor([4, 0])).positions(0, 2).tolist() == [[4, 5], [0, 1]]


def test_folded_rows_are_the_heads_of_a_group() -> None:
    tensor = torch.arange(2 * 6 * 3 * 5).reshape(2, 6, 3, 5)
    folded = fold_heads(tensor, 2)  # [2, 2, 3 * 3, 5]
    for head in range(6):
        group, place = divmod(head, 3)
        assert torch.equal(folded[:, group, place * 3 : place * 3 + 3], tensor[:, head])


def test_empty_axes_are_allowed() -> None:
    for batch, queries, keys in ((0, 2, 3), (2, 0, 3), (2, 3, 0)):
        case = make_case(batch, 4, 2, queries, keys, 5)
        problem = Problem.of(case.query, case.key, case.value, causal=True)
        assert problem.scores(0, queries).shape == (batch, 4, queries, keys)
        assert problem.seeing().shape[-1] == queries
