"""A comparison of layouts in the terminal: a table for each kind of number, and under them what they don't show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headwise.bench.layouts.result import Latency, LayoutComparison, Ratio, Row
from headwise.plan.units import bytes_text, count_text, seconds_text

__all__ = ["show_layouts"]

_GAP = 2  # between columns
_NONE = "–"
# A latent layer has a matrix down to its latent and one up from it, where others have one for keys and one for values.
_COLUMNS = (("query",), ("key", "key value down"), ("value", "key value up"), ("output",))
_Lines = list[tuple[str, ...]]


def show_layouts(result: LayoutComparison) -> None:
    """Print all of it; 80 columns are enough for the tables, and fewer have one value a line."""
    console = Console(highlight=False)
    console.print(f"[bold]{escape(_title(result))}[/bold]", soft_wrap=True)
    for title, head, lines in _tables(result):
        console.print()
        console.print(f"[bold]{escape(title)}[/bold]", soft_wrap=True)
        _show(console, head, lines)
    console.print()
    for note in result.notes:
        console.print(f"note: {escape(note)}")
    device = result.device
    if device is not None:
        rate = "" if device.flops is None else f", {device.flops / 1e9:,.1f} GFLOP/s"
        console.print(
            f"roofline: {device.bandwidth / 1e9:.1f} GB/s{rate}, {escape(device.source)}", style="dim", soft_wrap=False
        )
    told = f"{result.seconds:.0f} s; of {result.rows[0].name}: over its time in the same round, in brackets quartiles "
    told += f"over {result.settings['rounds']} rounds"
    if any(row.repeats for row in result.rows):
        told += "; repeated: K and V copied for every query head; of own: over the layout without that"
    console.print(escape(told), style="dim")


def _title(result: LayoutComparison) -> str:
    load, width = result.load, result.rows[0].spec.width
    sequences = "1 sequence" if load.batch == 1 else f"{load.batch} sequences"
    return f"one attention layer of width {width:,}, {sequences} of {load.context:,} tokens, {load.dtype}"


def _tables(result: LayoutComparison) -> Iterator[tuple[str, tuple[str, ...], _Lines]]:
    first = result.rows[0]
    latent = any(row.spec.latent for row in result.rows)
    matrices = ("Q", "K / down", "V / up", "output") if latent else ("Q", "K", "V", "output")
    head: tuple[str, ...] = ("", "heads", "width", *matrices, "all")
    yield "projection parameters", head, [_parameter_line(row) for row in result.layouts]
    head = ("", "planned", "allocated", f"of {first.name}", "still read")
    yield "cache", head, [_cache_line(row, first) for row in result.layouts]
    head = ("", "FLOPs of\nprefill", "FLOPs of\na token", "softmax of\nprefill", "softmax of\na token")
    yield "work: FLOPs and softmax elements", head, [_work_line(row) for row in result.layouts]
    head = ("", "median", "tokens/s", f"of {first.name}", "of own", "roofline")
    yield f"prefill of {result.load.context:,} tokens", head, [_time_line(row, row.prefill) for row in result.rows]
    yield "one more token behind them", head, [_time_line(row, row.decode) for row in result.rows]
    if first.peak is not None:
        yield (
            "peak memory, above that of Python and torch",
            ("", "cache", "a token", f"a token,\nof {first.name}", "prefill", f"prefill,\nof {first.name}"),
            [_peak_line(row, first) for row in result.rows],
        )


def _parameter_line(row: Row) -> tuple[str, ...]:
    spec, held = row.spec, row.cost.parameters
    counts = (count_text(sum(held.get(name, 0) for name in names)) for names in _COLUMNS)
    heads = str(spec.heads) if spec.latent else f"{spec.heads} on {spec.kv_heads}"
    width = f"{spec.head_dim}+{spec.rope}" if spec.latent else str(spec.head_dim)
    return row.name, heads, width, *counts, count_text(row.cost.parameters_total)


def _cache_line(row: Row, first: Row) -> tuple[str, ...]:
    cost, share = row.cost, _times(row.allocated, first.allocated)
    return row.name, bytes_text(cost.planned), bytes_text(row.allocated), share, bytes_text(cost.needed)


def _work_line(row: Row) -> tuple[str, ...]:
    cost = row.cost
    counts = (cost.prefill.total, cost.decode.total, cost.prefill.softmax, cost.decode.softmax)
    return row.name, *(count_text(each.visible) for each in counts)


def _time_line(row: Row, latency: Latency) -> tuple[str, ...]:
    own = _NONE if latency.to_own is None else f"{latency.to_own.median:.2f}"
    share = _NONE if latency.share is None else f"{latency.share:.0%}"
    speed = f"{latency.tokens_per_second:,.0f}"
    return row.name, seconds_text(latency.median), speed, _ratio(latency.to_first), own, share


def _peak_line(row: Row, first: Row) -> tuple[str, ...]:
    assert row.peak is not None  # all rows have one, or none
    assert first.peak is not None
    return (
        row.name,
        bytes_text(row.allocated),
        bytes_text(row.peak.decode_rise),
        _times(row.peak.decode_rise, first.peak.decode_rise),
        bytes_text(row.peak.prefill_rise),
        _times(row.peak.prefill_rise, first.peak.prefill_rise),
    )


def _times(part: int, whole: int) -> str:
    return f"{part / whole:.2f}" if whole else _NONE


def _ratio(ratio: Ratio) -> str:
    if ratio == Ratio(1.0, 1.0, 1.0):  # the first one, to itself
        return "1"
    return f"{ratio.median:.2f} ({ratio.lower:.2f} to {ratio.upper:.2f})"


def _show(console: Console, head: tuple[str, ...], lines: _Lines) -> None:
    columns = range(len(head))
    widths = [max(*map(len, head[column].split("\n")), *(len(line[column]) for line in lines)) for column in columns]
    if sum(widths) + _GAP * (len(widths) - 1) > console.width:
        console.print(_listed(head, lines), soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for name, width, column in zip(head, widths, columns, strict=True):
        justify: Literal["left", "right"] = "right" if column else "left"
        table.add_column(escape(name), justify=justify, vertical="bottom", width=width, no_wrap=True)
    for line in lines:
        table.add_row(*map(escape, line))
    console.print(table)


def _listed(head: tuple[str, ...], lines: _Lines) -> str:
    """For narrow terminals: each value in a line of its own, so that no number is split."""
    told = []
    for name, *values in lines:
        told.append(escape(f"  {name}"))
        labels = (label.replace("\n", " ") for label in head[1:])
        told += [escape(f"    {label}: {value}") for label, value in zip(labels, values, strict=True)]
    return "\n".join(told)
