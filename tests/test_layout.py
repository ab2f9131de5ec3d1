from __future__ import annotations

import re
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.layout import HeadLayout, head_name, parse_head


def test_grouped_heads_share_kv_heads_in_repeat_interleave_order():
    layout = HeadLayout(num_heads=6, num_kv_heads=2, head_dim=5)
    assert layout.group_size == 3
    assert [layout.kv_head(head) for head in range(6)] == [0, 0, 0, 1, 1, 1]
    assert [list(layout.heads_of(kv_head)) for kv_head in range(2)] == [[0, 1, 2], [3, 4, 5]]


@given(st.integers(1, 7), st.integers(1, 7))
def test_kv_head_and_heads_of_are_inverse(num_kv_heads: int, group_size: int):
    layout = HeadLayout(num_kv_heads * group_size, num_kv_heads, 3)
    read = [(kv_head, head) for kv_head in range(num_kv_heads) for head in layout.heads_of(kv_head)]
    assert [head for _, head in read] == list(range(layout.num_heads))
    assert all(layout.kv_head(head) == kv_head for kv_head, head in read)


def test_value_dim_is_head_dim_unless_given():
    assert HeadLayout(2, 1, 7).value_dim == 7
    assert HeadLayout(2, 1, 7, value_head_dim=11).value_dim == 11


def test_layout_can_not_be_changed_and_equal_ones_are_equal():
    layout = HeadLayout(2, 1, 7)
    with pytest.raises(FrozenInstanceError):
        layout.num_heads = 4  # type: ignore[misc]
    assert layout == HeadLayout(2, 1, 7)
    assert len({layout, HeadLayout(2, 1, 7), HeadLayout(2, 2, 7)}) == 2


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (None, [(None, None), (None, None), (None, None)]),
        ((4, 0), [(4, 0), (4, 0), (4, 0)]),
        ((None, None), [(None, None), (None, None), (None, None)]),
        (((4, 0), None, (None, 2)), [(4, 0), (None, None), (None, 2)]),
    ],
)
def test_window_holds_for_all_heads_or_for_each(window, expected):
    layout = HeadLayout(3, 1, 5, window=window)
    assert [layout.window_of(head) for head in range(3)] == expected


def test_two_heads_may_have_a_window_each():
    layout = HeadLayout(2, 1, 5, window=((1, 0), None))
    assert [layout.window_of(head) for head in range(2)] == [(1, 0), (None, None)]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"num_heads": 9, "num_kv_heads": 4},
            ValueError,
            "HeadLayout: expected num_heads to be a multiple of num_kv_heads, got num_heads=9 and num_kv_heads=4; "
            "use one of 1, 3, 9 KV heads",
        ),
        (
            {"num_heads": 0},
            ValueError,
            "HeadLayout: expected num_heads to be at least 1, got 0; give its true size",
        ),
        (
            {"head_dim": -64},
            ValueError,
            "HeadLayout: expected head_dim to be at least 1, got -64; give its true size",
        ),
        (
            {"value_head_dim": 0},
            ValueError,
            "HeadLayout: expected value_head_dim to be at least 1, got 0; give its true size",
        ),
        (
            {"num_kv_heads": 2.0},
            TypeError,
            "HeadLayout: expected num_kv_heads to be an int, got 2.0; give a whole number of at least 1",
        ),
        (
            {"num_kv_heads": True},
            TypeError,
            "HeadLayout: expected num_kv_heads to be an int, got True; give a whole number of at least 1",
        ),
        (
            {"window": 128},
            TypeError,
            "HeadLayout: expected window to be None, (left, right) or a tuple of one per head, got 128; "
            "a sliding_window of w is (w - 1, 0)",
        ),
        (
            {"window": (-1, 0)},
            ValueError,
            "HeadLayout: expected window sides of at least 0 keys, got (-1, 0); use None for no bound",
        ),
        (
            {"window": ((1, 0), (2, 0), (3, 0))},
            ValueError,
            "HeadLayout: expected one window for each of 6 heads, got 3; "
            "give one (left, right) for all heads, or one entry per head",
        ),
        (
            {"window": ((1, 0), None, None, None, None, 7)},
            TypeError,
            "HeadLayout: expected a window to be (left, right) in whole keys, None for no bound, got 7",
        ),
        (
            {"window": ((1, 0), None, None, None, None, (1, -2))},
            ValueError,
            "HeadLayout: expected window sides of at least 0 keys, got (1, -2); use None for no bound",
        ),
    ],
)
def test_a_layout_that_can_not_be_is_refused(arguments, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        HeadLayout(**{"num_heads": 6, "num_kv_heads": 2, "head_dim": 5, **arguments})


@pytest.mark.parametrize(
    ("method", "index", "message"),
    [
        ("kv_head", 6, "HeadLayout.kv_head: expected a query head from 0 to 5, got 6"),
        ("kv_head", -1, "HeadLayout.kv_head: expected a query head from 0 to 5, got -1"),
        ("heads_of", 2, "HeadLayout.heads_of: expected a KV head from 0 to 1, got 2"),
        ("window_of", 6, "HeadLayout.window_of: expected a query head from 0 to 5, got 6"),
    ],
)
def test_a_head_that_is_not_there_is_refused(method, index, message):
    with pytest.raises(IndexError, match=f"^{re.escape(message)}$"):
        getattr(HeadLayout(6, 2, 5), method)(index)


@given(st.integers(0, 999), st.integers(0, 999))
def test_head_names_can_be_read_back(layer: int, head: int):
    assert head_name(layer, head) == f"L{layer}.H{head}"
    assert parse_head(head_name(layer, head)) == (layer, head)


@pytest.mark.parametrize(
    "name", ["", "5.1", "L5H1", "l5.h1", "L5.H", "L05.H1", "L5.H1 ", "L-1.H0", "L5.H1.H2", "L٣.H1"]
)
def test_what_is_not_a_head_name_is_refused(name):
    message = f"parse_head: expected a head written as L5.H1 (layer 5, head 1, from 0), got {name!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse_head(name)


@pytest.mark.parametrize(("layer", "head"), [(-1, 0), (0, -1)])
def test_names_of_negative_heads_are_refused(layer, head):
    message = f"head_name: expected layer and head to count from 0, got layer={layer} and head={head}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        head_name(layer, head)
