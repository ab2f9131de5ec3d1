"""What may be asked, and how a wrong number is refused."""

from __future__ import annotations

import pytest

from headwise.plan.errors import PlanError
from headwise.plan.request import Request

BOUND = 1 << 40


def test_drafts_stand_behind_the_context_once_there_is_one():
    assert Request(7, speculative=3).length == 10
    assert Request(0, speculative=3).length == 0


@pytest.mark.parametrize(
    ("field", "option", "least"),
    [
        ("context", "--context", 0),
        ("batch", "--batch", 1),
        ("tp", "--tp", 1),
        ("speculative", "--speculative", 0),
        ("shared_prefix", "--shared-prefix", 0),
        ("encoder_length", "--encoder-length", 0),
    ],
)
def test_numbers_have_to_be_whole_and_in_range(field, option, least):
    for wrong in (least - 1, BOUND + 1, 3.5, True, "7", float("nan"), 10**5000):
        shown = repr(wrong) if wrong != 10**5000 else "what can't be printed (int)"
        with pytest.raises(PlanError) as refused:
            Request(**{"context": BOUND, field: wrong})
        assert str(refused.value) == f"{option}: expected a whole number from {least} to {BOUND}, got {shown}"
    Request(**{"context": BOUND, field: least})
    Request(**{"context": BOUND, field: BOUND})


def test_a_prefix_is_a_part_of_the_context():
    Request(5, shared_prefix=5)
    with pytest.raises(PlanError) as refused:
        Request(5, shared_prefix=6)
    assert str(refused.value) == "--shared-prefix: expected at most the context of 5 tokens, got 6"
