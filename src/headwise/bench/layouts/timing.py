"""Latency of all layouts in turns: reading the whole context, and one more token behind it.

Symbols: ``B`` batch, ``S`` context, ``E`` model width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from headwise.bench.layouts.costs import Load
from headwise.bench.layouts.runners import Runner
from headwise.bench.timing import PairedTimes, measure_paired
from headwise.cache.base import BaseCache
from headwise.progress import Progress

__all__ = ["PausingClock", "time_runners"]

WARMUP = 2  # rounds that run untimed before


class PausingClock:
    """A clock that stands still while something is put back to where a run begins."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._paused = 0.0

    def __call__(self) -> float:
        return self._clock() - self._paused

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """What is done inside takes no time."""
        start = self._clock()
        try:
            yield
        finally:
            self._paused += self._clock() - start


@torch.inference_mode()
def time_runners(
    runners: Sequence[Runner],
    caches: Sequence[BaseCache],
    load: Load,
    *,
    rounds: int,
    seed: int,
    progress: Progress,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[PairedTimes, PairedTimes]:
    """Prefill and decoding of all of them; each round runs every one once.

    Args:
        runners: at least two.
        caches: one for each, of ``load``; they end full.
        load: a prefill reads ``context`` tokens; a decoded token is the last of as many.
        rounds: how many times are taken.
        seed: of the activations.
        progress: is told of every prefill.
        clock: tells the time in seconds.
    """
    pausing = PausingClock(clock)
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(load.batch, load.context, runners[0].spec.width, generator=generator)
    hidden = hidden.to(getattr(torch, load.dtype))  # [B, S, E]
    pairs = list(zip(runners, caches, strict=True))

    def prefill(runner: Runner, cache: BaseCache) -> Callable[[], None]:
        def run() -> None:
            with pausing.standing_still():
                cache.reset()
            runner.run(hidden, cache)
            with pausing.standing_still():
                progress.advance(load.batch * load.context)

        return run

    def decode(runner: Runner, cache: BaseCache) -> Callable[[], None]:
        def run() -> None:
            with pausing.standing_still():
                if cache.length == load.context:
                    cache.rollback(1)
            runner.run(hidden[:, -1:], cache)

        return run

    options = {"rounds": rounds, "warmup": WARMUP, "clock": pausing}
    progress.stage("timing prefill")
    prefills = measure_paired({runner.name: prefill(runner, cache) for runner, cache in pairs}, **options)  # type: ignore[arg-type]
    progress.stage("timing decoding")
    decodes = measure_paired({runner.name: decode(runner, cache) for runner, cache in pairs}, **options)  # type: ignore[arg-type]
    return prefills, decodes
