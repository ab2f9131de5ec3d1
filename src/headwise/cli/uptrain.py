"""`headwise uptrain`: short training of a reshaped model against the one that it was made from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headwise.surgery.training.settings import Settings
    from headwise.surgery.uptrain import Uptrained

__all__ = ["uptrain"]

_MODEL = "A local folder, a hub id, a .gguf file, or demo"


def uptrain(
    student: Annotated[str, typer.Argument(help=f"The reshaped model. {_MODEL}.", metavar="STUDENT")],
    teacher: Annotated[str, typer.Option("--teacher", metavar="MODEL", help="The model that it was made from.")],
    tokens: Annotated[int, typer.Option("--tokens", help="To train on; rounded up to whole batches.")],
    out: Annotated[
        Path, typer.Option("--out", help="The folder to write; one with content is refused without --overwrite.")
    ],
    params: Annotated[str, typer.Option("--params", help="Weights to train: attention or all.")] = "attention",
    loss: Annotated[
        str, typer.Option("--loss", help="kl: be like the teacher; ce: tell the next token of the text.")
    ] = "kl",
    rate: Annotated[
        float | None,
        typer.Option("--rate", help="The highest learning rate; without it 2e-4, less for under 4,000 tokens."),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", help="Rows in a step, over all processes.")] = 8,
    length: Annotated[int, typer.Option("--length", help="Tokens of each row.")] = 256,
    at_once: Annotated[
        int, typer.Option("--at-once", help="Rows of a batch that pass through the model together: memory for speed.")
    ] = 2,
    precision: Annotated[
        str, typer.Option("--precision", help="float32, or bfloat16 for products of matrices.")
    ] = "float32",
    documents: Annotated[
        Path | None,
        typer.Option(
            "--documents", help="A text file, a folder of them, or JSONL with text; Python's help without it."
        ),
    ] = None,
    held_out: Annotated[int, typer.Option("--held-out", help="Held-out rows that the curve is measured on.")] = 16,
    points: Annotated[int, typer.Option("--points", help="How many times it is measured after the start.")] = 4,
    control: Annotated[
        bool, typer.Option("--control", help="Also train the original on the same text, to see what that brings.")
    ] = False,
    engine: Annotated[
        str | None, typer.Option("--engine", help="Under torchrun: ddp (without this option) or fsdp.")
    ] = None,
    save_every: Annotated[int, typer.Option("--save-every", help="Steps between two saved states.")] = 10,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same model.")] = 0,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads for torch.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model of that name.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Train a reshaped model shortly against the original, and show on held-out documents what that brings.

    Interrupted, the same command goes on where it stopped, to the same numbers. The folder opens like any model;
    uptrain.json and uptrain.png in it hold the curve. Under torchrun several processes split every batch.

    [bold]Examples[/bold]

    headwise uptrain ./smaller --teacher demo --tokens 100000 --out ./trained

    headwise uptrain ./smaller --teacher org/name --tokens 1000000 --params all --documents texts/ --control --out new

    torchrun --nproc-per-node 8 -m headwise.cli.main uptrain ./smaller --teacher org/name --tokens 10000000 --out new
    """
    from headwise.cli.start import prepare
    from headwise.surgery.training.settings import Settings

    settings = Settings(
        tokens=tokens, params=params, loss=loss, rate=rate, batch=batch, length=length, at_once=at_once,
        precision=precision, held_out=held_out, points=points, save_every=save_every, seed=seed,
    )  # fmt: skip
    prepare(threads)
    partial = _partial(out, overwrite)
    try:
        result = _run((student, teacher), partial, documents, settings, (control, engine, overwrite))
    except KeyboardInterrupt:
        if partial.exists() and _first():
            typer.echo(f"what is finished is kept in {partial}; the same command goes on from there", err=True)
        raise
    if not _first():
        return
    _write(result, out, partial)
    if as_json:
        typer.echo(json.dumps(_summary(result) | {"folder": str(out)}, allow_nan=False))
    else:
        _show(result, out)


def _partial(out: Path, overwrite: bool) -> Path:
    """Where a half-finished training lies; what can't be written is refused before any work."""
    from headwise.folders import check_free, check_partial, partial_of
    from headwise.models.history import MANIFEST

    check_free(out, overwrite, kind="model", marker=MANIFEST)
    partial = partial_of(out)
    check_partial(partial, kind="training")
    return partial


def _first() -> bool:
    """Whether this process writes and prints; ``torchrun`` numbers those that it starts, and so do others."""
    from headwise.surgery.training.ranks import launched

    return not launched() or os.environ.get("RANK", "0") == "0"


