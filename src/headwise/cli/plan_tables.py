"""A plan in the terminal: what it takes with the equations, three numbers, what fits, what it computes."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from io import TextIOWrapper
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from headwise.plan.answers import Plan
from headwise.plan.compare import Comparison
from headwise.plan.pairs import Pairs
from headwise.plan.roofline import Roofline
from headwise.plan.units import bytes_text, count_text, percent_text, seconds_text
from headwise.plan.work import Work

__all__ = ["show_comparison", "show_plan", "show_provenance"]

_NARROWEST = 24  # characters of a line's words, where there is no place for all of them


def show_plan(plan: Plan) -> None:
    """Print all of a plan; 80 columns are enough."""
    console = _console()
    console.print(f"[bold]{_title(plan)}[/bold]")
    _show_load(console, plan)
    _show(console, "Cache", _cache_table(plan))
    _show(console, "One sequence, and what is in the total", _numbers_table(plan))
    if plan.budget is not None:
        _show(console, "What fits", _fits(plan))
    if plan.parameters.by_name:
        _show(console, "Parameters of attention's matrices", _parameters_table(plan))
        _show(console, "Work", _work_table(plan))
    mixers = sum(any(state.kind == "recurrent" for state in layer.states) for layer in plan.architecture.layers)
    if mixers:
        console.print(f"the recurrent mixers of {mixers:,} layers are not counted", style="dim")
    if plan.roofline is not None:
        _show(console, "Least time of a decode step", _roofline_table(plan.roofline))


def show_comparison(comparison: Comparison) -> None:
    """Print the layouts side by side."""
    console = _console()
    own = comparison.rows[0].plan
    console.print(f"[bold]{_title(own)}[/bold]")
    _show_load(console, own)
    table = _table("layout", "attention", "per token", "growth", "cache", f"of {escape(comparison.basis)}")
    table.padding = (0, 1, 0, 0)
    if own.budget is not None:
        table.add_column("context", justify="right")
        table.add_column("batch", justify="right")
    for row in comparison.rows:
        plan = row.plan
        cells = [
            escape(row.layout), count_text(plan.parameters.total), bytes_text(plan.per_token), bytes_text(plan.growth),
            bytes_text(plan.total), "-" if row.share is None else percent_text(row.share),
        ]  # fmt: skip
        limits = (plan.max_context, plan.max_batch) if own.budget is not None else ()
        table.add_row(*cells, *("any" if limit is None else count_text(limit) for limit in limits))
    _print(console, table)
    console.print("attention: parameters of its matrices; growth: bytes of a token beyond all windows", style="dim")


def show_provenance(plan: Plan) -> None:
    """Print where each number of the config came from."""
    console = _console()
    table = _table("field", "source", numbers=False)
    told = dict(plan.architecture.provenance)
    for state in plan.architecture.states:
        told = {**state.provenance, **told}
    for name, origin in sorted(told.items()):
        table.add_row(escape(name), escape(origin))
    _show(console, "Where the numbers came from", table)


def _console() -> Console:
    """Where tables go; a terminal without Unicode gets question marks in its place rather than an error."""
    console = Console(highlight=False)
    if console.options.ascii_only and isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return console


def _title(plan: Plan) -> str:
    architecture = plan.architecture
    layers = len(architecture.layers)
    name = f"{plan.model} ({architecture.model_type})" if plan.model != architecture.model_type else plan.model
    return escape(f"{name}: {layers:,} layer{'s' * (layers != 1)}")


def _load(plan: Plan) -> str:
    request = plan.request
    ranks = "" if request.tp == 1 else f", one of {request.tp:,} ranks"
    sequences = "1 sequence" if request.batch == 1 else f"{request.batch:,} sequences"
    tokens = "1 token" if request.context == 1 else f"{request.context:,} tokens"
    return f"{sequences} of {tokens}, {request.storage.name}, runtime {_runtime(plan)}{ranks}"


def _runtime(plan: Plan) -> str:
    """``vllm (max_num_batched_tokens=8192)``: with the options in force, those left to the runtime apart."""
    words = {name: each if isinstance(each, str) else json.dumps(each) for name, each in plan.runtime.options.items()}
    told = ", ".join(f"{name}={word}" for name, word in words.items() if word != "null")
    return f"{plan.runtime.name} ({told})" if told else plan.runtime.name


def _show_load(console: Console, plan: Plan) -> None:
    console.print(_load(plan))
    longest = plan.architecture.max_context
    if longest is not None and plan.request.context > longest:
        console.print(f"more than the {longest:,} tokens that the config allows", style="yellow")


def _show(console: Console, title: str, table: Table) -> None:
    # Not as the table's own title, which would be folded to the width of the table.
    console.print(f"\n[bold]{title}[/bold]")
    _print(console, table)


def _print(console: Console, table: Table) -> None:
    """Print a table whole: in a narrow terminal words fold, and a line of numbers runs over the edge, uncut."""
    width = console.width
    console.width = max(width, _least_width(table))
    console.print(table)
    console.width = width


def _least_width(table: Table) -> int:
    """Every number in full beside the first words of the line."""
    columns = [
        [cell_len(line) for cell in (each.header, *each.cells) for line in _lines(cell)] for each in table.columns
    ]
    widest = [max(lengths, default=0) for lengths in columns]
    widths = [most if each.no_wrap else min(most, _NARROWEST) for most, each in zip(widest, table.columns, strict=True)]
    return sum(widths) + table.padding[1] * len(widths)


def _lines(cell: Any) -> list[str]:
    return Text.from_markup(cell).plain.split("\n")


def _table(*columns: str, numbers: bool = True) -> Table:
    """A table whose first column is words and whose others are numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(columns))
    for number, column in enumerate(columns):
        left = number == 0 or not numbers
        side: Any = "left" if left else "right"
        table.add_column(column, justify=side, no_wrap=not left, overflow="fold", header_style="dim")
    return table


