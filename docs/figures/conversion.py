"""Why heads are turned before they are merged, and what each step of a conversion saves."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from style import Colours, quiet

__all__ = ["FIGURES"]

Arrow = tuple[float, float]
KEYS: tuple[Arrow, ...] = ((0.95, 0.15), (-0.1, 0.9), (-0.7, -0.5))  # of three tokens
TURN = math.radians(130)
# Nats added by converting the demo model from 3 KV heads to 1, as measured for docs/reshape.md.
JUDGES = ("speeches", "help topics", "second copy")
MEASURED = {
    "mean": (6.02, 7.14, 13.1),
    "aligned, no refit": (2.56, 4.17, 11.9),
    "pca, no refit, no fit": (1.35, 3.10, 9.9),
    "pca, refit, no fit": (0.62, 2.72, 6.3),
    "pca, the default": (0.40, 2.48, 5.3),
}


def bases(colours: Colours) -> Figure:
    """Keys of three tokens as arrows: of two heads, their mean, and their mean in a common basis."""
    other = tuple(_turned(key, TURN) for key in KEYS)
    average = tuple(((a[0] + b[0]) / 2, (a[1] + b[1]) / 2) for a, b in zip(KEYS, other, strict=True))
    panels = (
        ("head 0\n", KEYS, colours.text),
        ("head 1:\nthe same, turned", other, colours.text),
        ("mean\nas they stand", average, colours.accent),
        ("turned back,\nthen the mean", KEYS, colours.text),
    )
    picture = Figure(figsize=(7.2, 2.2), layout="constrained")
    for axes, (title, arrows, colour) in zip(picture.subplots(1, 4), panels, strict=True):
        _arrows(axes, colours, arrows)
        axes.set_title(title, color=colour)
    return picture


def _turned(key: Arrow, angle: float) -> Arrow:
    x, y = key
    return x * math.cos(angle) - y * math.sin(angle), x * math.sin(angle) + y * math.cos(angle)


def _arrows(axes: Axes, colours: Colours, arrows: tuple[Arrow, ...]) -> None:
    for at in (axes.axhline, axes.axvline):
        at(0, color=colours.line, linewidth=0.8)
    for number, ((x, y), colour) in enumerate(zip(arrows, colours.groups, strict=False), start=1):
        style = {"arrowstyle": "-|>", "color": colour, "linewidth": 2, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (x, y), (0, 0), arrowprops=style)
        length = math.hypot(x, y)
        axes.text(x + 0.2 * x / length, y + 0.2 * y / length, f"{number}", color=colour, ha="center", va="center")
    axes.set_xlim(-1.25, 1.25)
    axes.set_ylim(-1.25, 1.25)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    quiet(axes, colours)
    axes.title.set_fontsize(8.5)


def methods(colours: Colours) -> Figure:
    """Bars: nats added by each method, on three kinds of text."""
    picture = Figure(figsize=(7.2, 2.7), layout="constrained")
    names = list(MEASURED)
    places = list(range(len(names)))
    shades = [colours.muted] * (len(names) - 1) + [colours.groups[0]]
    for column, (axes, judge) in enumerate(zip(picture.subplots(1, 3, sharey=True), JUDGES, strict=True)):
        values = [MEASURED[name][column] for name in names]
        axes.barh(places, values, height=0.62, color=shades)
        for place, value in zip(places, values, strict=True):
            axes.annotate(
                f"{value:.1f}" if column == 2 else f"{value:.2f}", (value, place), (4, 0), textcoords="offset points",
                va="center", fontsize=8, color=colours.text,
            )  # fmt: skip
        axes.set_title(judge)
        axes.set_xlim(0, 16.5)
        axes.set_xticks([0, 5, 10])
        axes.set_yticks(places, names)
        axes.set_xlabel("loss added (nats)")
        quiet(axes, colours)  # no grid: it would strike the numbers out
    picture.axes[0].invert_yaxis()  # shared by all
    return picture


FIGURES = {"conversion-bases": bases, "conversion-methods": methods}
