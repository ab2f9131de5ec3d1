"""`headwise bench`: one attention layer under several head layouts, side by side, counted and measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headwise.bench.layouts.result import LayoutComparison
    from headwise.bench.layouts.settings import Settings

__all__ = ["bench"]

_WIDTH, _HEADS = 512, 8


def bench(
    layouts: Annotated[
        str | None,
        typer.Option(
            "--layouts",
            metavar="LAYOUT,...",
            help="mha, gqa:KVHEADS, mqa, mla:RANK+ROPE, window:KEYS, mixed:LOCALHEADS@KEYS; mha/16 has 16 query heads. "
            "The first is what others are compared with. Without it: mha, groups of 2 and 4, mqa.",
        ),
    ] = None,
    width: Annotated[int | None, typer.Option("--width", help="Elements of a token in the model; 512.")] = None,
    heads: Annotated[int | None, typer.Option("--heads", help="Query heads; 8.")] = None,
    like: Annotated[
        str | None,
        typer.Option(
            "--like",
            metavar="MODEL",
            help="Take both, and the first layout, from a folder, config.json, hub id or demo.",
        ),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", help="Sequences at once.")] = 1,
    context: Annotated[
        str, typer.Option("--context", metavar="TOKENS", help="Of each sequence: 2048, or 8k (x 1,024).")
    ] = "2k",
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")] = "float32",
    backend: Annotated[
        str | None, typer.Option("--backend", help="native, sdpa or math; each call has its own without it.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", help="How many times each layout is timed, 5 or more.")] = 15,
    no_memory: Annotated[
        bool, typer.Option("--no-memory", help="Leave peak memory out, for which a process is started each time.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of weights and activations.")] = 0,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads for torch.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="A folder for bench.json, bench.csv, bench.png and manifest.json.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace that folder.")] = False,
) -> None:
    """Put head layouts side by side: parameters, cache, FLOPs, latency, peak memory, and what these don't show.

    One attention layer with random weights is measured, at one batch, context and dtype; layouts take turns, and what
    counts is the ratio of two times of one round. Where query heads share KV heads, a plain implementation that repeats
    them runs beside. Exits with 1 if a cache has other bytes than planned, or decodes another thing than reading all at
    once gives.

    [bold]Examples[/bold]

    headwise bench

    headwise bench --layouts mha/4,mha/8,mha/16,mha/32 --width 512

    headwise bench --layouts mha,gqa:2,mla:64+16,window:512,mixed:4@512 --batch 4 --context 4k --dtype bfloat16

    headwise bench --like demo --context 8k --out layouts --json > layouts.json
    """
    settings = _settings(
        layouts, (width, heads, like), (batch, context, dtype), backend=backend, rounds=rounds, seed=seed,
        memory=not no_memory,
    )  # fmt: skip
    if out is not None:
        from headwise.folders import check_free

        check_free(out, overwrite, kind="comparison of layouts", marker="bench.json")
    elif overwrite:
        from headwise.errors import UserError

        raise UserError("--overwrite: expected --out with it, the folder to replace; name it, or leave this out")
    result = _run(settings, threads)
    if as_json:
        typer.echo(json.dumps(result.record(), allow_nan=False))
    else:
        from headwise.cli.bench_tables import show_layouts

        show_layouts(result)
    if out is not None:
        _write(result, out)
        typer.echo(f"written: {out}", err=True)


def _settings(
    layouts: str | None,
    sizes: tuple[int | None, int | None, str | None],
    load: tuple[int, str, str],
    **others: Any,
) -> Settings:
    """Everything that can be wrong without torch is told before torch is loaded."""
    from headwise.bench.layouts.costs import Load
    from headwise.bench.layouts.settings import Settings
    from headwise.bench.layouts.specs import Shape, default_layouts, parse_layouts
    from headwise.errors import UserError
    from headwise.plan.units import parse_tokens

    (width, heads, like), (batch, context, dtype) = sizes, load
    words = layouts
    notes: list[str] = []
    if like is None:
        shape = Shape.divided(_WIDTH if width is None else width, _HEADS if heads is None else heads)
        words = default_layouts(shape.heads) if words is None else words
    else:
        from headwise.bench.layouts.like import shape_like

        if width is not None or heads is not None:
            raise UserError(f"--like {like}: expected no --width and --heads, which it tells itself; leave them out")
        shape, own, notes = shape_like(like)
        more = default_layouts(shape.heads).split(",") if words is None else words.split(",")
        words = ",".join([own, *(word for word in more if word.strip().lower() != own)])
    return Settings(
        parse_layouts(words, shape),
        Load(batch, parse_tokens(context, "--context"), dtype),
        like=like,
        notes=tuple(notes),
        **others,
    )


def _run(settings: Settings, threads: int | None) -> LayoutComparison:
    import torch

    from headwise.bench.layouts.run import CheckFailed, compare_layouts
    from headwise.cli.progress import Bar

    if threads is not None:
        torch.set_num_threads(threads)
    try:
        with Bar() as bar:
            return compare_layouts(settings, progress=bar)
    except CheckFailed as failed:
        for shortfall in failed.shortfalls:
            typer.echo(f"fell short: {shortfall}", err=True)
        raise typer.Exit(1) from None


def _write(result: LayoutComparison, out: Path) -> None:
    from headwise.folders import written_beside
    from headwise.report.bench_figure import draw_layouts

    record = result.record()
    manifest = {
        "kind": "bench",
        "settings": result.settings,
        "environment": result.environment,
        "device": record["device"],
        "notes": record["notes"],
        "seconds": result.seconds,
    }
    with written_beside(out) as folder:
        for name, content in (("bench.json", record), ("manifest.json", manifest)):
            text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)
            (folder / name).write_text(text + "\n", encoding="utf-8")
        (folder / "bench.csv").write_text(result.csv(), encoding="utf-8")
        draw_layouts(result, folder / "bench.png")
