"""What may stand for a number of tokens, for all sequences or for each."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from headwise.cache import DenseCache, WindowCache
from headwise.cache.counts import read_counts, read_index

B, G, D, TOKENS = 3, 2, 5, 11


def filled(**options: Any) -> DenseCache:
    cache = DenseCache(B, G, 13, D, **options)
    cache.append(torch.zeros(B, G, TOKENS, D), torch.zeros(B, G, TOKENS, D))
    return cache


@pytest.mark.parametrize(
    "one", [2, np.int64(2), np.uint8(2), np.array(2), torch.tensor(2), torch.tensor(2, dtype=torch.int32)], ids=repr
)
def test_one_number_stands_for_all_sequences(one: Any) -> None:
    cache = filled()
    cache.check_rollback(one)
    assert cache.lengths.tolist() == [TOKENS] * B
    cache.rollback(one)
    assert cache.lengths.tolist() == [TOKENS - 2] * B
    counts = read_counts("rollback", one, B)
    assert (counts, {type(count) for count in counts}) == ((2,) * B, {int})


@pytest.mark.parametrize("each", [[2, 0, 1], np.array([2, 0, 1]).tolist(), list(np.array([2, 0, 1]))], ids=repr)
def test_or_one_for_each(each: Any) -> None:
    for given in (each, tuple(each), torch.tensor([int(one) for one in each])):
        counts = read_counts("rollback", given, B)
        assert (counts, {type(count) for count in counts}) == ((2, 0, 1), {int})
        assert read_index("select", given, B) == (2, 0, 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (True, "rollback: expected integers, got True"),
        ([1, np.bool_(True), 1], f"rollback: expected integers, got {np.bool_(True)!r}"),
        (2.0, "rollback: expected integers, got float"),
        (np.float32(2), "rollback: expected integers, got float32"),
        (torch.tensor(2.0), "rollback: expected integers, got torch.float32; cast with .long()"),
        (torch.tensor(True), "rollback: expected integers, got torch.bool; cast with .long()"),
        ([1, torch.tensor(True), 1], "rollback: expected integers, got tensor(True)"),
        ([1, 1.5, 1], "rollback: expected integers, got 1.5"),
        ("111", "rollback: expected integers, got str"),
    ],
)
def test_what_is_no_integer_is_refused(given: Any, message: str) -> None:
    cache = filled()
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        cache.rollback(given)
    assert cache.length == TOKENS


def test_a_tensor_without_axes_chooses_no_sequences() -> None:
    with pytest.raises(ValueError, match=r"^select: expected one axis, got \[\]$"):
        filled().select(torch.tensor(1))


def test_a_rollback_can_be_asked_about_beforehand() -> None:
    """It refuses with the words of the rollback itself, and changes nothing."""
    cache = WindowCache(B, G, 3, D, margin=2)
    cache.append(torch.zeros(B, G, TOKENS, D), torch.zeros(B, G, TOKENS, D))
    for tokens in (3, TOKENS + 1, [0, 2, 3]):
        with pytest.raises(ValueError, match=r"^rollback: expected ") as asked:
            cache.check_rollback(tokens)
        with pytest.raises(ValueError, match=f"^{re.escape(str(asked.value))}$"):
            cache.rollback(tokens)
    cache.check_rollback([0, 2, 1])
    assert cache.lengths.tolist() == [TOKENS] * B
    cache.rollback([0, 2, 1])
    assert cache.lengths.tolist() == [TOKENS, TOKENS - 2, TOKENS - 1]
