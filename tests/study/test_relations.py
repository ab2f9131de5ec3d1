"""Relations on sequences short enough to write the keys of every query down."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import Tensor

from headwise.study.relations import Keys, Match, Offset, Target

A, B, C, D = 3, 5, 7, 11
#                       0  1  2  3  4  5
SEQUENCE = torch.tensor([[A, B, A, B, C, A]])


def key_sets(mask: Tensor) -> list[list[set[int]]]:
    """For every sequence and query the set of keys."""
    assert mask.dtype == torch.bool
    return [[set(row.nonzero().flatten().tolist()) for row in sequence] for sequence in mask]


def all_queries(length: int) -> Tensor:
    return torch.arange(length)[None]


def test_offset():
    assert key_sets(Offset(1).keys(all_queries(4), 4)) == [[set(), {0}, {1}, {2}]]
    assert key_sets(Offset(0).keys(all_queries(3), 3)) == [[{0}, {1}, {2}]]
    assert key_sets(Offset(-2).keys(all_queries(4), 4)) == [[{2}, {3}, set(), set()]]


def test_offset_counts_from_each_query_of_a_block_and_of_a_sequence():
    queries = torch.tensor([[4, 5], [0, 9]])
    assert key_sets(Offset(1).keys(queries, 7)) == [[{3}, {4}], [set(), set()]]


def test_duplicate_is_every_other_copy_of_the_query_token():
    expected = [{2, 5}, {3}, {0, 5}, {1}, set(), {0, 2}]
    assert key_sets(Match(0, SEQUENCE).keys(all_queries(6), 6)) == [expected]


def test_induction_is_what_followed_other_copies_of_the_query_token():
    #           A at 0: after 2, 5  B: after 3  A: after 0, 5  B: after 1  C     A: after 0, 2
    expected = [{3}, {4}, {1}, {2}, set(), {1, 3}]
    assert key_sets(Match(1, SEQUENCE).keys(all_queries(6), 6)) == [expected]


def test_the_key_after_the_query_itself_is_no_copy_but_the_query_may_follow_one():
    repeated = torch.tensor([[D, D, D]])
    # Query 1: the copy at 0 is followed by 1, its own position; the copy at 2 by nothing.
    assert key_sets(Match(1, repeated).keys(all_queries(3), 3)) == [[{2}, {1}, {1, 2}]]


def test_a_longer_shift():
    assert key_sets(Match(2, SEQUENCE).keys(all_queries(6), 6)) == [[{4}, {5}, {2}, {3}, set(), {2, 4}]]


def test_match_in_every_sequence_by_itself():
    tokens = torch.tensor([[A, B, A], [B, B, A]])
    assert key_sets(Match(0, tokens).keys(all_queries(3), 3)) == [[{2}, set(), {0}], [{1}, {0}, set()]]


def test_match_for_a_block_of_queries():
    assert key_sets(Match(0, SEQUENCE).keys(torch.tensor([[2, 3]]), 6)) == [[{0, 5}, {1}]]
    queries = torch.tensor([[0], [4]])
    assert key_sets(Match(0, SEQUENCE).keys(queries, 6)) == [[{2, 5}], [set()]]


def test_keys_are_the_same_for_every_query():
    first = torch.tensor([True, False, False])
    assert key_sets(Keys(first, "first").keys(torch.tensor([[1, 2]]), 3)) == [[{0}, {0}]]
    per_sequence = torch.tensor([[True, False, True], [False, True, False]])
    assert key_sets(Keys(per_sequence).keys(all_queries(2), 3)) == [[{0, 2}, {0, 2}], [{1}, {1}]]


def test_target_is_one_labelled_key_or_none():
    index = torch.tensor([-1, 0, 3, 1])
    assert key_sets(Target(index, "head").keys(all_queries(4), 4)) == [[set(), {0}, {3}, {1}]]
    assert key_sets(Target(index).keys(torch.tensor([[2, 0]]), 4)) == [[{3}, set()]]
    per_sequence = torch.tensor([[1, -1], [-1, 0]])
    assert key_sets(Target(per_sequence).keys(all_queries(2), 2)) == [[{1}, set()], [set(), {0}]]


def test_a_query_outside_the_sequence_has_no_token_and_no_label():
    queries = torch.tensor([[-1, 1, 3]])
    assert key_sets(Match(0, torch.tensor([[A, A, A]])).keys(queries, 3)) == [[set(), {0, 2}, set()]]
    assert key_sets(Target(torch.tensor([1, 1, 1])).keys(queries, 3)) == [[set(), {1}, set()]]


def test_names():
    assert Offset(1).name == "offset 1"
    assert Offset(1, "previous").name == "previous"
    assert Match(0, SEQUENCE).name == "match 0"
    assert Match(1, SEQUENCE, "induction").name == "induction"
    assert Keys(SEQUENCE[0] > 0).name == "keys"
    assert Target(SEQUENCE).name == "target"


def test_relations_that_hold_tensors_are_compared_by_identity():
    one, other = Match(0, SEQUENCE), Match(0, SEQUENCE)
    assert one != other
    assert {one: 1}[one] == 1
    assert Offset(1) == Offset(1)


def test_masks_follow_the_device_of_the_queries():
    for relation in (Match(1, SEQUENCE), Keys(SEQUENCE > 4), Target(SEQUENCE)):
        assert relation.keys(all_queries(6).to("meta"), 6).device.type == "meta"


WRONG = {
    "negative shift": (
        lambda: Match(-1, SEQUENCE),
        "Match: expected a shift of 0 or more, got -1; Offset looks ahead",
    ),
    "tokens of one axis": (
        lambda: Match(0, SEQUENCE[0]),
        "Match: expected tokens [B, S], got shape [6]; add the batch axis with tokens[None]",
    ),
    "tokens of another length": (
        lambda: Match(0, SEQUENCE).keys(all_queries(5), 5),
        "Match 'match 0': expected tokens for 5 keys, got 6; they are those of the whole key sequence",
    ),
    "mask of another length": (
        lambda: Keys(SEQUENCE > 4, "delimiter").keys(all_queries(5), 5),
        "Keys 'delimiter': expected a mask over 5 keys, got shape [1, 6]; they are those of the whole key sequence",
    ),
    "mask of three axes": (
        lambda: Keys(SEQUENCE[None] > 4),
        "Keys 'keys': expected mask [S] or [B, S], got shape [1, 1, 6]",
    ),
    "label without an axis": (
        lambda: Target(SEQUENCE[0, 0]),
        "Target 'target': expected labels [S] or [B, S], got shape []",
    ),
    "distance beyond any": (
        lambda: Offset(-(2**62) - 1),
        "Offset: expected distance of at most 2**62 places, got -4611686018427387905",
    ),
    "shift beyond any": (
        lambda: Match(2**70, SEQUENCE),
        "Match: expected shift of at most 2**62 places, got 1180591620717411303424",
    ),
    "documents that end elsewhere": (
        lambda: Match(1, SEQUENCE, cu_seqlens=[0, 5]),
        "cu_seqlens: expected running totals from 0 to 6 (the queries), got [0, 5]; entry n is where document n "
        "starts, the last one where the last document ends",
    ),
    "labels of another length": (
        lambda: Target(SEQUENCE, "head").keys(all_queries(5), 5),
        "Target 'head': expected one label for each of 5 positions, got 6; use -1 where there is no target",
    ),
}


@pytest.mark.parametrize(("make", "text"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_refused(make, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        make()


WRONG_KINDS = {
    "distance 1.5": (lambda: Offset(1.5), "Offset: expected distance as a whole number of places, got 1.5"),
    "distance of letters": (lambda: Offset("a"), "Offset: expected distance as a whole number of places, got 'a'"),
    "distance True": (lambda: Offset(True), "Offset: expected distance as a whole number of places, got True"),
    "distance in a float tensor": (
        lambda: Offset(torch.tensor(1.0)),
        "Offset: expected distance as a whole number of places, got Tensor",
    ),
    "no distance": (lambda: Offset(None), "Offset: expected distance as a whole number of places, got NoneType"),
    "shift 0.5": (lambda: Match(0.5, SEQUENCE), "Match: expected shift as a whole number of places, got 0.5"),
    "tokens in a list": (
        lambda: Match(1, [[1, 2]]),
        "Match: expected tokens [B, S] as a tensor of integers, got list; make one with torch.tensor",
    ),
    "tokens of floats": (
        lambda: Match(1, SEQUENCE.float()),
        "Match: expected tokens [B, S] as a tensor of integers, got torch.float32; make one with torch.tensor",
    ),
    "tokens of booleans": (
        lambda: Match(1, SEQUENCE > 4),
        "Match: expected tokens [B, S] as a tensor of integers, got torch.bool; make one with torch.tensor",
    ),
    "documents of floats": (
        lambda: Match(1, SEQUENCE, cu_seqlens=[0, 2.5, 6]),
        "cu_seqlens: expected integers, got torch.float32; cast with .int()",
    ),
    "labels in a list": (
        lambda: Target([1, 2], "head"),
        "Target 'head': expected labels [S] or [B, S] as a tensor of integers, got list; make one with torch.tensor",
    ),
    "labels of floats": (
        lambda: Target(torch.full((6,), 1.7)),
        "Target 'target': expected labels [S] or [B, S] as a tensor of integers, got torch.float32; "
        "make one with torch.tensor",
    ),
    "mask of numbers": (
        lambda: Keys(SEQUENCE, "delimiter"),
        "Keys 'delimiter': expected a tensor of booleans, True for its keys, got torch.int64",
    ),
    "mask in a list": (
        lambda: Keys([True, False]),
        "Keys 'keys': expected a tensor of booleans, True for its keys, got list",
    ),
}


@pytest.mark.parametrize(("make", "text"), WRONG_KINDS.values(), ids=WRONG_KINDS)
def test_what_is_of_another_kind_is_refused_at_once(make, text):
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        make()


def test_whole_numbers_of_every_kind_are_taken():
    for two in (2, np.int16(2), torch.tensor(2)):
        assert Offset(two) == Offset(2)
        assert type(Offset(two).distance) is type(Match(two, SEQUENCE).shift) is int
    expected = key_sets(Match(1, SEQUENCE).keys(all_queries(6), 6))
    for dtype in (torch.uint8, torch.int16, torch.int32):
        assert key_sets(Match(1, SEQUENCE.to(dtype)).keys(all_queries(6), 6)) == expected
        assert key_sets(Target(SEQUENCE.to(dtype) - 3).keys(all_queries(6), 6))[0][0] == {0}
    for far in (2**62, -(2**62)):
        assert key_sets(Offset(far).keys(all_queries(3), 3)) == [[set(), set(), set()]]
    assert key_sets(Match(2**62, SEQUENCE).keys(all_queries(6), 6)) == [[set()] * 6]


@pytest.mark.parametrize("ids", [
    [2**62, -(2**62) - 1, 2**62, 5, 6, 5],
    [2**63 - 1, -(2**63), 2**63 - 1, -1, 0, -1],
    [-(2**63), 2**63 - 2, -(2**63), -2, -1, -2],
    [-7, -8, -7, -9, -10, -9],
    [0, 1, 0, 3, 2, 3],
])  # fmt: skip
def test_tokens_are_told_apart_by_their_ids_whatever_these_are(ids):
    tokens = torch.tensor([ids])
    assert key_sets(Match(0, tokens).keys(all_queries(6), 6)) == [[{2}, set(), {0}, {5}, set(), {3}]]
    assert key_sets(Match(1, tokens).keys(all_queries(6), 6)) == [[{3}, set(), {1}, set(), set(), {4}]]
    form = Match(0, tokens).form(all_queries(6), 6)
    assert min(form.query_ids.min(), form.key_ids.min()) >= 0  # negative ones mean none
    two = torch.tensor([ids, ids[::-1]])  # one set of ids for all sequences
    assert key_sets(Match(0, two).keys(all_queries(6), 6))[1] == [{2}, set(), {0}, {5}, set(), {3}]


def test_the_first_token_of_a_document_follows_no_copy():
    packed = torch.full((1, 6), -(2**63))
    for bounds in ([0, 2, 6], torch.tensor([0, 2, 6], dtype=torch.int32)):
        found = key_sets(Match(1, packed, cu_seqlens=bounds).keys(all_queries(6), 6))
        assert found == [[{3, 4, 5}, {1, 3, 4, 5}, {1, 4, 5}, {1, 3, 5}, {1, 3, 4}, {1, 3, 4, 5}]]
