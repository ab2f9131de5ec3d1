"""`headwise experiment`: questions about heads that small models answer in minutes, from many seeds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headwise.bench.experiments.run import Result

__all__ = ["experiment"]


def experiment(
    name: Annotated[
        str | None, typer.Argument(help="Which experiment; without it they are listed.", metavar="NAME")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The folder to write; one with content is refused without --overwrite."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The first seed; the same seed gives the same run.")] = 0,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", help="How many; under 10 intervals say little, under 2 nothing.")
    ] = 10,
    threads: Annotated[
        int, typer.Option("--threads", min=1, help="Threads for torch; models as small as these hardly gain by more.")
    ] = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an experiment of that name.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Train small models from many seeds, and say with intervals what differs and what does not follow.

    Each takes a few minutes. With --out the folder holds runs.jsonl, summary.json, figure.png and manifest.json;
    interrupted, the same command goes on where it stopped, to the same numbers. Without --out the table is all.

    [bold]Examples[/bold]

    headwise experiment

    headwise experiment heads

    headwise experiment induction --out ./induction --seeds 20

    headwise experiment heads --seed 100 --json > result.json
    """
    if name is None:
        _list(as_json)
        return
    from headwise.bench.experiments import check_name, check_seeds

    check_name(name)  # all of this is told before torch is loaded
    check_seeds(range(seeds))
    partial = None if out is None else _partial(out, overwrite)
    try:
        result = _run(name, range(seed, seed + seeds), threads, partial, overwrite)
    except KeyboardInterrupt:
        if partial is not None and partial.exists():
            typer.echo(f"what is finished is kept in {partial}; the same command goes on from there", err=True)
        raise
    if out is not None and partial is not None:
        _write(result, out, partial)
    _tell(result, out, as_json)


def _list(as_json: bool) -> None:
    """What there is to run."""
    from headwise.bench.experiments import EXPERIMENTS

    if as_json:
        typer.echo(json.dumps({"experiments": EXPERIMENTS}))
        return
    width = max(map(len, EXPERIMENTS))
    for name, line in EXPERIMENTS.items():
        typer.echo(f"{name:<{width}}  {line}")
    typer.echo("\nRun one: headwise experiment NAME [--out DIR]")


def _partial(out: Path, overwrite: bool) -> Path:
    """Where a half-finished experiment lies; an ``out`` that can't be written is refused before any work."""
    from headwise.folders import check_free

    check_free(out, overwrite, kind="result of an experiment", marker="runs.jsonl")
    return out.with_name(out.name + ".partial")


def _run(name: str, seeds: range, threads: int, partial: Path | None, overwrite: bool) -> Result:
    from headwise.cli.start import prepare

    prepare(threads)
    from headwise.bench.experiments import load_experiment
    from headwise.bench.experiments.run import run_experiment
    from headwise.cli.progress import Bar

    with Bar() as bar:
        return run_experiment(load_experiment(name), seeds=seeds, partial=partial, overwrite=overwrite, progress=bar)


def _write(result: Result, out: Path, partial: Path) -> None:
    """Everything beside, among the runs that are needed until then; renamed when it is whole."""
    from headwise.report.experiment_figure import draw_experiment

    folder = partial / "result"
    shutil.rmtree(folder, ignore_errors=True)  # half-written by an earlier attempt
    folder.mkdir()
    lines = "".join(json.dumps(run, allow_nan=False) + "\n" for run in result.runs)
    (folder / "runs.jsonl").write_text(lines, encoding="utf-8")
    for file, record in (("summary.json", result.record()), ("manifest.json", result.manifest())):
        text = json.dumps(record, indent=2, allow_nan=False, ensure_ascii=False)
        (folder / file).write_text(text + "\n", encoding="utf-8")
    draw_experiment(result, folder / "figure.png")
    if out.exists():
        shutil.rmtree(out)
    folder.rename(out)
    shutil.rmtree(partial)


def _tell(result: Result, out: Path | None, as_json: bool) -> None:
    if as_json:
        record = result.record() | {"manifest": result.manifest(), "folder": None if out is None else str(out)}
        typer.echo(json.dumps(record, allow_nan=False))
        return
    from headwise.cli.experiment_tables import show_experiment

    show_experiment(result)
    if out is not None:
        typer.echo(f"written: {out}")
