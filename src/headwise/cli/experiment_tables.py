"""An experiment in the terminal: what was measured, what differs, and what does and does not follow."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headwise.bench.experiments.experiment import FOUND, NO_CONCLUSION, NOT_SHOWN
from headwise.bench.experiments.findings import interval_text
from headwise.bench.experiments.run import Result
from headwise.bench.experiments.summary import Summary
from headwise.cli.signs import signed

__all__ = ["show_experiment"]

_HEADINGS = {FOUND: "What the numbers show", NOT_SHOWN: "Not shown", NO_CONCLUSION: "What does not follow"}


def show_experiment(result: Result) -> None:
    """Print all of it."""
    console = Console(highlight=False)
    console.print(f"[bold]{escape(result.experiment.question)}[/bold]", soft_wrap=True)
    console.print(escape(result.experiment.task))
    console.print(f"Held out: {escape(result.experiment.held_out)}")
    console.print(_means(result.summary))
    if result.summary.differences:
        console.print(_differences(result.summary))
    for kind, heading in _HEADINGS.items():
        told = [finding.text for finding in result.findings if finding.kind == kind]
        if told:
            console.print(f"\n[bold]{heading}[/bold]")
            for text in told:
                console.print(f"- {escape(text)}")
    console.print()
    for note in result.notes:
        console.print(f"note: {escape(note)}")
    count = len(result.summary.seeds)
    console.print(
        f"{result.seconds:,.0f} s over {count} seeds; intervals: 95 %, over seeds; shown: the interval excludes "
        "0 and a sign-flip test has q of at most 0.05",
        style="dim",
    )


def _means(summary: Summary) -> Table:
    table = _table("", "mean", "95 %", "seeds")
    condition = None
    for row in summary.rows:
        if row.condition != condition:
            condition = row.condition
            table.add_row(f"[bold]{escape(condition)}[/bold]", "", "", "")
        mean = "–" if not row.n else signed(row.mean, row.form)
        table.add_row(f"  {escape(row.title)}", mean, interval_text(row) or "–", str(row.n))
    return table


def _differences(summary: Summary) -> Table:
    table = _table("difference, paired by seed", "mean", "95 %", "q", "shown")
    for each in summary.differences:
        mean = "–" if not each.n else signed(each.mean, f"+{each.form}")
        q = "–" if each.q != each.q else f"{each.q:.3f}"
        table.add_row(escape(each.title), mean, interval_text(each) or "–", q, "yes" if each.shown else "no")
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table
