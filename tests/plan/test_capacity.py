"""The longest context and the most sequences: what is said fits, and one more doesn't."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.plan.allocation import allocate
from headwise.plan.capacity import longest_context, most_sequences
from headwise.plan.request import Request
from headwise.plan.runtimes import runtime_named
from headwise.plan.states import Window
from tests.plan.loads import attention, mamba2, model, models, requests
from tests.plan.test_runtimes_properties import NAMED

LOGICAL = runtime_named("logical")
EACH = pytest.mark.parametrize(("name", "options"), NAMED)
# 2 layers, 3 heads of 5, keys and values, two bytes: 120 bytes a token.
PAIR = model(attention(0, 3, 5), attention(1, 3, 5))


@pytest.mark.parametrize(("room", "context"), [(119, 0), (120, 1), (239, 1), (240, 2), (120 * 8191, 8191)])
def test_the_longest_context(room, context):
    assert longest_context(PAIR, Request(7), LOGICAL, room) == context


@pytest.mark.parametrize(("room", "batch"), [(839, 0), (840, 1), (1679, 1), (1680, 2), (840 * 513, 513)])
def test_the_most_sequences(room, batch):
    assert most_sequences(PAIR, Request(7, 99), LOGICAL, room) == batch


def test_what_is_asked_for_is_not_taken_from_the_request():
    assert longest_context(PAIR, Request(999_999), LOGICAL, 1200) == 10
    assert longest_context(PAIR, Request(7, 5), LOGICAL, 1200) == 2
    assert most_sequences(PAIR, Request(10, 999_999), LOGICAL, 1200) == 1
    assert most_sequences(PAIR, Request(0), LOGICAL, 1200) == 10


def test_a_cache_that_stops_growing_has_no_longest_context():
    window = model(attention(0, 3, 5, Window(11)), mamba2(1, 8, 16, 2, 32))
    all_of_it = allocate(window, Request(11), LOGICAL).total
    assert longest_context(window, Request(7), LOGICAL, all_of_it) is None
    assert longest_context(window, Request(7), LOGICAL, all_of_it - 1) == 10


def test_a_model_that_keeps_nothing_has_no_most_sequences():
    assert most_sequences(model(()), Request(7), LOGICAL, 0) is None
    assert most_sequences(PAIR, Request(7), LOGICAL, 0) == 0
    assert most_sequences(PAIR, Request(7), LOGICAL, -1) == 0


def test_a_prefix_is_a_part_of_every_context():
    request = Request(100, 5, shared_prefix=100)
    assert longest_context(PAIR, request, LOGICAL, 120 * 99) == 0
    assert longest_context(PAIR, request, LOGICAL, 120 * 104) == 100
    assert longest_context(PAIR, request, LOGICAL, 120 * 105) == 101


def test_numbers_beyond_any_machine_are_found_at_once():
    assert longest_context(PAIR, Request(7), LOGICAL, 120 << 39) == 1 << 39
    assert longest_context(PAIR, Request(7), LOGICAL, (120 << 40) - 1) == (1 << 40) - 1


@EACH
@settings(max_examples=15)
@given(architecture=models(uniform=True), request_=requests(), room=st.integers(0, 1 << 26))
def test_the_longest_context_fits_and_one_more_token_does_not(name, options, architecture, request_, room):
    runtime = runtime_named(name, **options)

    def taken(context: int) -> int:
        return allocate(architecture, replace(request_, context=context), runtime).total

    context = longest_context(architecture, request_, runtime, room)
    if context is None:
        assert taken(1 << 40) <= room
    elif context == 0:
        assert taken(max(1, request_.shared_prefix)) > room
    else:
        assert taken(context) <= room < taken(context + 1)


@EACH
@settings(max_examples=15)
@given(architecture=models(uniform=True), request_=requests(), room=st.integers(0, 1 << 26))
def test_the_most_sequences_fit_and_one_more_does_not(name, options, architecture, request_, room):
    runtime = runtime_named(name, **options)

    def taken(batch: int) -> int:
        return allocate(architecture, replace(request_, batch=batch), runtime).total

    batch = most_sequences(architecture, request_, runtime, room)
    assert batch is not None
    assert batch == 0 or taken(batch) <= room
    assert room < taken(batch + 1)
