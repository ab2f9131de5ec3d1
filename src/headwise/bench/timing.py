"""Rival ways of doing the same work, timed side by side.

A clock that drifts, a neighbour on the same machine or a warm processor slow down whoever runs at that moment. So the
rivals take turns in one process, one run each per round, and what counts is the ratio of two times from the same
round: its median over the rounds, with quartiles that say how far rounds differ.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["PairedTimes", "measure_paired"]


@dataclass(frozen=True)
class PairedTimes:
    """Times of rivals that took turns.

    Attributes:
        seconds: for each rival the seconds of one run, one entry per round; entry i of all rivals is from round i.
    """

    seconds: dict[str, tuple[float, ...]]

    def median(self, name: str) -> float:
        """The median time of one run of rival `name`, in seconds."""
        return statistics.median(self.seconds[name])

    def ratios(self, name: str, baseline: str) -> tuple[float, ...]:
        """The time of `name` over that of `baseline`, one ratio per round; below 1: `name` is faster."""
        return tuple(own / other for own, other in zip(self.seconds[name], self.seconds[baseline], strict=True))

    def median_ratio(self, name: str, baseline: str) -> float:
        """The median over rounds of the time of `name` over that of `baseline`."""
        return statistics.median(self.ratios(name, baseline))

    def ratio_quartiles(self, name: str, baseline: str) -> tuple[float, float]:
        """The lower and upper quartile of the ratios: between them lies half of the rounds."""
        lower, _, upper = statistics.quantiles(self.ratios(name, baseline), n=4, method="inclusive")
        return lower, upper


def measure_paired(
    rivals: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 25,
    warmup: int = 3,
    runs_per_time: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> PairedTimes:
    """Time the rivals in turns.

    Args:
        rivals: name -> the work, without arguments. All should do the same work.
        rounds: how many times each rival is timed; at least 2, so that there are quartiles.
        warmup: how many rounds run untimed before.
        runs_per_time: how many runs lie between two looks at the clock; the times are divided by it. Raise it for
            work that takes microseconds.
        clock: tells the time in seconds.

    Raises:
        ValueError: there are fewer than two rivals, or a number is too small.
    """
    if len(rivals) < 2 or rounds < 2 or warmup < 0 or runs_per_time < 1:
        raise ValueError(
            "measure_paired: expected at least 2 rivals, 2 rounds, 0 warmup rounds and 1 run per time, got "
            f"{len(rivals)} rivals, rounds={rounds}, warmup={warmup} and runs_per_time={runs_per_time}"
        )
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    names = list(rivals)
    for round_index in range(-warmup, rounds):
        # Another one begins each time: who runs first finds the caches as the last one left them.
        first = round_index % len(names)
        for name in names[first:] + names[:first]:
            elapsed = _time(rivals[name], runs_per_time, clock)
            if round_index >= 0:
                seconds[name].append(elapsed)
    return PairedTimes({name: tuple(times) for name, times in seconds.items()})


def _time(work: Callable[[], object], runs: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(runs):
        work()
    return (clock() - start) / runs
