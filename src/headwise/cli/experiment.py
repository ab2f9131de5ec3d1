"""`headwise experiment`: questions about heads that small models answer in minutes, from many seeds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
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
        typer.Option(
            "--out", help="The folder to write; one with content is refused without --overwrite, or more --seeds."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="The first seed, else 0; the same seed gives the same run.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", metavar="N", help="How many, 2 to 1,000, else 10; under 10 intervals say little."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", min=1, help="Threads for torch, else 1; models as small as these hardly gain by more."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an experiment of that name.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Train small models from many seeds, and say with intervals what differs and what does not follow.

    Each takes a few minutes. With --out the folder holds runs.jsonl, summary.json, figure.png and manifest.json;
    interrupted, the same command goes on where it stopped, to the same numbers, and with more --seeds it goes on from a
    finished folder. Without --out the table is all.

    [bold]Examples[/bold]

    headwise experiment

    headwise experiment heads

    headwise experiment induction --out ./induction --seeds 20

    headwise experiment heads --seed 100 --json > result.json
    """
    if name is None:
        _refuse(
            {"--out": out, "--seed": seed, "--seeds": seeds, "--threads": threads, "--overwrite": overwrite or None}
        )
        _list(as_json)
        return
    from headwise.bench.experiments import ENOUGH_SEEDS, check_name, check_seed_count
    from headwise.errors import UserError

    check_name(name)  # all of this is told before torch is loaded
    first, count = seed or 0, ENOUGH_SEEDS if seeds is None else seeds
    check_seed_count(count)
    if out is None and overwrite:
        raise UserError("--overwrite: expected --out with it, the folder to replace; name it, or leave this out")
    partial, start = (None, None) if out is None else _places(out, overwrite)
    try:
        result = _run(name, range(first, first + count), threads or 1, (partial, start), overwrite)
    except KeyboardInterrupt:
        if partial is not None and partial.exists():
            typer.echo(f"what is finished is kept in {partial}; the same command goes on from there", err=True)
        raise
    if out is not None and partial is not None:
        _write(result, out, partial)
    _tell(result, out, as_json)


def _refuse(options: Mapping[str, object]) -> None:
    """What says how to run is of no use to the list; None stands for an option that was not given."""
    from headwise.bench.experiments import EXPERIMENTS
    from headwise.errors import UserError

    for option, value in options.items():
        if value is not None:
            raise UserError(
                f"{option}: expected NAME with it, the experiment to run; give one of {', '.join(EXPERIMENTS)}, or "
                "leave this out"
            )


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


def _places(out: Path, overwrite: bool) -> tuple[Path, Path | None]:
    """Where a half-finished experiment lies, and a finished one to start from; what can't be is refused at once."""
    from headwise.bench.experiments import FIGURE, MANIFEST, RUNS, SUMMARY
    from headwise.errors import UserError
    from headwise.folders import check_free, check_partial, partial_of

    check_free(out, True, kind="result of an experiment", marker=RUNS)
    partial = partial_of(out)
    check_partial(partial, kind="experiment")
    if overwrite or not (out / RUNS).is_file():
        return partial, None
    others = sorted({file.name for file in out.iterdir()} - {RUNS, SUMMARY, FIGURE, MANIFEST})
    if others:  # all of the folder is replaced
        raise UserError(
            f"{out}: exists already and holds more than an experiment writes ({_first(others)}), which would be lost; "
            "move that away, give another --out, or --overwrite to replace all of it"
        )
    return partial, out


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _run(name: str, seeds: range, threads: int, places: tuple[Path | None, Path | None], overwrite: bool) -> Result:
    from headwise.cli.start import prepare

    prepare(threads)
    from headwise.bench.experiments import load_experiment
    from headwise.bench.experiments.run import run_experiment
    from headwise.cli.progress import Bar

    partial, start = places
    with Bar() as bar:
        return run_experiment(
            load_experiment(name), seeds=seeds, partial=partial, start=start, overwrite=overwrite, progress=bar
        )


def _write(result: Result, out: Path, partial: Path) -> None:
    """Everything beside, among the runs that are needed until then; renamed when it is whole."""
    from headwise.bench.experiments import FIGURE, MANIFEST, RUNS, SUMMARY
    from headwise.folders import finish_partial
    from headwise.report.experiment_figure import draw_experiment

    folder = partial / "result"
    shutil.rmtree(folder, ignore_errors=True)  # half-written by an earlier attempt
    folder.mkdir()
    lines = "".join(json.dumps(run, allow_nan=False) + "\n" for run in result.runs)
    (folder / RUNS).write_text(lines, encoding="utf-8")
    for file, record in ((SUMMARY, result.record()), (MANIFEST, result.manifest())):
        text = json.dumps(record, indent=2, allow_nan=False, ensure_ascii=False)
        (folder / file).write_text(text + "\n", encoding="utf-8")
    draw_experiment(result, folder / FIGURE)
    finish_partial(partial, folder, out)


def _tell(result: Result, out: Path | None, as_json: bool) -> None:
    if as_json:
        record = result.record() | {"manifest": result.manifest(), "folder": None if out is None else str(out)}
        typer.echo(json.dumps(record, allow_nan=False))
        return
    from headwise.cli.experiment_tables import show_experiment

    show_experiment(result)
    if out is not None:
        typer.echo(f"written: {out}")
