"""`headwise report`: one page that opens without a network, from a finished study."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["report"]


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished study.", show_default=False)],
    out: Annotated[Path | None, typer.Option("--out", help="The file to write; FOLDER/report.html without it.")] = None,
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Also draw a static picture: .png, .svg or .pdf.")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Show the page in the browser afterwards.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Write the page of a study: which heads do what, whether it is more than chance, what breaks without them.

    [bold]Examples[/bold]

    headwise report study

    headwise report study --out smollm2.html --open

    headwise report study --figure heads.png
    """
    from headwise.report import figure as draw_figure
    from headwise.report import write_report

    page = write_report(folder, out)
    picture = None if figure is None else draw_figure(folder, figure)
    if as_json:
        names = {"report": str(page), "figure": None if picture is None else str(picture)}
        typer.echo(json.dumps(names | {"bytes": page.stat().st_size}))
    else:
        typer.echo("\n".join(str(path) for path in (page, picture) if path is not None))
    if open_page:
        webbrowser.open(page.resolve().as_uri())
