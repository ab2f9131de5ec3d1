"""Running an experiment: every condition at every seed, each run kept when it is done.

A run depends on its condition, its seed and the settings alone, so one that was kept is not run again, and a killed
experiment ends with the numbers that it would have had.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from headwise.bench.environment import environment_record, package_versions
from headwise.bench.experiments import ENOUGH_SEEDS, MANIFEST, RUNS, check_seeds
from headwise.bench.experiments.experiment import Experiment, Finding, Numbers
from headwise.bench.experiments.summary import Summary, summarise
from headwise.errors import UserError
from headwise.folders import claim_partial, write_atomically
from headwise.progress import Progress, Silent

__all__ = ["Result", "run_experiment"]

_LEAST_TO_SHOW = 6  # 2 ** -5 is the first two-sided p-value below 5 %


@dataclass(frozen=True)
class Result:
    """An experiment that was run.

    Attributes:
        experiment: what was run.
        settings: with these sizes.
        runs: one for each condition and seed, ``{"condition", "seed", "seconds", "numbers"}``, seed by seed.
        summary: rows, differences, curves.
        findings: sentences.
        notes: what a reader must know of this result.
        request: all that decided the numbers beside condition and seed.
        environment: see :func:`headwise.bench.environment_record`.
        seconds: that all runs took, those of an earlier attempt included.
    """

    experiment: Experiment
    settings: Any
    runs: tuple[dict[str, Any], ...]
    summary: Summary
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    request: dict[str, Any]
    environment: dict[str, Any]
    seconds: float

    def record(self) -> dict[str, Any]:
        """All but the runs, as JSON holds it."""
        experiment = self.experiment
        return {
            "experiment": experiment.name,
            "question": experiment.question,
            "task": experiment.task,
            "held_out": experiment.held_out,
            "conditions": list(experiment.conditions),
            **self.summary.record(),
            "findings": [vars(each) for each in self.findings],
            "notes": list(self.notes),
        }

    def manifest(self) -> dict[str, Any]:
        """With what, where and how long."""
        return {
            **self.request,
            "seeds": list(self.summary.seeds),
            "environment": self.environment,
            "seconds": self.seconds,
        }


def run_experiment(
    experiment: Experiment,
    *,
    seeds: Sequence[int] = tuple(range(ENOUGH_SEEDS)),
    settings: Any = None,
    partial: Path | None = None,
    start: Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Run what is not kept yet, and sum up.

    Args:
        experiment: from :func:`headwise.bench.experiments.load_experiment`.
        seeds: two to a thousand; the same seed gives the same run.
        settings: other sizes than ``experiment.settings``.
        partial: a folder that keeps each run when it is done; None keeps nothing.
        start: a finished folder of the same experiment from fewer seeds, whose runs are not run again.
        overwrite: drop what another request (settings, versions, number of threads) has left in ``partial``.
        progress: is told what goes on; one unit is one run of cost 1.

    Raises:
        UserError: fewer than two seeds or more than a thousand, a ``partial`` of another request that is not to be
            overwritten or of something else, or a ``start`` of another request or with other seeds.
    """
    check_seeds(seeds)
    settings, progress = settings or experiment.settings, progress or Silent()
    seeds, request = sorted(set(seeds)), _request(experiment, settings)
    earlier = [] if start is None else _finished_runs(start, request, seeds)
    if partial is not None:
        claim_partial(partial, request, overwrite, kind="experiment")
        (partial / "runs").mkdir(exist_ok=True)
    runs = _all_runs(experiment, seeds, settings, partial, earlier, progress)
    summary = summarise(experiment, runs, settings)
    return Result(
        experiment=experiment,
        settings=settings,
        runs=tuple(runs),
        summary=summary,
        findings=tuple(experiment.findings(summary)),
        notes=tuple(_notes(summary)),
        request=request,
        environment=environment_record(),
        seconds=round(sum(run["seconds"] for run in runs), 1),
    )


def _request(experiment: Experiment, settings: Any) -> dict[str, Any]:
    """All that decides the numbers of a run beside condition and seed: more seeds may be asked for later."""
    versions = package_versions()
    return {
        "experiment": experiment.name,
        "settings": asdict(settings),
        "inputs": dict(experiment.inputs()),
        "threads": torch.get_num_threads(),  # sums in another order differ in their last bits
        "versions": {name: versions[name] for name in ("headwise", "torch")},
        "code": _code_digest(),
    }


