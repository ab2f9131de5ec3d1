"""Figures of the page on shapes: the way from a width to heads and back, and the wrong way."""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from one_head import board, ink
from style import Colours
from torch import Tensor

__all__ = ["FIGURES"]

TOKENS, HEADS, DIM = 4, 3, 2


def split(colours: Colours) -> Figure:
    """What the rows of each head hold after both ways; the colour is the token, the number the token and the place."""
    places = torch.arange(TOKENS * HEADS * DIM)
    ways = {
        "reshape, then transpose": places.reshape(TOKENS, HEADS, DIM).transpose(0, 1),
        "reshape alone: same shape, other numbers": places.reshape(HEADS, TOKENS, DIM),
    }
    figure, axes = board(20.0, 7.2, 6.9)
    for number, (title, heads) in enumerate(ways.items()):
        left = 1.7 + number * 9.7
        axes.text(
            left + 3.9, 0.45, title, color=colours.accent if number else colours.text, fontsize=9, ha="center",
            va="center",
        )  # fmt: skip
        for head in range(HEADS):
            x = left + head * 2.7
            axes.text(x + 1, 1.35, f"head {head}", color=colours.muted, fontsize=8, ha="center", va="center")
            _rows(axes, colours, heads[head], (x, 1.8))
        if number == 0:
            for row in range(TOKENS):
                axes.text(
                    left - 0.25, 2.3 + row, f"row {row}", color=colours.muted, fontsize=8, ha="right", va="center"
                )
    for token in range(TOKENS):
        x = 5.3 + token * 2.8
        axes.add_patch(Rectangle((x, 6.45), 0.55, 0.55, color=colours.groups[token], linewidth=0))
        axes.text(x + 0.75, 6.74, f"token {token}", color=colours.muted, fontsize=8, ha="left", va="center")
    return figure


def _rows(axes: Axes, colours: Colours, numbers: Tensor, corner: tuple[float, float]) -> None:
    for row, places in enumerate(numbers.tolist()):
        for column, place in enumerate(places):
            token, inside = divmod(place, HEADS * DIM)
            x, y, fill = corner[0] + column, corner[1] + row, colours.groups[token]
            axes.add_patch(Rectangle((x + 0.04, y + 0.04), 0.92, 0.92, color=fill, linewidth=0))
            axes.text(x + 0.5, y + 0.52, f"{token}.{inside}", color=ink(fill), fontsize=7.5, ha="center", va="center")


def shapes_recipe(colours: Colours) -> Figure:
    """Every shape between the input and the output of a layer."""
    figure, axes = board(34.0, 15.2, 6.9)
    down = (("input", "B, L, E"), ("projected", "B, L, H·D"), ("cut", "B, L, H, D"), ("heads", "B, H, L, D"))
    steps = (("project", "q, k, v"), ("reshape", "no copy"), ("transpose", "axes 1, 2"))
    back = (("output", "B, L, E"), ("merged", "B, L, H·D"), ("turned back", "B, L, H, D"), ("mixtures", "B, H, L, D"))
    back_steps = (("W_O", ""), ("reshape", "may copy"), ("transpose", "axes 1, 2"))
    places = [3.3 + 9.1 * step for step in range(4)]
    for line, (boxes, names) in enumerate(((down, steps), (back, back_steps))):
        y = 1.9 + line * 11.0
        for number, ((title, shape), x) in enumerate(zip(boxes, places, strict=True)):
            _box(axes, colours, (x, y), title, shape, colours.groups[1 if number == 3 else 0])
        for (word, remark), x in zip(names, places, strict=False):
            _arrow(axes, colours, (x + 3.05, y), (x + 6.05, y), backwards=line == 1)
            axes.text(x + 4.55, y - 0.75, word, color=colours.text, fontsize=7.5, ha="center", va="center")
            axes.text(x + 4.55, y + 0.8, remark, color=colours.muted, fontsize=7.5, ha="center", va="center")
    x, y = places[3], 7.4
    _box(axes, colours, (x, y), "scores, weights", "B, H, L, S", colours.groups[1])
    _arrow(axes, colours, (x, 3.6), (x, 5.7))
    _arrow(axes, colours, (x, 9.1), (x, 11.2))
    axes.text(x - 0.5, 4.6, "query × key, for each head", color=colours.text, fontsize=7.5, ha="right", va="center")
    axes.text(x - 3.2, 7.1, "softmax over S", color=colours.text, fontsize=7.5, ha="right", va="center")
    axes.text(
        x - 3.2,
        8.0,
        "only in these products do positions meet",
        color=colours.muted,
        fontsize=7.5,
        ha="right",
        va="center",
    )
    axes.text(x - 0.5, 10.2, "weights × value", color=colours.text, fontsize=7.5, ha="right", va="center")
    return figure


def _box(axes: Axes, colours: Colours, middle: tuple[float, float], title: str, shape: str, colour: str) -> None:
    x, y = middle
    axes.add_patch(
        FancyBboxPatch((x - 2.8, y - 1.5), 5.6, 3.0, boxstyle="round,pad=0,rounding_size=0.35", facecolor="none",
                       edgecolor=colour, linewidth=1.4)
    )  # fmt: skip
    axes.text(x, y - 0.55, title, color=colours.muted, fontsize=7.5, ha="center", va="center")
    axes.text(x, y + 0.5, shape, color=colours.text, fontsize=8.5, ha="center", va="center")


def _arrow(
    axes: Axes, colours: Colours, start: tuple[float, float], end: tuple[float, float], backwards: bool = False
) -> None:
    if backwards:
        start, end = end, start
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": colours.muted, "linewidth": 1.1})


FIGURES = {"split": split, "shapes-recipe": shapes_recipe}