def _size(size: int) -> tuple[str, str]:
    return bytes_text(size), f"{size:,}"


def _equation(equation: str) -> str:
    """An equation as it stands under its line: separators in its numbers, broken between its terms."""
    told = re.sub(r"(?<![\w.])\d{4,}(?![\w.])", lambda match: f"{int(match[0]):,}", equation)
    # textwrap leaves hard spaces alone.
    kept = told.replace(" x ", "\N{NO-BREAK SPACE}x\N{NO-BREAK SPACE}").replace(" B", "\N{NO-BREAK SPACE}B")
    lines = textwrap.wrap(kept, 52, initial_indent="  ", subsequent_indent="    ", break_long_words=False)
    return f"[dim]{escape(chr(10).join(lines))}[/dim]".replace("\N{NO-BREAK SPACE}", " ")


def _cache_table(plan: Plan) -> Table:
    table = _table("layers and what they keep", "", "bytes")
    for group in plan.allocation.groups:
        table.add_row(escape(group.label), *_size(group.total))
        count = len(group.states)
        table.add_row(_equation(f"{count} x {group.each.equation}"))
    for extra in plan.allocation.extras:
        table.add_row(escape(extra.name), *_size(extra.total))
        table.add_row(_equation(extra.equation))
    if not plan.allocation.groups:
        table.add_row("no layer keeps anything", *_size(0))
    table.add_row("[bold]total[/bold]", *(f"[bold]{cell}[/bold]" for cell in _size(plan.total)))
    if plan.request.tp > 1:
        table.add_row(f"all {plan.request.tp:,} ranks together", *_size(plan.allocation.total_over_ranks))
    return table


def _numbers_table(plan: Plan) -> Table:
    table = _table("", "", "bytes")
    allocation = plan.allocation
    table.add_row("per token, inside every window and chunk", *_size(plan.per_token))
    table.add_row("growth per further token, beyond all of them", *_size(plan.growth))
    table.add_row("fixed, whatever the context", *_size(plan.fixed))
    for name, size in (
        ("keys in the total", allocation.key_bytes),
        ("values in the total", allocation.value_bytes),
        ("latents in the total", allocation.role_bytes("latent")),
        ("padding in the total", allocation.padding_bytes),
    ):
        if size:
            table.add_row(name, *_size(size))
    return table


