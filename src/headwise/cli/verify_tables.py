"""A verification in the terminal: one table in sections, and under it what has to be said in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headwise.bench.verification.estimates import Estimate
from headwise.bench.verification.quality import Quality
from headwise.bench.verification.result import ModelRecord, Verification
from headwise.cli.signs import signed
from headwise.plan.units import bytes_text, count_text, seconds_text

__all__ = ["show_verification"]

# What it is, of A, of B, and B beside A.
_Row = tuple[str, str, str, str]
_Section = tuple[str, list[_Row]]
_GAP = 2  # between columns


def show_verification(result: Verification) -> None:
    """Print all of it; 80 columns are enough for a table, and fewer have one value a line."""
    console = Console(highlight=False)
    for label, model in (("A", result.a), ("B", result.b)):
        console.print(f"[bold]{label}[/bold]  {escape(_described(model))}")
    sections = list(_sections(result))
    head = ("", "A", "B", "B beside A")
    widths = [
        max(len(row[column]) for row in (head, *(row for _, rows in sections for row in rows))) for column in range(4)
    ]
    wide = sum(widths) + _GAP * (len(widths) - 1) <= console.width
    if wide:
        console.print(_table([head], widths, style="dim"))
    for title, rows in sections:
        console.print(f"[bold]{escape(title)}[/bold]", soft_wrap=True)
        console.print(_table(rows, widths) if wide else _listed(rows, head), soft_wrap=not wide)
    console.print()
    for sentence in result.sentences:
        console.print(escape(sentence))
    for note in result.notes:
        console.print(f"note: {escape(note)}")
    console.print(f"{result.seconds:.0f} s; intervals: 95 %, over documents; quartiles: over rounds", style="dim")


def _table(rows: list[_Row], widths: list[int], style: str = "") -> Table:
    """Tables of equal widths read as one, and the titles between them have the whole line."""
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=False)
    for column, width in enumerate(widths):
        table.add_column(justify="right" if column else "left", width=width, no_wrap=True, style=style)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _listed(rows: list[_Row], head: _Row) -> str:
    """For narrow terminals: each value in a line of its own, so that no number is split."""
    lines = []
    for name, *values in rows:
        lines += [escape(f"  {name}")] if name else []
        told = zip(head[1:], values, strict=True)
        lines += [escape(f"    {label + ':':<{len(head[3]) + 1}} {value}") for label, value in told if value]
    return "\n".join(lines)


def _described(model: ModelRecord) -> str:
    """``SmolLM2-135M: 134.52 M weights in float32, 30 layers of 9 heads on 3``; layers of other heads one by one."""
    runs = [(len(list(run)), *heads) for heads, run in groupby(model.heads)]
    told = [f"{count} {'layer' if count == 1 else 'layers'} of {heads} heads on {kv}" for count, heads, kv in runs]
    layers = ", ".join(told) if len(told) <= 4 else f"{len(model.heads)} layers of other numbers of heads"
    return f"{model.name}: {count_text(model.parameters)} weights in {model.dtype}, {layers}"


def _sections(result: Verification) -> Iterator[_Section]:
    for corpus in result.corpora:
        count = len(corpus.documents)
        yield f"{corpus.name}, {count} document{'s' * (count != 1)}", _corpus_rows(corpus)
    if result.copying is not None:
        guessing = f"guessing costs {math.log(result.vocabulary):.1f} nats"
        yield f"copying random tokens, {len(result.copying.each.kl)} samples, {guessing}", _copying_rows(result.copying)
    if result.decoding is not None:
        yield "decoding with a cache against reading at once", _decoding_rows(result)
    yield _memory_title(result), _memory_rows(result)
    for phase, timings in groupby(result.timings, key=lambda timing: timing.phase):
        rows = [("", "median", "median", "paired ratio (quartiles)")]
        for timing in timings:
            low, high = timing.quartiles
            first, second = (seconds_text(timing.times.median(name)) for name in ("a", "b"))
            ratio = f"{timing.ratio:.2f} x ({low:.2f} to {high:.2f})"
            rows.append((f"batch {timing.batch}, context {timing.context:,}", first, second, ratio))
        yield ("prefill" if phase == "prefill" else "decoding, one step"), rows


def _corpus_rows(corpus: Quality) -> list[_Row]:
    return [
        _loss_row(corpus),
        ("KL(A || B), nats", "", "", _interval(corpus.of("kl"), ".3g")),
        ("same most likely token", "", "", _interval(corpus.of("agreement"), ".1%")),
        ("|change of a logit|, mean", "", "", _interval(corpus.of("change"), ".3g")),
        ("|change of a logit|, max", "", "", f"{corpus.each.largest_change:.3g}"),
    ]


def _copying_rows(copying: Quality) -> list[_Row]:
    right, kept = (f"{copying.of(kind).value:.1%}" for kind in ("correct_a", "correct_b"))
    return [_loss_row(copying), ("right tokens", right, kept, _interval(copying.accuracy_difference, "+.1%"))]


def _loss_row(quality: Quality) -> _Row:
    first, second = (f"{quality.of(kind).value:.3f}" for kind in ("loss_a", "loss_b"))
    return "loss, nats", first, second, _interval(quality.loss_difference, "+.3f")


def _decoding_rows(result: Verification) -> list[_Row]:
    assert result.decoding is not None
    first, second = (f"{each.largest:.2g}" for each in result.decoding)
    agrees = all(each.agrees for each in result.decoding)
    return [("|change of a logit|, max", first, second, "only rounding" if agrees else "more than rounding")]


def _memory_title(result: Verification) -> str:
    """With the dtype that the cache is counted in, which need not be that of the files: verify opens both alike."""
    if result.cache is None:
        return "memory"
    first, second = (each.dtype for each in result.cache)
    return f"memory, cache in {first}" if first == second else f"memory, cache of A in {first}, of B in {second}"


def _memory_rows(result: Verification) -> list[_Row]:
    rows = [("weights", *_sizes(result.a.weight_bytes, result.b.weight_bytes))]
    if result.cache is not None:
        first, second = result.cache
        rows.append(("cache, each further token", *_sizes(first.each_further_token, second.each_further_token)))
        rows.append((f"cache of {first.tokens:,} tokens", *_sizes(first.allocated, second.allocated)))
    if result.memory is not None:
        memory = result.memory
        rows.append((f"peak at {memory.batch} x {memory.context:,}", *_sizes(memory.a.peak, memory.b.peak)))
    return rows


def _sizes(first: int, second: int) -> tuple[str, str, str]:
    return bytes_text(first), bytes_text(second), f"{second / first:.3f} x" if first and second else "–"


def _interval(estimate: Estimate, form: str) -> str:
    """``+0.712 (−0.645 to +0.781)``; a single document has no interval."""
    value = signed(estimate.value, form)
    if math.isnan(estimate.low):
        return value
    return f"{value} ({signed(estimate.low, form)} to {signed(estimate.high, form)})"
