"""An experiment in the terminal: what was measured, what differs, and what does and does not follow."""

from __future__ import annotations

import math
import textwrap

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from headwise.bench.experiments.experiment import FOUND, NO_CONCLUSION, NOT_SHOWN
from headwise.bench.experiments.findings import interval_text
from headwise.bench.experiments.run import Result
from headwise.bench.experiments.summary import Difference, Row, Summary
from headwise.cli.signs import signed

__all__ = ["show_experiment"]

_HEADINGS = {FOUND: "What the numbers show", NOT_SHOWN: "Not shown", NO_CONCLUSION: "What does not follow"}
_GAP = 2  # between columns
_INDENT = 2  # of a measure under its condition
_NARROWEST = 24  # of a first column whose labels are wrapped
_NONE = "–"
_Line = tuple[str, ...]  # a label and its values, or a condition alone


def show_experiment(result: Result) -> None:
    """Print all of it; where a terminal is too narrow for a table, each value has a line of its own."""
    console = Console(highlight=False)
    console.print(f"[bold]{escape(result.experiment.question)}[/bold]", soft_wrap=True)
    console.print(escape(result.experiment.task))
    console.print(f"Held out: {escape(result.experiment.held_out)}")
    _show(console, ("", "mean", "95 %", "seeds"), _means(result.summary))
    if result.summary.differences:
        _show(console, ("difference, paired by seed", "mean", "95 %", "q", "shown"), _differences(result.summary))
    for kind, heading in _HEADINGS.items():
        told = [finding.text for finding in result.findings if finding.kind == kind]
        if told:
            console.print(f"\n[bold]{heading}[/bold]")
            for text in told:
                console.print(escape(_bullet(text, console.width)), soft_wrap=True)
    console.print()
    for note in result.notes:
        console.print(f"note: {escape(note)}")
    count = len(result.summary.seeds)
    console.print(
        f"{result.seconds:,.0f} s over {count} seeds; intervals: 95 %, over seeds, and none where all seeds agree; "
        "shown: the interval excludes 0 and a sign-flip test has q of at most 0.05",
        style="dim",
    )


def _bullet(text: str, width: int) -> str:
    """Wrapped here, since rich doesn't indent what it wraps."""
    return textwrap.fill(
        text, max(width, 8), initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip


def _means(summary: Summary) -> list[_Line]:
    lines: list[_Line] = []
    condition = None
    for row in summary.rows:
        if row.condition != condition:
            condition = row.condition
            lines.append((condition,))
        mean = _NONE if not row.n else signed(row.mean, row.form)
        lines.append((row.title, mean, _interval(row), str(row.n)))
    return lines


def _differences(summary: Summary) -> list[_Line]:
    lines: list[_Line] = []
    for each in summary.differences:
        mean = _NONE if not each.n else signed(each.mean, f"+{each.form}")
        q = _NONE if each.q != each.q else f"{each.q:.3f}"
        lines.append((each.title, mean, _interval(each), q, "yes" if each.shown else "no"))
    return lines


def _interval(told: Row | Difference) -> str:
    """None for what is the same at every seed, like a count of parameters: ``1,349 to 1,349`` says nothing."""
    known = {value for value in told.values if math.isfinite(value)}
    return (interval_text(told) if len(known) > 1 else "") or _NONE


def _show(console: Console, head: _Line, lines: list[_Line]) -> None:
    """A table whose labels are wrapped if they must be, between words; a list where not even that is enough."""
    grouped = any(len(line) == 1 for line in lines)
    full = [head, *(line for line in lines if len(line) > 1)]
    widths = [max(len(line[column]) for line in full) for column in range(1, len(head))]
    left = console.width - sum(width + _GAP for width in widths)
    labels = [head[0], *(" " * (_INDENT if grouped and len(line) > 1 else 0) + line[0] for line in lines)]
    widest = max(map(len, labels))
    word = max(len(each) for label in labels for each in label.split()) + (_INDENT if grouped else 0)
    if left < min(widest, max(_NARROWEST, word)):
        console.print(_listed(head, lines), soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    table.add_column(head[0], width=min(left, widest))
    for name, width in zip(head[1:], widths, strict=True):
        table.add_column(name, justify="right", width=width, no_wrap=True)
    for label, *values in lines:
        if values:
            table.add_row(Padding(escape(label), (0, 0, 0, _INDENT if grouped else 0)), *values)
        else:
            table.add_row(f"[bold]{escape(label)}[/bold]")
    console.print(table)


def _listed(head: _Line, lines: list[_Line]) -> str:
    told = [f"[dim]{head[0]}[/dim]"] if head[0] else []
    for label, *values in lines:
        if not values:
            told.append(f"[bold]{escape(label)}[/bold]")
            continue
        told.append(f"{' ' * _INDENT}{escape(label)}")
        told += [f"{' ' * 2 * _INDENT}{name}: {value}" for name, value in zip(head[1:], values, strict=True)]
    return "\n".join(told)
