"""Figures of the page on masks: three ways to hide a key, and where the triangle lies."""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from one_head import board, cells
from style import Colours
from torch import Tensor

__all__ = ["FIGURES"]

TOKENS = 4
QUERIES, KEYS = 3, 5


def masks_fill(colours: Colours) -> Figure:
    """The page's scores (seed 42) with −∞, with score 0, and with weight 0 above the diagonal."""
    torch.manual_seed(42)
    scores = torch.randn(TOKENS, TOKENS)
    future = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    fills = {
        "score −∞": scores.masked_fill(future, -torch.inf).softmax(-1),
        "score 0": scores.masked_fill(future, 0.0).softmax(-1),
        "weight 0, after the softmax": scores.softmax(-1).masked_fill(future, 0.0),
    }
    figure, axes = board(21.6, 6.5, 7.0)
    for number, (title, weights) in enumerate(fills.items()):
        left, leaks = 2.5 + number * 6.6, title == "score 0"
        wrong = number > 0
        axes.text(left + 2, 0.4, title, color=colours.accent if wrong else colours.text, ha="center", va="center")
        cells(axes, colours, weights, (left, 1.5), hidden=None if leaks else future)
        if leaks:
            _mark(axes, colours, future, (left, 1.5))
        _sums(axes, colours, weights, left + TOKENS, 1.5)
        axes.text(left + 2, 5.95, _verdict(number), color=colours.muted, fontsize=8, ha="center", va="center")
        for token in range(TOKENS):
            axes.text(left + token + 0.5, 1.15, str(token), color=colours.muted, fontsize=7.5, ha="center", va="center")
            row = f"query {token}" if number == 0 else str(token)
            axes.text(left - 0.25, 2.02 + token, row, color=colours.muted, fontsize=7.5, ha="right", va="center")
    return figure


def _verdict(number: int) -> str:
    return ("seen keys share all the mass", "hidden keys are read", "rows fall short of 1")[number]


def _mark(axes: Axes, colours: Colours, table: Tensor, corner: tuple[float, float]) -> None:
    for row, column in table.nonzero().tolist():
        place = (corner[0] + column + 0.06, corner[1] + row + 0.06)
        axes.add_patch(Rectangle(place, 0.88, 0.88, fill=False, edgecolor=colours.accent, linewidth=1.5))


def _sums(axes: Axes, colours: Colours, weights: Tensor, left: float, top: float) -> None:
    axes.text(left + 0.6, top - 0.35, "sum", color=colours.muted, fontsize=7.5, ha="center", va="center")
    for row, total in enumerate(weights.sum(-1).tolist()):
        short = total < 0.995
        colour, weight = (colours.accent, "bold") if short else (colours.muted, "normal")
        axes.text(
            left + 0.6, top + row + 0.52, f"{total:.2f}", color=colour, fontsize=7.5, weight=weight, ha="center",
            va="center",
        )  # fmt: skip


def masks_alignment(colours: Colours) -> Figure:
    """Three queries over five keys: lower right, the same with a window, and upper left."""
    query = torch.arange(QUERIES)[:, None]
    key = torch.arange(KEYS)[None]
    own = query + KEYS - QUERIES
    tables = {
        "lower right": (key <= own, own),
        "lower right, window (1, 0)": ((key <= own) & (key >= own - 1), own),
        "upper left": (key <= query, query),
    }
    figure, axes = board(23.2, 6.0, 6.9)
    for number, (title, (seen, places)) in enumerate(tables.items()):
        left, wrong = 2.6 + number * 7.1, title == "upper left"
        axes.text(left + 2.5, 0.4, title, color=colours.accent if wrong else colours.text, ha="center", va="center")
        for row in range(QUERIES):
            if number == 0:
                axes.text(
                    left - 0.25, 2.0 + row, f"query {row}", color=colours.muted, fontsize=8, ha="right", va="center"
                )
            for column in range(KEYS):
                _cell(axes, colours, seen, places, (row, column), (left, 1.5))
        for column in range(KEYS):
            axes.text(left + column + 0.5, 1.15, str(column), color=colours.muted, fontsize=8, ha="center", va="center")
        axes.text(left + 1, 4.95, "held", color=colours.muted, fontsize=8, ha="center", va="center")
        axes.text(left + 3.5, 4.95, "new", color=colours.muted, fontsize=8, ha="center", va="center")
        for start, stop in ((0, KEYS - QUERIES), (KEYS - QUERIES, KEYS)):
            axes.plot([left + start + 0.12, left + stop - 0.12], [4.62, 4.62], color=colours.muted, linewidth=0.8)
    words = "filled: may be read    ●: where the query takes itself to stand"
    axes.text(2.6, 5.65, words, color=colours.muted, fontsize=8, ha="left", va="center")
    return figure


def _cell(
    axes: Axes, colours: Colours, seen: Tensor, places: Tensor, at: tuple[int, int], corner: tuple[float, float]
) -> None:
    row, column = at
    x, y = corner[0] + column, corner[1] + row
    fill = colours.amounts[2] if seen[row, column] else colours.none
    axes.add_patch(Rectangle((x + 0.04, y + 0.04), 0.92, 0.92, color=fill, linewidth=0))
    if int(places[row, 0]) == column:
        axes.plot([x + 0.5], [y + 0.5], marker="o", markersize=5, color=colours.text, markeredgewidth=0)


FIGURES = {"masks-fill": masks_fill, "masks-alignment": masks_alignment}
