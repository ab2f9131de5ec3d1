"""What is particular about the window cache: what it drops and when, and what can't be taken back then."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.attention.reference import reference_attention
from headwise.cache import CacheFullError, WindowCache, attend
from tests.helpers.compare import assert_same
from tests.helpers.operations import Operations

B, G, R, D, DV, LEFT = 2, 3, 2, 7, 5, 4


def tokens(count: int) -> tuple[Tensor, Tensor]:
    return torch.randn(B, G, count, D, dtype=torch.float64), torch.randn(B, G, count, DV, dtype=torch.float64)


def make(window: Any = LEFT, **options: Any) -> WindowCache:
    """A cache whose memory is NaN."""
    cache = WindowCache(B, G, window, D, DV, dtype=torch.float64, **options)
    for group in cache._groups:
        for tensor in group.planes.tensors:
            tensor.fill_(torch.nan)
    return cache


def spans(cache: WindowCache) -> list[tuple[int | None, int]]:
    return [(left, 0) for left in cache.windows for _ in range(R)]


def check_step(cache: WindowCache, key: Tensor, value: Tensor, start: int, stop: int) -> None:
    """Tokens ``start`` to ``stop`` see what they would see of everything."""
    query = torch.randn(B, G * R, stop - start, D, dtype=torch.float64)
    output = attend(query, cache.append(key[:, :, start:stop], value[:, :, start:stop]), window=spans(cache))
    expected = reference_attention(query, key[:, :, :stop], value[:, :, :stop], causal=True, window=spans(cache))
    assert_same(output, expected.output)


# A window of LEFT + 1 tokens in a buffer of LEFT + margin + slack = 9 slots: all lengths around both.
@pytest.mark.parametrize("length", [LEFT - 1, LEFT, LEFT + 1, LEFT + 2, LEFT + 3, 8, 9, 10, 11, 18, 19])
@pytest.mark.parametrize("chunk", [1, 2, 5, 19])
def test_attention_is_right_on_both_sides_of_the_boundary(length: int, chunk: int) -> None:
    cache, (key, value) = make(margin=3, slack=2), tokens(length + 2)
    for start in range(0, length, chunk):
        check_step(cache, key, value, start, min(start + chunk, length))
    for start in range(length, length + 2):
        check_step(cache, key, value, start, start + 1)


@pytest.mark.parametrize("length", [LEFT, LEFT + 1, LEFT + 2, LEFT + 3, 8, 9, 10, 11, 18])
@pytest.mark.parametrize("back", [1, 2, 3])
@pytest.mark.parametrize("chunk", [1, 19])
def test_attention_is_right_after_a_rollback_across_the_boundary(length: int, back: int, chunk: int) -> None:
    cache, (key, value) = make(margin=3, slack=1), tokens(length)
    for start in range(0, length, chunk):
        cache.append(key[:, :, start : start + chunk], value[:, :, start : start + chunk])
    cache.rollback(back)
    kept = length - back
    (new_key, new_value), then = tokens(6), slice(0, kept)
    key, value = torch.cat([key[:, :, then], new_key], 2), torch.cat([value[:, :, then], new_value], 2)
    for start in (kept, kept + 1):
        check_step(cache, key, value, start, start + 1)
    check_step(cache, key, value, kept + 2, kept + 6)


def test_speculative_decoding_goes_on_for_ever() -> None:
    """Four drafts, three of them wrong, again and again: always within a margin of 3, never out of memory."""
    cache, (key, value) = make(margin=3), tokens(0)
    allocated = cache.nbytes
    for _ in range(25):
        kept, drafts = cache.length, tokens(4)
        key, value = (torch.cat([old, new], 2) for old, new in zip((key, value), drafts, strict=True))
        check_step(cache, key, value, kept, kept + 4)
        cache.rollback(3)
        key, value = key[:, :, : kept + 1], value[:, :, : kept + 1]
    assert cache.length == 25
    assert cache.nbytes == allocated


def test_a_rollback_beyond_the_margin_is_refused() -> None:
    cache, (key, value) = make(margin=3, slack=50), tokens(20)
    cache.append(key[:, :, :7], value[:, :, :7])  # LEFT + margin: nothing has left the window for good
    cache.rollback(7)
    cache.append(key, value)
    message = (
        "rollback: expected at most 3 tokens of sequence 1, got 4: beyond margin=3 behind its longest length 20 keys "
        "have left the window of 4 and are gone; build the WindowCache with a larger margin"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        cache.rollback([3, 4])
    assert cache.lengths.tolist() == [20, 20]
    cache.rollback(2)
    cache.rollback(1)
    with pytest.raises(ValueError, match=r"^rollback: expected at most 0 tokens of sequence 0, got 1: beyond margin=3"):
        cache.rollback(1)
    cache.reset()
    cache.append(key[:, :, :5], value[:, :, :5])
    cache.rollback(5)  # what was before the reset is forgotten


def test_the_answer_to_a_rollback_does_not_depend_on_free_slots() -> None:
    for slack in (1, 2, 50):
        cache = make(margin=1, slack=slack)
        cache.append(*tokens(6))
        with pytest.raises(ValueError, match=r"^rollback: expected at most 1 tokens"):
            cache.rollback(2)


def test_what_was_once_dropped_stays_dropped_when_less_comes_back() -> None:
    cache = make(margin=3)
    cache.append(*tokens(20))
    cache.rollback(3)
    cache.append(*tokens(1))  # 18 tokens, of 20 that were there once: 17 is as far back as it goes
    with pytest.raises(ValueError, match=r"^rollback: expected at most 1 tokens of sequence 0, got 2: .* length 20 "):
        cache.rollback(2)
    cache.rollback(1)


def test_a_single_free_slot_is_enough() -> None:
    # 40 tokens move by one slot at every step, over memory that overlaps.
    cache, (key, value) = make(40, slack=1), tokens(47)
    check_step(cache, key, value, 0, 41)
    for start in range(41, 47):
        check_step(cache, key, value, start, start + 1)


def test_memory_does_not_grow_with_the_number_of_tokens() -> None:
    cache = make(margin=3, slack=2)
    assert cache.nbytes == B * G * (LEFT + 3 + 2) * (D + DV) * 8
    for _ in range(50):
        cache.append(*tokens(3))
    assert cache.length == 150
    assert cache.nbytes == B * G * (LEFT + 3 + 2) * (D + DV) * 8
    assert cache.nbytes_logical == B * G * (LEFT + 3) * (D + DV) * 8


def test_heads_with_equal_windows_share_a_part_of_their_own_length() -> None:
    cache = make((1, 8, 1), slack=1)
    assert cache.nbytes == B * (2 * (1 + 1) + (8 + 1)) * (D + DV) * 8
    cache.append(*tokens(30))
    near, far = cache.append(*tokens(1))
    assert (near.kv_heads, near.start, near.offset, near.keys.shape) == ((0, 2), 29, 1, (B, 2, 2, D))
    assert (far.kv_heads, far.start, far.offset, far.values.shape) == ((1,), 22, 8, (B, 1, 9, DV))
    assert cache.nbytes_logical == B * (2 * 1 + 8) * (D + DV) * 8
    assert near.key_lengths is far.key_lengths is None


def test_what_is_handed_out_is_a_view_of_what_can_be_seen() -> None:
    cache = make()
    memory = {tensor.untyped_storage().data_ptr() for tensor in cache._groups[0].planes.tensors}
    cache.append(*tokens(3))
    for _ in range(60):
        (part,) = cache.append(*tokens(1))
        assert {part.keys.untyped_storage().data_ptr(), part.values.untyped_storage().data_ptr()} == memory
        assert part.keys.shape[2] == min(cache.length, LEFT + 1)


def test_a_first_append_of_any_length_is_handed_out_without_a_copy() -> None:
    cache, (key, value) = make(), tokens(100)
    with Operations(key, value, *cache._groups[0].planes.tensors) as ran:
        (part,) = cache.append(key, value)
    assert part.keys.data_ptr() == key.data_ptr()
    assert ran.largest_bytes == 0


def test_moves_are_rare() -> None:
    cache, moves = make(96, slack=12), 0
    cache.append(*tokens(96))
    for _ in range(120):
        with Operations() as ran:
            cache.append(*tokens(1))
        moves += ran.names.count("aten::copy_") > 2
    assert moves == 9  # the first free slots last 12 steps, and so does each move


def test_no_buffer_is_larger_than_the_capacity() -> None:
    cache = make((2, None, 100), capacity=13)
    assert [group.planes.slots for group in cache._groups] == [13, 13, 13]
    cache.append(*tokens(13))
    message = "WindowCache: expected at most 0 more tokens (13 of 13 are held), got 1; build it with a larger capacity"
    with pytest.raises(CacheFullError, match=f"^{re.escape(message)}"):
        cache.append(*tokens(1))
    assert cache.length == 13


def test_heads_that_see_everything_need_a_capacity() -> None:
    message = (
        "WindowCache: expected capacity= with a window of None, got none; heads that see everything need room for all "
        "tokens"
    )
    for window in (None, (4, None, 4)):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            make(window)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"window": -1}, ValueError, "WindowCache: expected window to be an integer of at least 0, got -1"),
        ({"window": (1, True, 2)}, ValueError, "WindowCache: expected window to be an integer of at least 0, got True"),
        ({"window": [1, 2]}, ValueError, "WindowCache: expected one window or 3, one per KV head, got 2"),
        (
            {"window": 1.5},
            TypeError,
            "WindowCache: expected window to be how many keys before its own a query sees, or (left, 0), or a list "
            "with one per KV head, got 1.5",
        ),
        (
            {"window": (1, 2)},
            ValueError,
            "WindowCache: expected a window that looks back only, (left, 0), got (1, 2); one number per KV head is a "
            "list",
        ),
        ({"margin": -1}, ValueError, "WindowCache: expected margin to be an integer of at least 0, got -1"),
        ({"slack": 0}, ValueError, "WindowCache: expected slack to be a positive integer, got 0"),
        ({"capacity": 0}, ValueError, "WindowCache: expected capacity to be a positive integer, got 0"),
    ],
)
def test_wrong_sizes_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        make(**options)


def test_repr_tells_windows_and_margin() -> None:
    assert "window=4, margin=3, head_dim=7" in repr(make(margin=3))
    assert "window=[2, None, 5], margin=0, capacity=13, head_dim=7" in repr(make((2, None, 5), capacity=13))


def test_a_window_may_be_written_as_layers_take_it() -> None:
    assert make((4, 0)).windows == make(4).windows == make([(4, 0), 4, 4]).windows == (4, 4, 4)
    assert make([(2, 0), None, 5], capacity=13).windows == (2, None, 5)
