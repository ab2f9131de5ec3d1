"""All of a comparison: refuse, build, check, time in turns, weigh, and say what it doesn't show."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from headwise.attention.backends import BACKENDS
from headwise.bench.environment import environment_record
from headwise.bench.layouts import notes as words
from headwise.bench.layouts.checks import Check, check_bytes, check_parameters, check_runner
from headwise.bench.layouts.costs import Cost, cost_of
from headwise.bench.layouts.device import measured_device
from headwise.bench.layouts.memory import Peak, measure_peak
from headwise.bench.layouts.result import Latency, LayoutComparison, Ratio, Row
from headwise.bench.layouts.runners import Runner, build_runner, repeating
from headwise.bench.layouts.settings import Settings, check_memory
from headwise.bench.layouts.timing import WARMUP, time_runners
from headwise.bench.timing import PairedTimes
from headwise.bench.verification.speed import available_bytes
from headwise.cache.base import BaseCache
from headwise.errors import UserError
from headwise.plan.devices import Device
from headwise.progress import Progress, Silent

__all__ = ["CheckFailed", "compare_layouts"]


class CheckFailed(Exception):
    """What was to be measured does not hold: other bytes than planned, or other outputs. Nothing was timed.

    Attributes:
        shortfalls: one line for each.
    """

    def __init__(self, shortfalls: Sequence[str]) -> None:
        super().__init__("; ".join(shortfalls))
        self.shortfalls = tuple(shortfalls)


@dataclass(frozen=True)
class _Contestant:
    """A runner that was checked, and its cache."""

    runner: Runner
    cache: BaseCache
    allocated: int
    check: Check


def compare_layouts(
    settings: Settings, *, progress: Progress | None = None, clock: Callable[[], float] = time.perf_counter
) -> LayoutComparison:
    """Measure all layouts, and a plain implementation that repeats keys and values beside those that share them.

    Args:
        settings: what is asked.
        progress: is told what goes on.
        clock: tells the time in seconds.

    Raises:
        UserError: the memory doesn't suffice, a backend isn't known or can't do a layout, or the dtype can't be
            multiplied here.
        CheckFailed: a cache has other bytes than planned, or decodes another thing than reading at once gives.
    """
    started, progress = time.monotonic(), progress or Silent()
    load = settings.load
    _check_backend_name(settings.backend)
    costs = [cost_of(spec, load) for spec in settings.specs]
    check_memory(settings, costs, available_bytes())
    runners = _runners(settings, costs)
    progress.plan((settings.rounds + WARMUP) * len(runners) * load.batch * load.context)
    progress.stage("checking decoding against reading at once")
    contestants = _checked(runners, settings)
    progress.stage("measuring what this processor can reach")
    device = measured_device(load.dtype)
    prefill, decode = time_runners(
        runners,
        [each.cache for each in contestants],
        load,
        rounds=settings.rounds,
        seed=settings.seed,
        progress=progress,
        clock=clock,
    )
    peaks = _peaks(runners, settings, progress)
    rows = _rows(contestants, settings, (prefill, decode), None if isinstance(device, str) else device, peaks)
    notes = [*settings.notes, *words.find_notes(rows, load)]
    notes += [f"no share of the roofline: {device}"] if isinstance(device, str) else []
    notes += [f"peak memory was not measured: {peaks}"] if isinstance(peaks, str) else []
    return LayoutComparison(
        rows=tuple(rows),
        load=load,
        device=None if isinstance(device, str) else device,
        notes=tuple(notes),
        settings=settings.as_dict(),
        environment=environment_record(),
        seconds=round(time.monotonic() - started, 1),
    )


def _check_backend_name(backend: str | None) -> None:
    names = [each.name for each in BACKENDS]
    if backend is not None and backend not in names:
        raise UserError(
            f"--backend: expected one of {', '.join(names)}, got {backend[:60]!r}; without it each call has the one "
            "that suits it"
        )


def _runners(settings: Settings, costs: Sequence[Cost]) -> list[Runner]:
    """Every layout, each followed by the one that repeats, if its KV heads are shared."""
    runners = []
    for spec, cost in zip(settings.specs, costs, strict=True):
        runner = build_runner(spec, cost, settings.load, seed=settings.seed, backend=settings.backend)
        _check_possible(runner, settings)
        runners += [runner, repeating(runner)] if spec.grouped else [runner]
    return runners


@torch.inference_mode()
def _check_possible(runner: Runner, settings: Settings) -> None:
    """Refuse a backend that can't do this layout, or a dtype that nothing here multiplies, before the others run."""
    hidden = torch.ones(1, 2, runner.spec.width, dtype=getattr(torch, settings.load.dtype))
    try:
        runner.run(hidden)
        runner.run(hidden[:, :1])
    except ValueError as error:
        if settings.backend is None:
            raise
        reason = str(error).removeprefix(f"backend {settings.backend!r}: ").partition("; ")[0]
        raise UserError(
            f"--backend {settings.backend}: expected one that can do {runner.name}, but {reason}; leave --backend or "
            "that layout out"
        ) from error
    except RuntimeError as error:
        raise UserError(
            f"--dtype {settings.load.dtype}: expected one that this processor multiplies, but PyTorch says "
            f"{str(error).splitlines()[0]!r}; use float32"
        ) from error


