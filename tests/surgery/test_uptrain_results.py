"""What a training has brought, in numbers over documents: shares, differences, and why there is none."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.intervals import bootstrap_interval
from headwise.surgery.training.results import difference, share_closed, spread


def test_the_share_of_the_gap_is_one_of_means_and_paired():
    start, end, teacher = [5.0, 6.0, 9.0], [4.0, 4.5, 6.0], [3.0, 3.0, 3.0]
    share = share_closed(start, end, teacher, 0)
    assert share["value"] == pytest.approx(5.5 / 11)
    assert share["low"] == share["high"] == pytest.approx(0.5)  # the same half in every document


def test_there_is_no_share_of_a_gap_that_is_not_shown():
    """The teacher is better in the mean, and worse in some documents."""
    told = share_closed([5.0, 6.0, 9.0], [4.0, 4.5, 6.0], [5.1, 6.1, 3.0], 0)
    assert (told["value"], told["low"], told["high"]) == (None, None, None)
    assert told["reason"].startswith("no gap to close: the student's loss was not shown to be above the teacher's")
    assert share_closed([5.0], [4.0], [6.0], 0)["reason"].endswith("the difference was -1.000 nats")
    # A student that was better than its teacher comes nearer to it: no reason to train on more tokens.
    assert share_closed([5.0], [5.5], [6.0], 0)["reason"].startswith("no gap to close")
    assert share_closed([5.0], [6.5], [6.0], 0)["reason"].startswith("training made it worse")
    alone = share_closed([5.0], [4.0], [3.0], 0)
    assert alone == {"value": 0.5, "low": None, "high": None, "reason": None}


def test_a_loss_that_rose_is_said_and_what_to_do():
    told = share_closed([5.0, 6.0], [5.5, 6.25], [3.0, 3.0], 0)
    assert told["value"] is None
    assert told["reason"] == (
        "training made it worse: it rose by 0.375 (0.250 to 0.500) nats; train on more tokens, or with a lower --rate"
    )
    assert share_closed([5.0, 6.0], [5.5, 5.75], [3.0, 3.0], 0)["reason"].startswith(
        "training was not shown to change the held-out loss: it rose by 0.125"
    )


def test_the_share_is_one_of_means_and_not_the_mean_of_shares():
    """A tenth of a gap of one, and nine tenths of one of nine."""
    share = share_closed([4.0, 12.0], [3.9, 3.9], [3.0, 3.0], 0)
    assert share["value"] == pytest.approx(8.2 / 10)


def test_a_loss_that_stayed_has_closed_nothing():
    assert share_closed([5.0, 6.0], [5.0, 6.0], [3.0, 3.0], 0) == {
        "value": 0.0,
        "low": 0.0,
        "high": 0.0,
        "reason": None,
    }


def test_draws_without_a_gap_have_no_share():
    """One draw in 256 is four times the document that has nothing to gain: zero over zero."""
    share = share_closed([3.0, 4.0, 4.0, 4.0], [3.0, 3.5, 3.5, 3.5], [3.0, 3.0, 3.0, 3.0], 0)
    assert (share["value"], share["low"], share["high"]) == pytest.approx((0.5, 0.5, 0.5))


BEFORE, AFTER = [5.0, 6.0, 9.0, 4.0], [4.0, 5.5, 8.5, 3.5]


def test_what_was_gained_is_paired_by_document():
    """Documents differ by five nats, what they gain by half a one."""
    told = difference(BEFORE, AFTER, 3)
    low, high = bootstrap_interval(np.array([1.0, 0.5, 0.5, 0.5]), 3)
    assert told == {"value": 0.625, "low": float(low), "high": float(high)}
    assert (told["low"], told["high"]) == (0.5, 0.875)


def test_intervals_are_drawn_by_the_seed():
    values = np.random.default_rng(0).random(7).tolist()
    assert spread(values, 3) == spread(values, 3) != spread(values, 4)
    shares = [share_closed([9.0] * 7, values, [0.0] * 7, seed) for seed in (3, 3, 4)]
    assert shares[0] == shares[1] != shares[2]
