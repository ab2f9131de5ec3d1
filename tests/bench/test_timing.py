from __future__ import annotations

import re

import pytest

from headwise.bench import PairedTimes, measure_paired


class Clock:
    """Time that passes only when work is done."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def __call__(self) -> float:
        return self.now

    def work(self, name: str, seconds: list[float]):
        def run() -> None:
            self.order.append(name)
            self.now += seconds.pop(0)

        return run


def test_rivals_take_turns_and_begin_in_turn():
    clock = Clock()
    rivals = {name: clock.work(name, [1.0] * 9) for name in ("a", "b", "c")}
    measure_paired(rivals, rounds=4, warmup=2, clock=clock)
    rounds = ["".join(clock.order[start : start + 3]) for start in range(0, 18, 3)]
    assert rounds == ["bca", "cab", "abc", "bca", "cab", "abc"]


def test_warmup_is_not_counted_and_runs_share_a_time():
    clock = Clock()
    rivals = {"a": clock.work("a", [90.0, 90.0, 2.0, 4.0, 6.0, 8.0]), "b": clock.work("b", [1.0] * 6)}
    times = measure_paired(rivals, rounds=2, warmup=1, runs_per_time=2, clock=clock)
    assert times.seconds == {"a": (3.0, 7.0), "b": (1.0, 1.0)}


def test_what_counts_is_the_ratio_within_a_round():
    # Everything is slow in the second round: the ratio does not notice.
    times = PairedTimes({"new": (1.0, 10.0, 2.0, 3.0), "old": (2.0, 20.0, 5.0, 4.0)})
    assert times.ratios("new", "old") == (0.5, 0.5, 0.4, 0.75)
    assert times.median_ratio("new", "old") == 0.5
    assert times.ratio_quartiles("new", "old") == pytest.approx((0.475, 0.5625))
    assert times.median("new") == 2.5


@pytest.mark.parametrize(
    ("rivals", "arguments", "told"),
    [
        (["a"], {}, "1 rivals, rounds=25, warmup=3 and runs_per_time=1"),
        (["a", "b"], {"rounds": 1}, "2 rivals, rounds=1, warmup=3 and runs_per_time=1"),
        (["a", "b"], {"warmup": -1}, "2 rivals, rounds=25, warmup=-1 and runs_per_time=1"),
        (["a", "b"], {"runs_per_time": 0}, "2 rivals, rounds=25, warmup=3 and runs_per_time=0"),
    ],
)
def test_a_measurement_without_pairs_is_refused(rivals, arguments, told):
    message = f"measure_paired: expected at least 2 rivals, 2 rounds, 0 warmup rounds and 1 run per time, got {told}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        measure_paired(dict.fromkeys(rivals, lambda: None), **arguments)