def _checked(runners: Sequence[Runner], settings: Settings) -> list[_Contestant]:
    contestants, shortfalls = [], []
    for runner in runners:
        cache = runner.cache(settings.load)
        check = check_runner(runner, settings.load, settings.seed)
        contestants.append(_Contestant(runner, cache, cache.nbytes, check))
        told = [check_parameters(runner), check_bytes(runner, cache.nbytes)]
        if not check.agrees:
            told.append(
                f"{runner.name}: expected outputs within {check.allowed:.2g} of float64 over {check.tokens} tokens, "
                f"got {check.decoded:.2g} decoded with its cache and {check.prefilled:.2g} read at once; one of them "
                "is wrong, please report it"
            )
        shortfalls += [each for each in told if each is not None]
    if shortfalls:
        raise CheckFailed(shortfalls)
    return contestants


def _peaks(runners: Sequence[Runner], settings: Settings, progress: Progress) -> list[Peak] | str:
    """One process after another; where one fails, none of their numbers is told."""
    if not settings.memory:
        return "as was asked for"
    peaks = []
    for runner in runners:
        progress.stage(f"taking peak memory of {runner.name}")
        peak = measure_peak(
            runner.spec,
            settings.load,
            repeats=runner.repeats,
            backend=runner.backend,
            threads=torch.get_num_threads(),
            seed=settings.seed,
        )
        if isinstance(peak, str):
            return f"{runner.name}: {peak}"
        peaks.append(peak)
    return peaks


def _rows(
    contestants: Sequence[_Contestant],
    settings: Settings,
    times: tuple[PairedTimes, PairedTimes],
    device: Device | None,
    peaks: list[Peak] | str,
) -> list[Row]:
    first, load = contestants[0].runner.name, settings.load

    def latency(runner: Runner, paired: PairedTimes, tokens: int, least: float | None) -> Latency:
        own = Ratio.of(paired, runner.name, runner.spec.name) if runner.repeats else None
        return Latency(paired.seconds[runner.name], tokens, least, Ratio.of(paired, runner.name, first), own)

    rows = []
    for index, each in enumerate(contestants):
        cost = each.runner.cost
        bounds = (None, None) if device is None else (cost.least_prefill(device), cost.least_decode(device))
        rows.append(
            Row(
                each.runner.name,
                each.runner.spec,
                each.runner.repeats,
                cost,
                each.allocated,
                each.check,
                latency(each.runner, times[0], load.batch * load.context, bounds[0]),
                latency(each.runner, times[1], load.batch, bounds[1]),
                None if isinstance(peaks, str) else peaks[index],
            )
        )
    return rows
