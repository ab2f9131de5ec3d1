"""An inspection in the terminal: layers, how their heads are built, what was done, what each format holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headwise.cli.inspect_history import step_words
from headwise.surgery.layout_reach import Reach
from headwise.surgery.layout_table import Inspection, LayerLayout
from headwise.surgery.sharing.methods import METHODS

__all__ = ["show_inspection"]

_OTHERS = {
    "stock": "loads in any tool that knows the architecture",
    "mistral": "a stock format too: the same function without a window",
    "gpt_bigcode": "a stock format too: the same function with one KV head",
    "headwise": "opened by headwise alone; each layer may have numbers of its own",
}


def show_inspection(found: Inspection) -> None:
    """Print all of it; 80 columns are enough."""
    console = Console(highlight=False)
    count = len(found.layers)
    console.print(
        f"[bold]{escape(found.name)}[/bold] ({escape(found.model_type)}): {count:,} attention "
        f"layer{'s' * (count != 1)}, width {found.width:,}"
    )
    share = found.attention_parameters / found.parameters
    console.print(f"{found.parameters:,} parameters, {found.attention_parameters:,} of them ({share:.1%}) in attention")
    if found.config_only:
        console.print("Its weights are on the hub and were not looked at: all of this is from its config.")
    _show(console, "Layers", _layers_table(found.layers))
    _show(console, "Heads", _heads_table(found))
    if found.history:
        _show(console, "What was done to it", _history_table(found.history))
    if found.refusal is not None:
        console.print(f"\n{escape(found.refusal)}, so they can't be reshaped; it can be studied as it is")
        return
    _show(console, "Numbers of heads that each format holds, all layers alike", _formats_table(found))
    for form in found.holds:
        console.print(f"{form}: {_OTHERS[form]}", style="dim")
    console.print(f"As it is, it would be saved as {found.format}.")
    if found.reach is not None:
        console.print(_fewer(found.reach))
        console.print(_more(found.reach, found.layers))


def _fewer(reach: Reach) -> str:
    """What ``headwise convert`` makes, with the methods where not all of them make it."""
    if not reach.fewer:
        return f"headwise convert makes no number of KV heads of it: {escape(reach.refusal or '')}."
    methods_of: dict[tuple[int, ...], list[str]] = {}
    for method, numbers in reach.fewer.items():
        methods_of.setdefault(tuple(numbers), []).append(method)
    made = [
        f"{_choice(numbers)} by headwise convert --kv-heads"
        + ("" if len(methods) == len(METHODS) else f" with --method {_choice(methods)} alone")
        for numbers, methods in methods_of.items()
    ]
    return f"Fewer KV heads: {'; '.join(made)}."


def _more(reach: Reach, layers: Sequence[LayerLayout]) -> str:
    if all(layer.num_kv_heads == layer.num_heads for layer in layers):
        return "More KV heads: none, each query head has its own."
    degroup = "headwise.surgery.gauge.degroup"
    if not reach.more:
        return f"More KV heads: one for each query head by {degroup}; no number fits all layers."
    return f"More KV heads, the same function: {_choice(reach.more)} by {degroup}."


def _choice(names: Sequence[object]) -> str:
    *others, last = map(str, names)
    return f"{', '.join(others)} or {last}" if others else last


def _show(console: Console, title: str, table: Table) -> None:
    console.print(f"\n[bold]{title}[/bold]")
    console.print(table)


def _table(*columns: str, words: int = 1) -> Table:
    """The first columns are words, the others numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(columns))
    for number, column in enumerate(columns):
        side: Any = "left" if number < words else "right"
        table.add_column(column, justify=side, overflow="fold", header_style="dim")
    return table


def _layers_table(layers: Sequence[LayerLayout]) -> Table:
    """Runs of equal layers on one line."""
    table = _table("layers", "heads", "KV heads", "heads per KV", "head dim", "window")
    start = 0
    for layer, run in groupby(layers):
        length = len(list(run))
        width = str(layer.head_dim)
        if layer.value_head_dim != layer.head_dim:
            width += f", values {layer.value_head_dim}"
        table.add_row(
            str(start) if length == 1 else f"{start} to {start + length - 1}",
            f"{layer.num_heads:,}", f"{layer.num_kv_heads:,}", f"{layer.num_heads // layer.num_kv_heads:,}", width,
            "none" if layer.window is None else f"{layer.window:,}",
        )  # fmt: skip
        start += length
    return table


def _heads_table(found: Inspection) -> Table:
    table = _table("", "", words=2)
    table.add_row("class", escape(found.model_class))
    table.add_row("packing", escape(found.packing or "unknown to headwise"))
    first = found.layers[0]
    if first.rotary is not None:
        table.add_row("rotary", _rotary(found, first))
        table.add_row("norms of queries and keys", "yes" if first.rotary.norms else "none")
    if first.biases is not None:
        table.add_row("biases", ", ".join(first.biases) or "none")
    return table


def _rotary(found: Inspection, layer: LayerLayout) -> str:
    rotary = layer.rotary
    assert rotary is not None
    if rotary.style == "none":
        return "none"
    if rotary.style == "half":
        pairs = f"half-split, dimension i with i + {rotary.dims // 2}"
    else:
        pairs = "interleaved, dimension 2 i with 2 i + 1"
    share = "" if rotary.dims == layer.head_dim else f", {rotary.dims} of {layer.head_dim} dimensions"
    base = "" if found.rotary_base is None else f", base {found.rotary_base:,.0f}"
    scaling = "" if found.rotary_scaling in (None, "default") else f", scaled as {escape(found.rotary_scaling)}"
    return f"{pairs}{share}{base}{scaling}"


def _history_table(history: Sequence[dict[str, Any]]) -> Table:
    table = _table("", "", "", words=3)
    for number, step in enumerate(history, 1):
        table.add_row(str(number), escape(str(step.get("operation", "?"))), escape(step_words(step)))
    return table


def _formats_table(found: Inspection) -> Table:
    """What the stock class holds, and of each other format what none before it does."""
    table = _table("format", "heads", "KV heads", words=3)
    before: dict[int, set[int]] = {}
    for form, counts in found.holds.items():
        new = {
            heads: fitting
            for heads, kv_heads in counts.items()
            if (fitting := [number for number in kv_heads if number not in before.get(heads, ())])
        }
        for heads, kv_heads in counts.items():
            before.setdefault(heads, set()).update(kv_heads)
        for rule, numbers in _by_rule(new).items():
            also = "also " if form != "stock" else ""
            name = f"{form} ({found.model_type})" if form == "stock" else form
            table.add_row(escape(name), also + _runs(numbers), rule)
        if not new:
            table.add_row(form, "the same, layer by layer" if form == "headwise" else "the same", "")
    return table


def _by_rule(counts: dict[int, list[int]]) -> dict[str, list[int]]:
    """Numbers of heads by what numbers of KV heads go with them."""
    if all(kv_heads == [heads] for heads, kv_heads in counts.items()):
        return {"as many as heads": list(counts)} if counts else {}
    rules: dict[str, list[int]] = {}
    for heads, kv_heads in counts.items():
        every = kv_heads == [number for number in range(1, heads + 1) if heads % number == 0]
        rule = "any divisor of the heads" if every else ", ".join(map(str, kv_heads))
        rules.setdefault(rule, []).append(heads)
    return rules


def _runs(numbers: Iterable[int]) -> str:
    """``1 to 4, 6, 8``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
