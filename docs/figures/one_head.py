"""Figures of the page on one head: its maps, and what the scale does to them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from style import Colours, quiet
from torch import Tensor

__all__ = ["FIGURES", "board", "cells", "ink"]

EMBED, DIM, TOKENS, SHOWN = 8, 3, 5, 3  # sizes of the page's first cell, and the query that is pointed at


def board(width: float, height: float, inches: float = 6.5) -> tuple[Figure, Axes]:
    """A figure of that many inches in width, with units of equal size, the origin at the top left and no axes."""
    figure = Figure(figsize=(inches, inches * height / width))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    return figure, axes


def ink(fill: str | tuple[float, float, float, float]) -> str:
    """Black or white, whichever is read better on that colour."""
    red, green, blue = to_rgb(fill)
    return "#111417" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "#ffffff"


def cells(
    axes: Axes,
    colours: Colours,
    values: Tensor,
    corner: tuple[float, float],
    *,
    range_: tuple[float, float] = (0.0, 1.0),
    digits: int = 2,
    hidden: Tensor | None = None,
) -> None:
    """A table of numbers ``[rows, columns]`` as coloured squares of size 1; those that are hidden stay empty."""
    scale = LinearSegmentedColormap.from_list("amounts", colours.amounts)
    low, high = range_
    for row, numbers in enumerate(values.tolist()):
        for column, number in enumerate(numbers):
            x, y = corner[0] + column, corner[1] + row
            empty = hidden is not None and bool(hidden[row, column])
            fill = colours.none if empty else scale(min(max((number - low) / (high - low), 0.0), 1.0))
            axes.add_patch(Rectangle((x + 0.03, y + 0.03), 0.94, 0.94, color=fill, linewidth=0))
            if not empty:
                text = f"{round(number, digits) + 0.0:.{digits}f}".replace("-", "−")  # + 0.0: no −0.0
                axes.text(x + 0.5, y + 0.52, text, color=ink(fill), fontsize=7.5, ha="center", va="center")


def _frame(axes: Axes, colours: Colours, corner: tuple[float, float], columns: int, rows: int = 1) -> None:
    axes.add_patch(Rectangle(corner, columns, rows, fill=False, edgecolor=colours.accent, linewidth=1.6, zorder=3))


def _words(axes: Axes, x: float, y: float, text: str, colour: str, size: float = 9) -> None:
    axes.text(x, y, text, color=colour, fontsize=size, ha="center", va="center")


def one_head_map(colours: Colours) -> Figure:
    """The first cell of the page: scores, weights, values and outputs of five tokens."""
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, EMBED, dtype=torch.float64)
    query, key, value = (hidden @ torch.randn(EMBED, DIM, dtype=torch.float64) for _ in range(3))
    scores = query @ key.T / DIM**0.5
    weights = scores.softmax(-1)
    figure, axes = board(21.6, 7.9, 7.2)
    top, places = 1.6, (1.9, 8.7, 14.3, 18.4)
    largest = float(scores.abs().max())
    cells(axes, colours, scores, (places[0], top), range_=(-largest, largest), digits=1)
    cells(axes, colours, weights, (places[1], top))
    reach = float(value.abs().max())
    for place, numbers in ((places[2], value), (places[3], weights @ value)):
        cells(axes, colours, numbers, (place, top), range_=(-reach, reach), digits=1)
    for place, width in ((places[0], TOKENS), (places[1], TOKENS), (places[3], DIM)):
        _frame(axes, colours, (place, top + SHOWN), width)
    titles = ("scores  Q Kᵀ / √D", "weights", "values V", "outputs")
    for place, width, title in zip(places, (TOKENS, TOKENS, DIM, DIM), titles, strict=True):
        _words(axes, place + width / 2, 0.45, title, colours.text)
    middle = top + TOKENS / 2
    _words(axes, 7.8, middle - 0.45, "softmax", colours.muted, 7.5)
    _words(axes, 7.8, middle + 0.25, "→", colours.muted, 12)
    _words(axes, 14.0, middle, "×", colours.muted, 12)
    _words(axes, 17.85, middle, "=", colours.muted, 12)
    for token in range(TOKENS):
        _words(
            axes, 0.85, top + token + 0.5, f"query {token}", colours.accent if token == SHOWN else colours.muted, 7.5
        )
    for place in places[:2]:
        for token in range(TOKENS):
            _words(axes, place + token + 0.5, 1.2, str(token), colours.muted, 7.5)
        _words(axes, place + TOKENS / 2, top + TOKENS + 0.45, "key", colours.muted, 7.5)
    _words(axes, places[2] + DIM / 2, top + TOKENS + 0.45, "a row for each key", colours.muted, 7.5)
    _words(axes, places[3] + DIM / 2, top + TOKENS + 0.45, "for each query", colours.muted, 7.5)
    return figure


def one_head_scale(colours: Colours) -> Figure:
    """Largest of 64 weights, on the average over 400 queries, with and without the scale."""
    generator = torch.Generator().manual_seed(0)
    widths = [2**power for power in range(1, 11)]
    plain, scaled = zip(*(_peaks(width, generator) for width in widths), strict=True)
    figure = Figure(figsize=(6.5, 2.7), layout="constrained")
    axes = figure.subplots()
    _line(axes, widths, plain, colours.accent, "without: q·k", (240, 0.7))
    _line(axes, widths, scaled, colours.groups[0], "divided by √D", (240, 0.16))
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [f"{width:,}" for width in widths])
    axes.minorticks_off()
    axes.set_ylim(0, 1)
    axes.set_xlabel("width D of the head")
    axes.set_ylabel("largest of 64 weights, mean")
    quiet(axes, colours, grid="y")
    return figure


def _peaks(width: int, generator: torch.Generator) -> tuple[float, float]:
    query, key = (torch.randn(rows, width, generator=generator, dtype=torch.float64) for rows in (400, 64))
    scores = query @ key.T
    return tuple(float((scores * by).softmax(-1).max(-1).values.mean()) for by in (1.0, width**-0.5))  # type: ignore[return-value]


def _line(
    axes: Axes, x: Sequence[float], y: Sequence[float], colour: str, words: str, place: tuple[float, float]
) -> None:
    axes.plot(x, y, color=colour, linewidth=1.8, marker="o", markersize=3.5)
    axes.text(*place, words, color=colour, fontsize=9, ha="left", va="center")


FIGURES = {"one-head-map": one_head_map, "one-head-scale": one_head_scale}
