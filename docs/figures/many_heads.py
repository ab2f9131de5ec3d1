"""Figures of the page on many heads: the output as a sum over heads, and a task that needs more than one."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from one_head import board
from style import Colours, quiet

__all__ = ["FIGURES"]

HEADS, DIM, QUERIES, EMBED = 3, 2, 4, 6
# docs/experiments.md, "heads": ten seeds, held-out loss in nats with its 95 % interval.
LOSSES = {
    "four values asked for": {1: (1.400, 1.362, 1.446), 4: (0.078, 0.015, 0.148)},
    "one value asked for": {1: (0.000, 0.000, 0.000), 4: (0.000, 0.000, 0.000)},
}
WITHOUT_ORDER = 1.140


def _grid(
    axes: Axes, colour: str, corner: tuple[float, float], columns: int, rows: int, faint: bool = False
) -> tuple[float, float]:
    """A table of equal squares; returns its middle."""
    x, y = corner
    for column in range(columns):
        for row in range(rows):
            place = (x + column + 0.05, y + row + 0.05)
            axes.add_patch(Rectangle(place, 0.9, 0.9, color=colour, alpha=0.6 if faint else 1.0, linewidth=0))
    return x + columns / 2, y + rows / 2


def _say(axes: Axes, x: float, y: float, text: str, colour: str, size: float = 9) -> None:
    axes.text(x, y, text, color=colour, fontsize=size, ha="center", va="center")


def many_heads_blocks(colours: Colours) -> Figure:
    """Concatenated heads times W_O above, the same as a sum over heads below."""
    figure, axes = board(35.6, 19.2, 6.9)
    top, shift = 1.9, 7.6
    for head in range(HEADS):
        colour = colours.groups[head]
        x, _ = _grid(axes, colour, (shift + head * DIM, top + 1), DIM, QUERIES)
        _say(axes, x, top + 0.45, f"Y{'₀₁₂'[head]}", colour)
        _, y = _grid(axes, colour, (shift + 7.6, top + head * DIM), EMBED, DIM, faint=True)
        _say(axes, shift + 14.8, y, f"W{'₀₁₂'[head]}", colour)
    _say(axes, shift + 3, 0.7, "heads side by side", colours.text)
    _say(axes, shift + 10.6, 0.7, "W_O", colours.text)
    _say(axes, shift + 6.8, top + 3, "×", colours.muted, 12)
    _say(axes, shift + 16.6, top + 3, "=", colours.muted, 12)
    x, _ = _grid(axes, colours.muted, (shift + 17.6, top + 1), EMBED, QUERIES)
    _say(axes, x, 0.7, "output", colours.text)
    bottom, step = 12.0, 12.4
    _say(axes, 17.8, 10.3, "is the same as a sum over heads, each with its own block of W_O", colours.text)
    for head in range(HEADS):
        colour, left = colours.groups[head], 0.7 + head * step
        x, _ = _grid(axes, colour, (left, bottom), DIM, QUERIES)
        _say(axes, x, bottom + 4.9, f"Y{'₀₁₂'[head]}", colour)
        _say(axes, left + 2.75, bottom + 2, "×", colours.muted, 12)
        x, _ = _grid(axes, colour, (left + 3.5, bottom + 1), EMBED, DIM, faint=True)
        _say(axes, x, bottom + 4.9, f"W{'₀₁₂'[head]}", colour)
        if head < HEADS - 1:
            _say(axes, left + 10.7, bottom + 2, "+", colours.muted, 12)
    _say(axes, 17.8, 18.6, "rows are queries; a head has 2 columns, the model 6", colours.muted, 8)
    return figure


def many_heads_jobs(colours: Colours) -> Figure:
    """Held-out loss of one head and of four, on both tasks of the experiment."""
    figure = Figure(figsize=(6.5, 2.3), layout="constrained")
    axes = figure.subplots()
    names = []
    for row, (task, losses) in enumerate(LOSSES.items()):
        for step, (heads, (mean, low, high)) in enumerate(losses.items()):
            y, colour = row * 2.5 + step, colours.groups[step]
            axes.plot([low, high], [y, y], color=colour, linewidth=3, alpha=0.5, solid_capstyle="round")
            axes.plot([mean], [y], "o", color=colour, markersize=6)
            names.append((y, f"{task}, {heads} head{'s' * (heads > 1)}"))
            axes.text(high + 0.035, y, f"{mean:.3f}", color=colour, fontsize=8.5, ha="left", va="center")
    axes.axvline(WITHOUT_ORDER, color=colours.muted, linewidth=1, linestyle=(0, (4, 3)))
    words = "knows the four values,\nbut not their order"
    axes.text(WITHOUT_ORDER - 0.025, 3, words, color=colours.muted, fontsize=8, ha="right", va="center")
    axes.set_yticks([y for y, _ in names], [name for _, name in names])
    axes.set_ylim(4.1, -0.6)
    axes.set_xlim(-0.03, 1.62)
    axes.set_xlabel("loss on held-out rows in nats; ten seeds, mean and 95 % interval")
    quiet(axes, colours)
    axes.spines["bottom"].set(visible=True, color=colours.line)
    axes.tick_params(axis="y", labelsize=8.5, colors=colours.text)
    return figure


FIGURES = {"many-heads-blocks": many_heads_blocks, "many-heads-jobs": many_heads_jobs}
