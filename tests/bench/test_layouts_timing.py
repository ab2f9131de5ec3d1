"""Times in turns with a clock that is made up, and what peak memory counts."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headwise.bench import processes
from headwise.bench.layouts.costs import Load, cost_of
from headwise.bench.layouts.memory import Peak, measure_peak
from headwise.bench.layouts.result import Ratio
from headwise.bench.layouts.specs import Shape
from headwise.bench.layouts.timing import WARMUP, PausingClock, time_runners
from headwise.bench.timing import PairedTimes
from headwise.progress import Silent
from tests.bench.layouts import LOAD, spec


class Hand:
    """A clock that moves when it is pushed."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Pushing:
    """Stands for a layer: a run takes what it is told, and putting it back takes long."""

    hand: Hand
    name: str
    seconds: tuple[float, ...]
    spec: Any = dataclasses.field(default_factory=lambda: SimpleNamespace(width=23))
    read: list[tuple[int, ...]] = dataclasses.field(default_factory=list)
    length: int = 0
    backs: list[int] = dataclasses.field(default_factory=list)

    def run(self, hidden: torch.Tensor, cache: Pushing) -> None:
        assert cache is self
        self.read.append(tuple(hidden.shape))
        self.length += hidden.shape[1]
        assert self.length <= LOAD.context
        self.hand.now += self.seconds[len(self.read) % len(self.seconds)]

    def reset(self) -> None:
        self.hand.now += 1000.0
        self.length = 0

    def rollback(self, tokens: int) -> None:
        self.hand.now += 1000.0
        self.backs.append(tokens)
        self.length -= tokens


def test_a_clock_stands_still_while_something_is_put_back():
    hand = Hand()
    clock = PausingClock(hand)
    hand.now = 3.0
    with clock.standing_still():
        hand.now = 10.0
    hand.now = 12.0
    assert clock() == 5.0
    with pytest.raises(ValueError, match="gone"):
        fail_late(hand, clock)
    assert clock() == 5.0


def fail_late(hand: Hand, clock: PausingClock) -> None:
    with clock.standing_still():
        hand.now = 100.0
        raise ValueError("gone")


def test_runs_are_timed_in_turns_and_what_puts_them_back_is_not():
    hand = Hand()
    first, second = Pushing(hand, "first", (2.0, 4.0)), Pushing(hand, "second", (6.0, 8.0))
    prefill, decode = time_runners(
        [first, second],
        [first, second],
        LOAD,
        rounds=6,
        seed=0,
        progress=Silent(),
        clock=hand,  # type: ignore[list-item]
    )
    for times in (prefill, decode):
        assert sorted(times.seconds["first"]) == [2.0, 2.0, 2.0, 4.0, 4.0, 4.0]
        assert sorted(times.seconds["second"]) == [6.0, 6.0, 6.0, 8.0, 8.0, 8.0]
        expected = [own / other for own, other in zip(times.seconds["second"], times.seconds["first"], strict=True)]
        assert list(times.ratios("second", "first")) == expected
        assert set(expected) == {2.0, 3.0}
    turns = 6 + WARMUP
    assert first.read == [(3, 31, 23)] * turns + [(3, 1, 23)] * turns
    # Each decoded token is the last one of the context: before it, one is taken back.
    assert second.backs == [1] * turns


def test_every_decoded_token_stands_at_the_same_place_in_every_cache():
    """With the real layers: nothing grows, whatever the cache keeps."""
    from headwise.bench.layouts.runners import build_runner

    runners = [build_runner(each, cost_of(each, LOAD), LOAD, seed=0) for each in map(spec, ("mqa", "window:7"))]
    caches = [runner.cache(LOAD) for runner in runners]
    ticks = itertools.count()
    time_runners(runners, caches, LOAD, rounds=5, seed=0, progress=Silent(), clock=lambda: float(next(ticks)))
    assert [cache.length for cache in caches] == [LOAD.context] * 2


def test_a_ratio_has_quartiles_and_says_whether_it_is_one():
    times = PairedTimes({"a": (1.0, 1.0, 1.0, 1.0, 1.0), "b": (0.5, 2.0, 3.0, 1.0, 4.0)})
    ratio = Ratio.of(times, "b", "a")
    assert ratio == Ratio(2.0, 1.0, 3.0)
    assert not ratio.differs
    assert Ratio(2.0, 1.5, 3.0).differs
    assert Ratio(0.5, 0.4, 0.9).differs


def test_a_peak_counts_above_what_was_there_before():
    peak = Peak(before=1000, decode=1700, prefill=4000)
    assert peak.record() == {"before": 1000, "decode": 1700, "prefill": 4000, "decode_rise": 700, "prefill_rise": 3000}


def test_a_process_that_fails_is_told_in_words(monkeypatch):
    monkeypatch.setattr("headwise.bench.layouts.memory.run_fresh", lambda *_: "it ended with code -9")
    told = measure_peak(spec("mqa"), LOAD, repeats=False, backend=None, threads=1, seed=0)
    assert told == "it ended with code -9"


@pytest.mark.skipif(not processes.forget_peak(), reason="only Linux lets a process forget its peak")
def test_a_peak_can_be_forgotten():
    ballast = torch.ones(64 << 18)  # 64 MiB
    high = processes.peak_bytes()
    del ballast
    assert processes.forget_peak()
    assert processes.peak_bytes() < high - (32 << 20)


@pytest.mark.slow  # three processes, each of which imports torch
def test_repeating_takes_as_much_memory_as_the_cache_saved():
    load = Load(5, 2_003, "float32")
    shape = Shape(128, 8, 16)
    layouts = {word: spec(word, shape) for word in ("mha", "mqa")}
    options: dict[str, Any] = {"backend": None, "threads": 1, "seed": 0}
    whole, small, repeated = (
        measure_peak(layouts[word], load, repeats=repeats, **options)
        for word, repeats in (("mha", False), ("mqa", False), ("mqa", True))
    )
    assert isinstance(whole, Peak), whole
    assert isinstance(small, Peak), small
    assert isinstance(repeated, Peak), repeated
    cache = cost_of(layouts["mha"], load).planned  # 9.8 MiB
    assert small.decode_rise < cache / 2 < cache < repeated.decode_rise
    assert cache * 0.8 < whole.decode_rise < cache * 2
    assert whole.decode_rise <= whole.prefill_rise
