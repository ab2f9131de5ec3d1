"""What an output can depend on, with a causal mask and without."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from style import Colours, quiet

__all__ = ["FIGURES"]

TOKENS, LAYERS = 5, 3


def reach(colours: Colours) -> Figure:
    """Three layers over five tokens: which inputs the outputs 0 and 3 are made of."""
    picture = Figure(figsize=(7.2, 2.6), layout="constrained")
    panels = (("causal, output 0", 0, True), ("causal, output 3", 3, True), ("no mask, output 0", 0, False))
    for axes, (title, output, causal) in zip(picture.subplots(1, 3, sharey=True), panels, strict=True):
        _stack(axes, colours, output, causal)
        axes.set_title(title)
        quiet(axes, colours)
    return picture


def _stack(axes: Axes, colours: Colours, output: int, causal: bool) -> None:
    used = {output}
    for layer in range(LAYERS, 0, -1):
        below = {key for query in used for key in range(TOKENS) if key <= query or not causal}
        for query in range(TOKENS):
            for key in range(TOKENS):
                if key <= query or not causal:
                    lit = query in used
                    colour, width = (colours.accent, 1.3) if lit else (colours.line, 0.7)
                    axes.plot([key, query], [layer - 1, layer], color=colour, linewidth=width, zorder=2 if lit else 1)
        _points(axes, colours, layer, used)
        used = below
    _points(axes, colours, 0, used)
    axes.set_xlim(-0.4, TOKENS - 0.6)
    axes.set_ylim(-0.3, LAYERS + 0.3)
    axes.set_xticks(range(TOKENS))
    axes.set_xlabel("position")
    axes.set_yticks(range(LAYERS + 1), ["tokens", *(f"layer {layer}" for layer in range(LAYERS))])


def _points(axes: Axes, colours: Colours, height: int, used: set[int]) -> None:
    for place in range(TOKENS):
        colour = colours.accent if place in used else colours.muted
        axes.plot([place], [height], marker="o", markersize=6, color=colour, zorder=3)


FIGURES = {"answers-reach": reach}
