"""`headwise prune`: remove heads from a model, write the smaller one, and say what it costs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headwise.cli.prune_run import Request, Result

__all__ = ["prune"]


def prune(
    model: Annotated[str, typer.Argument(help="A local folder, a hub id, a .gguf file, or demo.", metavar="MODEL")],
    out: Annotated[
        Path, typer.Option("--out", help="The folder to write; one with content is refused without --overwrite.")
    ],
    heads: Annotated[int | None, typer.Option("--heads", help="How many query heads to remove.", metavar="N")] = None,
    share: Annotated[
        float | None, typer.Option("--share", help="Which share of them; rounded down to what can go at once.")
    ] = None,
    unit: Annotated[
        str,
        typer.Option("--unit", help="What goes at once: a KV group with its query heads, or a head of every group."),
    ] = "group",
    score: Annotated[
        str,
        typer.Option("--score", help="The least goes: first-order, contribution, ablation (dear), magnitude, random."),
    ] = "first-order",
    uniform: Annotated[
        bool, typer.Option("--uniform", help="The same number from every layer, which stock formats need.")
    ] = False,
    no_compensate: Annotated[
        bool, typer.Option("--no-compensate", help="Leave the heads that stay as they are.")
    ] = False,
    curve: Annotated[
        bool, typer.Option("--curve", help="Also measure the loss against heads removed freely: curve.json, curve.png.")
    ] = False,
    format: Annotated[  # noqa: A002
        str | None,
        typer.Option("--format", help="stock, mistral, gpt_bigcode or headwise; without it the first that holds it."),
    ] = None,
    documents: Annotated[
        Path | None,
        typer.Option(
            "--documents", help="A text file, a folder of them, or JSONL with text; Python's help without it."
        ),
    ] = None,
    tokens: Annotated[
        int, typer.Option("--tokens", min=1, help="Of calibration; half as many held-out ones are judged by.")
    ] = 8_192,
    length: Annotated[int, typer.Option("--length", min=16, help="Tokens of each row.")] = 256,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same model.")] = 0,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads for torch.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model of that name.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Remove the heads that matter least, give their work to those that stay, and write the smaller model.

    Layers may lose different numbers of heads; then only headwise opens the result. With --uniform stock tools do,
    where the architecture's own format can say it (headwise inspect shows that).

    [bold]Examples[/bold]

    headwise prune demo --heads 27 --out ./smaller

    headwise prune demo --heads 90 --uniform --out ./smaller-stock

    headwise prune org/name --share 0.1 --unit head --score contribution --documents texts/ --curve --out ./smaller
    """
    started = time.monotonic()
    from headwise.cli.prune_run import Request, run_pruning
    from headwise.cli.start import prepare

    request = Request(
        model=model, out=out, heads=heads, share=share, unit=unit, score=score, uniform=uniform,
        compensate=not no_compensate, curve=curve, format=format, documents=documents, tokens=tokens, length=length,
        seed=seed, overwrite=overwrite,
    )  # fmt: skip
    prepare(threads)
    result = run_pruning(request)
    seconds = time.monotonic() - started
    if as_json:
        typer.echo(json.dumps(result.record | {"seconds": round(seconds, 1)}, allow_nan=False))
    else:
        _show(result, request, seconds)


def _show(result: Result, request: Request, seconds: float) -> None:
    from rich.console import Console
    from rich.markup import escape

    from headwise.cli.reshaping import totals_table

    record = result.record
    console = Console()
    console.print(_layers(record))
    kinds = {"query heads": "heads", "KV heads": "kv_heads", "parameters": "parameters"}
    counts = [(name, record[kind]) for name, kind in kinds.items()]
    counted = record["cache_bytes_per_token"]
    cache = None if counted is None else (counted, record["cache_dtype"])
    console.print(totals_table(counts, cache, record["loss"]))
    for note in record["notes"]:
        console.print(f"note: {escape(note)}")
    console.print(f"{seconds:.0f} s")
    # Not through rich, which would fold a long path.
    typer.echo(f"model: {request.out} (format {record['format']})")
    if request.curve:
        typer.echo(f"curve: {request.out / 'curve.png'}")


def _layers(record: dict[str, Any]) -> Any:
    """The layers that lost heads."""
    from rich.table import Table

    table = Table(title=f"{record['model']}: layers that lost heads", title_justify="left")
    for name in ("layer", "heads", "KV heads", "removed", "recovered"):
        table.add_column(name, justify="left" if name == "removed" else "right", no_wrap=name != "removed")
    for layer in record["layers"]:
        if layer["removed"]:
            recovered = "–" if layer["recovered"] is None else f"{layer['recovered']:.0%}"
            numbers = ", ".join(map(str, layer["removed"]))
            table.add_row(str(layer["layer"]), _change(layer["heads"]), _change(layer["kv_heads"]), numbers, recovered)
    return table


def _change(pair: list[int]) -> str:
    before, after = pair
    return f"{before} → {after}" if before != after else str(before)
