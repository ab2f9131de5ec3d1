"""`headwise study`: read every head of a model, and write a folder with tables and a page."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headwise.study import Settings, Study

__all__ = ["study"]


def study(
    model: Annotated[
        str, typer.Argument(help="A local folder, a hub id, a .gguf file, or demo.", metavar="MODEL")
    ] = "demo",
    out: Annotated[
        Path, typer.Option("--out", help="The folder to write; one with content is refused without --overwrite.")
    ] = Path("study"),
    documents: Annotated[
        Path | None,
        typer.Option(
            "--documents", help="A text file, a folder of them, or JSONL with text; Python's help without it."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same study.")] = 0,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads for torch.")] = None,
    count: Annotated[int, typer.Option("--count", min=2, help="Documents on which heads are scored.")] = 24,
    length: Annotated[int, typer.Option("--length", min=16, help="Tokens of each document, at most.")] = 256,
    null_draws: Annotated[
        int | None,
        typer.Option("--null-draws", min=1, help="Models with random weights; enough for the model without it."),
    ] = None,
    margin: Annotated[
        float,
        typer.Option("--margin", min=0, max=0.99, help="Least distance of a finding from chance, in attention mass."),
    ] = 0.05,
    leaders: Annotated[
        int, typer.Option("--leaders", min=1, help="Heads of each score that are ablated together.")
    ] = 6,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a study of that name.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Read every head of a model: what it attends to, whether that is more than chance, and what breaks without it.

    Interrupted, the same command goes on where it stopped. The folder holds report.html, which needs no network.

    [bold]Examples[/bold]

    headwise study

    headwise study ./my-model --documents texts/ --out my-study

    headwise study org/name --json > findings.json
    """
    started = time.monotonic()
    from headwise.cli.start import prepare

    prepare(threads)
    from headwise.study import Settings

    settings = Settings(
        seed=seed,
        documents=count,
        length=length,
        null_draws=null_draws,
        leaders=leaders,
        singles=min(3, leaders),
        margin=margin,
    )
    try:
        result = _run(model, out, documents, settings, overwrite)
    except KeyboardInterrupt:
        from headwise.folders import partial_of

        partial = partial_of(out)
        if partial.exists():
            typer.echo(f"what is finished is kept in {partial}; the same command goes on from there", err=True)
        raise
    if as_json:
        from headwise.study.run import peak_bytes

        totals = {"seconds": round(time.monotonic() - started, 1), "peak_bytes": peak_bytes()}
        typer.echo(json.dumps(result.summary() | totals, allow_nan=False))
    else:
        _show(result, time.monotonic() - started)


def _run(model: str, out: Path, documents: Path | None, settings: Settings, overwrite: bool) -> Study:
    from headwise.cli.documents import tell_identical
    from headwise.cli.progress import Bar
    from headwise.folders import check_free, check_partial, partial_of
    from headwise.models import load
    from headwise.models.documents import without_identical
    from headwise.report import write_report
    from headwise.study import read_documents, study

    # Everything that can be refused without the model is refused before it is loaded.
    check_free(out, overwrite)
    check_partial(partial_of(out))
    texts = read_documents(documents)
    source = str(documents) if documents else "pydoc_data.topics, the help texts of Python"
    if documents is not None:  # the topics stay as they are: which ones a seed draws must not change
        texts, left_out = without_identical(texts)
        tell_identical(left_out, documents)
        source += f", {left_out:,} identical left out" if left_out else ""
    with Bar() as bar:
        bar.stage(
            f"loading {model}" + (" (the first time also converting it)" if model.endswith((".gguf", "demo")) else "")
        )
        checkpoint = load(model)
        result = study(
            checkpoint, texts, out, settings=settings, documents_source=source, overwrite=overwrite, progress=bar,
            command=["headwise", *sys.argv[1:]],
        )  # fmt: skip
        bar.stage("writing the page")
        write_report(result.folder)
    return result


def _show(result: Study, seconds: float) -> None:
    """The findings as a table, the joint effects under it, and where the page lies."""
    from rich.console import Console

    console = Console()
    manifest = result.manifest
    model = manifest["model"]
    heads = sum(layer["num_heads"] for layer in manifest["layers"])
    console.print(f"\n[bold]{_plain(model['name'])}[/bold]: {heads} heads in {len(manifest['layers'])} layers")
    if result.findings.empty:
        console.print("No head was shown to do more than chance would: none survived the nulls and the correction.")
    else:
        console.print(_findings_table(result))
        if len(result.effects):
            console.print(_effects_table(result))
    for note in manifest["notes"]:
        console.print(f"note: {_plain(note)}")
    console.print(f"{seconds:.0f} s, peak memory {manifest['peak_bytes'] / 2**30:.2f} GiB")
    # Not through rich, which would fold a long path.
    typer.echo(f"page: {result.folder / 'report.html'}")


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


_SHOWN = 5  # findings of each score in the terminal; the page and the tables have them all


def _findings_table(result: Study) -> Any:
    from rich.table import Table

    from headwise.layout import head_name

    table = Table(title="Findings: heads beyond chance, the strongest of each score", title_justify="left")
    for name in ("score", "head", "value", "95 %", "chance", "q"):
        table.add_column(name, justify="left" if name in ("score", "head", "95 %") else "right")
    for score, rows in result.findings.groupby("score"):
        for row in rows.head(_SHOWN).itertuples():
            table.add_row(
                str(score), head_name(int(row.layer), int(row.head)), f"{row.value:.2f}",
                f"{row.low:.2f} to {row.high:.2f}", f"{row.null:.3f}", f"{row.q_value:.2g}",
            )  # fmt: skip
        if len(rows) > _SHOWN:
            table.add_row("", f"and {len(rows) - _SHOWN} more")
        table.add_section()
    return table


def _effects_table(result: Study) -> Any:
    """The loss without all leaders of a score, beside random heads, and whether the difference is sure."""
    from rich.table import Table

    title = "Effects: loss in nats without the leading heads (without random ones of the same layers)"
    table = Table(title=title, title_justify="left")
    for name in ("score", "task", "intact", "zeroed", "by mean", "beyond"):
        table.add_column(name, justify="left" if name in ("score", "task", "beyond") else "right")
    leaders = result.effects[result.effects["role"] == "leader"]
    for (score, task), rows in leaders.groupby(["score", "task"], sort=False):
        most = rows["heads"].map(len).max()
        rows = rows[rows["heads"].map(len) == most].groupby("mode").first()
        zero, mean = rows.loc["zero"], rows.loc["mean"]
        sure = (zero["excess_low"] > 0, mean["excess_low"] > 0)
        beyond = {(True, True): "both", (True, False): "zeroed", (False, True): "by mean"}.get(sure, "no")
        cells = (f"{score} ({most})", str(task), f"{zero['baseline']:.2f}", _with_control(zero), _with_control(mean))
        table.add_row(*cells, beyond)
    return table


def _with_control(row: Any) -> str:
    control = row["baseline"] + row["control_delta"]
    return f"{row['loss']:.2f} ({'–' if control != control else f'{control:.2f}'})"
