"""`headwise convert`: let more query heads share a key and value head, and write the model."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["convert"]

_COUNTS = {"kv_heads": "KV heads", "parameters": "parameters"}


def convert(
    model: Annotated[str, typer.Argument(help="A local folder, a hub id, a .gguf file, or demo.", metavar="MODEL")],
    out: Annotated[
        Path, typer.Option("--out", help="The folder to write; one with content is refused without --overwrite.")
    ],
    kv_heads: Annotated[
        int | None, typer.Option("--kv-heads", help="KV heads of each layer, a divisor of what it has.", metavar="N")
    ] = None,
    mla: Annotated[
        str | None,
        typer.Option(
            "--mla",
            help="Latent attention instead: no stock format, and for load_latent in Python alone. The other commands "
            "don't read it.",
            metavar="RANK+ROPE",
        ),
    ] = None,
    method: Annotated[
        str, typer.Option("--method", help="pca (best), aligned, or the baselines mean and first.")
    ] = "pca",
    grouping: Annotated[
        str | None, typer.Option("--grouping", help="chosen (those that lose least together) or adjacent.")
    ] = None,
    no_refit: Annotated[
        bool, typer.Option("--no-refit", help="Leave output projections unfitted, which pca and aligned fit.")
    ] = False,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Of fitting each layer alone; 100 for pca, 0 for the others.")
    ] = None,
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
        int, typer.Option("--tokens", min=1, help="Of calibration; a quarter as many held-out ones are judged by.")
    ] = 32_768,
    copies: Annotated[
        float,
        typer.Option(
            "--copies", min=0, max=0.9, help="Share of random tokens that repeat, beside the text: keeps copying."
        ),
    ] = 0.2,
    length: Annotated[int, typer.Option("--length", min=16, help="Tokens of each row.")] = 256,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same model.")] = 0,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads for torch.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model of that name.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Convert to fewer KV heads: MHA to GQA to MQA, for a cache that is as much smaller.

    Keys are merged in the space where position lets them: a complex factor for each rotary pair; values by the best
    factor of low rank. Then each layer is fitted to what the original gives, on text. What remains to be made up,
    headwise uptrain makes up; headwise verify says how much that is.

    [bold]Examples[/bold]

    headwise convert demo --kv-heads 1 --out ./mqa

    headwise convert ./my-model --kv-heads 4 --documents texts/ --out ./gqa-4

    headwise convert demo --kv-heads 1 --method mean --out ./mean-pooled

    headwise convert demo --mla 192+64 --out ./latent
    """
    started = time.monotonic()
    from headwise.cli.convert_run import Request, run_conversion
    from headwise.cli.start import prepare

    request = Request(
        model=model, out=out, kv_heads=kv_heads, mla=mla, method=method, grouping=grouping,
        refit=False if no_refit else None, steps=steps,
        format=format, documents=documents, tokens=tokens, copies=copies, length=length, seed=seed, overwrite=overwrite,
    )  # fmt: skip
    prepare(threads)
    record = run_conversion(request) | {"seconds": round(time.monotonic() - started, 1)}
    if as_json:
        typer.echo(json.dumps(record, allow_nan=False))
    else:
        _show(record)


def _show(record: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape

    from headwise.cli.reshaping import totals_table

    console = Console()
    if any("merged" in layer for layer in record["layers"]):
        console.print(_layers(record))
    counts = [(words, record[name]) for name, words in _COUNTS.items() if name in record]
    cache = record["cache_bytes_per_token"], record["cache_dtype"]
    console.print(totals_table(counts, cache, record["loss"]))
    for note in record["notes"]:
        console.print(f"note: {escape(note)}")
    console.print(f"{record['seconds']:.0f} s")
    # Not through rich, which would fold a long path.
    typer.echo(f"model: {record['folder']} (format {record['format']})")


def _layers(record: dict[str, Any]) -> Any:
    """How much of each layer's output is wrong after each stage."""
    from rich.table import Table

    stages = [name for name in ("merged", "refitted", "fitted") if any(name in layer for layer in record["layers"])]
    title = f"{record['model']}: squared error of each layer's output, as a share of it, on rows that were not fitted"
    table = Table(title=title, title_justify="left")
    table.add_column("layer", justify="right")
    table.add_column("groups")
    for name in stages:
        table.add_column(name, justify="right")
    for number, layer in enumerate(record["layers"]):
        groups = " ".join("+".join(map(str, group)) for group in layer["groups"])
        table.add_row(str(number), groups, *(f"{layer[name]:.3f}" if name in layer else "–" for name in stages))
    return table
