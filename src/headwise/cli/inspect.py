"""`headwise inspect`: what a model's layers are made of, and which other layouts each format can hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headwise.surgery.layout_table import Inspection

__all__ = ["inspect"]


def inspect(
    model: Annotated[
        str, typer.Argument(help="A local folder, a hub id, a .gguf file, or demo.", metavar="MODEL")
    ] = "demo",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Show a model's layouts and size, how its heads are built, what was done to it, and what it can become.

    Weights are not read, so that size does not matter (of some mixtures of experts they are); a folder must have them.

    [bold]Examples[/bold]

    headwise inspect demo

    headwise inspect ./my-model --json

    headwise inspect org/name
    """
    from headwise.cli.start import prepare

    prepare(None)
    from headwise.surgery.layout_table import inspect_layouts

    found = inspect_layouts(model)
    if as_json:
        typer.echo(json.dumps(found.as_dict(), allow_nan=False))
    else:
        _show(found)


def _show(found: Inspection) -> None:
    from headwise.cli.inspect_tables import show_inspection

    show_inspection(found)