def _limit(number: int | None) -> str:
    return "any" if number is None else f"{number:,}"


def _fits(plan: Plan) -> Table:
    table = _table("", "", "")
    table.add_row("budget of one rank", *_size(plan.budget or 0))
    if plan.weights is None:
        table.add_row("weights: not counted, say them with --weights")
    else:
        table.add_row("weights of one rank", *_size((plan.budget or 0) - (plan.room or 0)))
    if plan.room is not None and plan.room <= 0:
        table.add_row("[bold]the weights alone leave no room[/bold]")
    table.add_row("longest context", _limit(plan.max_context), "tokens")
    table.add_row(f"most sequences of {plan.request.context:,} tokens", _limit(plan.max_batch), "")
    if plan.architecture.max_context is not None:
        table.add_row("longest context of the config", f"{plan.architecture.max_context:,}", "tokens")
    return table


def _parameters_table(plan: Plan) -> Table:
    parameters = plan.parameters
    table = _table("", "", "")
    for name, count in parameters.by_name.items():
        table.add_row(escape(name), count_text(count), f"{count:,}")
    for equation in parameters.equations:
        table.add_row(_equation(equation))
    table.add_row("[bold]all[/bold]", count_text(parameters.total), f"[bold]{parameters.total:,}[/bold]")
    return table


def _work_table(plan: Plan) -> Table:
    """Prefill in three counts and the step in one, since a step's counts hardly differ."""
    table = _table("FLOPs", "prefill", "no causal half", "all pairs", "decode step")
    forms = [("", plan.prefill, plan.decode)]
    if plan.absorbed is not None:
        forms = [(" expanded", plan.prefill, plan.decode), (" absorbed", *plan.absorbed)]
    for form, prefill, decode in forms:
        _add_work(table, form, prefill, decode)
    table.add_row("elements", end_section=False, style="dim")
    last = plan.decode
    _add_counts(table, "softmax, stored maps", plan.prefill.softmax, last.softmax)
    _add_counts(table, "map of one layer", plan.prefill.largest_map, last.largest_map)
    return table


def _add_work(table: Table, form: str, prefill: Work, decode: Work) -> None:
    whole = count_text(prefill.projections)
    table.add_row(f"matrices{form}", whole, whole, whole, count_text(decode.projections))
    _add_counts(table, f"scores{form}", prefill.scores, decode.scores)
    _add_counts(table, f"values{form}", prefill.values, decode.values)


def _add_counts(table: Table, name: str, prefill: Pairs, decode: Pairs) -> None:
    counts = (prefill.visible, prefill.bound, prefill.dense, decode.visible)
    table.add_row(name, *(count_text(count) for count in counts))


def _bound(roofline: Roofline) -> str:
    return "reading alone" if roofline.bound is None else f"bound by {roofline.bound}"


def _roofline_table(roofline: Roofline) -> Table:
    device = roofline.device
    table = _table("", "", "")
    rate = "unknown" if device.flops is None else f"{count_text(device.flops)}FLOP/s"
    table.add_row(f"device {escape(device.name)}", f"{device.bandwidth / 1e9:,.0f} GB/s", rate)
    table.add_row(f"[dim]  {escape(device.source)}[/dim]")
    intensity = "-" if roofline.intensity is None else f"{roofline.intensity:,.2f}"
    ridge = "" if device.ridge is None else f"of {device.ridge:,.0f}"
    table.add_row("scores and values, FLOPs per byte of cache", intensity, ridge)
    told: list[tuple[str, Any, str]] = [
        ("reading the cache, scores and values", roofline.attention_seconds, _bound(roofline)),
        ("the same, with all weights read", roofline.step_seconds, ""),
    ]
    for name, seconds, note in told:
        table.add_row(name, "say --weights" if seconds is None else seconds_text(seconds), note)
    return table