def _run(
    models: tuple[str, str],
    partial: Path,
    documents: Path | None,
    settings: Settings,
    options: tuple[bool, str | None, bool],
) -> Uptrained:
    from contextlib import nullcontext

    from headwise.cli.documents import tell_left_out
    from headwise.cli.progress import Bar
    from headwise.models import load
    from headwise.models.corpus import read_corpus
    from headwise.progress import Silent
    from headwise.surgery.export import check_exportable
    from headwise.surgery.uptrain import uptrain

    control, engine, overwrite = options
    corpus = read_corpus(documents)  # refused, if it must be, before the models are loaded
    if _first():
        tell_left_out(corpus, documents)
    with Bar() if _first() else nullcontext(Silent()) as bar:
        bar.stage(f"loading {' and '.join(models)}")
        student, teacher = map(load, models)
        check_exportable(student, [(layout.num_heads, layout.num_kv_heads) for layout in student.layouts])
        return uptrain(
            student, teacher, corpus, control=control, engine=engine, partial=partial, overwrite=overwrite,
            progress=bar, **vars(settings),
        )  # fmt: skip


def _write(result: Uptrained, out: Path, partial: Path) -> None:
    """Everything beside, among the states that are needed until then; renamed when it is whole."""
    from headwise.folders import finish_partial, write_atomically
    from headwise.report.uptrain_figure import draw_training
    from headwise.surgery.export import export

    folder = export(result.checkpoint, partial / "model", overwrite=True, dtype=result.checkpoint.stored_dtype)
    record = json.dumps(result.record, indent=2, allow_nan=False, ensure_ascii=False)
    write_atomically(folder / "uptrain.json", record.encode())
    draw_training(result.record, folder / "uptrain.png")
    finish_partial(partial, folder, out)


def _summary(result: Uptrained) -> dict[str, Any]:
    """The record without what goes by document or step."""
    left_out = ("curve", "steps", "control")
    told = {name: value for name, value in result.record.items() if name not in left_out}
    told["curve"] = _means(result.record["curve"])
    if "control" in result.record:
        control = result.record["control"]
        told["control"] = {name: value for name, value in control.items() if name not in left_out}
        told["control"]["curve"] = _means(control["curve"])
    return told


def _means(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = ("step", "tokens", "loss", "divergence")
    return [{name: point[name] for name in kept if name in point} for point in curve]


def _show(result: Uptrained, out: Path) -> None:
    """Losses before and after as a table, and under it the share of the gap."""
    from rich.console import Console
    from rich.markup import escape

    record = result.record
    console = Console()
    console.print(_table(record))
    share = record["share_closed"]
    if share["value"] is not None:  # otherwise a note says why
        interval = "" if share["low"] is None else f" ({share['low']:.0%} to {share['high']:.0%})"
        console.print(f"Gap to the teacher closed: {share['value']:.0%}{interval}")
    for note in record["notes"]:
        console.print(f"note: {escape(note)}")
    console.print(
        f"{record['tokens']:,} tokens, {record['seconds']:.0f} s, {record['tokens_per_second']:.0f} tokens/s while "
        "training"
    )
    # Not through rich, which would fold a long path.
    typer.echo(f"model: {out}\nfigure: {out / 'uptrain.png'}")


def _table(record: dict[str, Any]) -> Any:
    from rich.table import Table

    count = len(record["held_out"])
    title = f"On {count} held-out document{'s' * (count != 1)}, nats per token"
    table = Table(title=title, title_justify="left")
    for name in ("model", "loss", "95 %", "from the teacher"):
        # Numbers are not split where the terminal is narrow.
        table.add_column(name, justify="left" if name in ("model", "95 %") else "right", no_wrap=name != "model")
    losses, divergences = record["loss"], record["divergence"]
    table.add_row("student before", *_cells(losses["start"]), f"{divergences['start']['value']:.3f}")
    table.add_row("student after", *_cells(losses["end"]), f"{divergences['end']['value']:.3f}")
    table.add_row("teacher", *_cells(losses["teacher"]), "0")
    if "control" in record:
        table.add_row("teacher, trained alike", *_cells(record["control"]["loss"]["end"]), "–")
    return table


def _cells(told: dict[str, float | None]) -> tuple[str, str]:
    interval = "–" if told["low"] is None else f"{told['low']:.3f} to {told['high']:.3f}"
    return f"{told['value']:.3f}", interval