def _code_digest() -> str:
    """Of the files of this folder: runs of an experiment that was changed meanwhile are not mixed with new ones."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _finished_runs(folder: Path, request: dict[str, Any], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Those of a finished folder that differs from what is asked for in nothing but that it has fewer seeds."""
    manifest, runs = _read_finished(folder)
    wanted = json.loads(json.dumps(request))  # tuples are lists in JSON
    differing = sorted(name for name in wanted if manifest.get(name) != wanted[name])
    kept = {run["seed"] for run in runs}
    if not kept <= set(seeds):
        differing.append("seeds, of which it has others")
    if differing:
        raise UserError(
            f"{folder}: exists already, and differs from what is asked for ({', '.join(differing)}), so that nothing "
            "can go on from it; give another --out, or --overwrite to replace it"
        )
    if kept == set(seeds):
        raise UserError(
            f"{folder}: exists already, with these {len(kept)} seeds; give more --seeds to go on from it, another "
            "--out, or --overwrite to replace it"
        )
    return runs


def _read_finished(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Manifest and runs."""
    try:
        manifest = dict(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
        lines = (folder / RUNS).read_text(encoding="utf-8").splitlines()
        runs: list[dict[str, Any]] = [json.loads(line) for line in lines]
        whole = all({"condition", "seed", "seconds", "numbers"} <= run.keys() for run in runs)
    except (OSError, ValueError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise UserError(
            f"{folder}: exists already, and its {MANIFEST} and {RUNS} cannot be read, so that nothing can go on from "
            "them; give another --out, or --overwrite to replace it"
        )
    return manifest, runs


def _all_runs(
    experiment: Experiment,
    seeds: Sequence[int],
    settings: Any,
    partial: Path | None,
    earlier: Sequence[dict[str, Any]],
    progress: Progress,
) -> list[dict[str, Any]]:
    places = [(condition, seed) for seed in seeds for condition in experiment.conditions]
    kept = {(each["condition"], each["seed"]): each for each in earlier}
    for each in earlier:  # what they come from is replaced in the end, so they are kept here like any
        _keep(partial, each)
    kept |= {place: run for place in places if (run := _read(partial, *place)) is not None}
    progress.plan(sum(experiment.cost(condition) for condition, seed in places if (condition, seed) not in kept))
    if kept:
        progress.stage(f"going on after {len(kept)} of {len(places)} runs")
    runs = []
    for condition, seed in places:
        run = kept.get((condition, seed))
        if run is None:
            progress.stage(f"seed {seed}, {condition}")
            run = _one_run(experiment, condition, seed, settings)
            _keep(partial, run)
            progress.advance(experiment.cost(condition))
        runs.append(run)
    return runs


def _one_run(experiment: Experiment, condition: str, seed: int, settings: Any) -> dict[str, Any]:
    started = time.perf_counter()
    numbers = experiment.run(condition, seed, settings)
    return {
        "condition": condition,
        "seed": seed,
        "seconds": round(time.perf_counter() - started, 3),
        "numbers": _plain(numbers),
    }


def _plain(numbers: Numbers) -> dict[str, Any]:
    """As JSON holds them: None where a loss isn't finite."""

    def plain(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [plain(each) for each in value]
        return None if value is None or not math.isfinite(value) else float(value)

    return {name: plain(value) for name, value in numbers.items()}


def _file(partial: Path, condition: str, seed: int) -> Path:
    """Conditions are told by their digest: their names hold what file names can't."""
    return partial / "runs" / f"{seed}-{hashlib.sha256(condition.encode()).hexdigest()[:12]}.json"


def _read(partial: Path | None, condition: str, seed: int) -> dict[str, Any] | None:
    if partial is None or not (file := _file(partial, condition, seed)).is_file():
        return None
    run: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return run


def _keep(partial: Path | None, run: dict[str, Any]) -> None:
    if partial is not None:
        content = json.dumps(run, allow_nan=False).encode()
        write_atomically(_file(partial, run["condition"], run["seed"]), content)


def _notes(summary: Summary) -> list[str]:
    count = len(summary.seeds)
    notes = []
    if count < ENOUGH_SEEDS:
        notes.append(
            f"{count} seeds: intervals are wide and, over so few, cover less than they say; "
            f"{ENOUGH_SEEDS} seeds are the least to conclude from"
        )
    if count < _LEAST_TO_SHOW:
        notes.append(f"no difference can be called shown with fewer than {_LEAST_TO_SHOW} seeds")
    missing = [f"{row.condition}, {row.title}: {row.n} of {count}" for row in summary.rows if row.n < count]
    if missing:
        notes.append(f"seeds that have a value: {'; '.join(missing)}")
    return notes
