"""An experiment as one static picture: its panels, drawn from what its runs were summed up to.

The same result always gives the same file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headwise.bench.experiments.experiment import Dots, Experiment, Lines, Panel, Plane
from headwise.bench.experiments.run import Result
from headwise.bench.experiments.summary import CurveRow, Row, Summary
from headwise.report.picture import CHANCE, FINDING, MUTED, ORIGINAL, TEXT, make_quiet, write_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_experiment"]

_COLOURS = (ORIGINAL, FINDING, "#3f7d3a", "#8a4f9e", "#7d828a", "#b08900", "#68a8c4", "#5b616a")
_MARKS = "oDs^vP"


def draw_experiment(result: Result, path: Path) -> Path:
    """Draw every panel of the experiment into ``path`` and return it.

    Raises:
        UserError: ``path`` doesn't end in .png, .svg or .pdf, or can't be written.
    """
    return write_picture(lambda: _compose(result), path, "experiment")


def _compose(result: Result) -> Figure:
    """A figure of its own, not pyplot's; two panels a row."""
    from matplotlib.figure import Figure

    panels = result.experiment.panels
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    heights = [
        max(_height(panel, result.summary) for panel in panels[row * columns : (row + 1) * columns])
        for row in range(rows)
    ]
    picture = Figure(figsize=(4.8 * columns, sum(heights) + 0.4), layout="constrained")
    grid = picture.add_gridspec(rows, columns, height_ratios=heights)
    for number, panel in enumerate(panels):
        axes = picture.add_subplot(grid[number // columns, number % columns])
        _draw(axes, panel, result)
    count = len(result.summary.seeds)
    title = f"{result.experiment.name}: mean and 95 % over {count} seeds"
    picture.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold", color=TEXT)
    return picture


def _height(panel: Panel, summary: Summary) -> float:
    """In inches: dots need a line each."""
    return 0.9 + 0.32 * max(len(list(_rows_of(panel, summary))), 2) if isinstance(panel, Dots) else 3.0


def _draw(axes: Axes, panel: Panel, result: Result) -> None:
    axes.set_title(panel.title, fontsize=9, loc="left", color=TEXT)
    if isinstance(panel, Dots):
        _draw_dots(axes, panel, result)
    elif isinstance(panel, Lines):
        _draw_lines(axes, panel, result.summary)
    else:
        _draw_plane(axes, panel, result)
    make_quiet(axes, "x" if isinstance(panel, Dots) else "both")


def _rows_of(panel: Dots, summary: Summary) -> Iterator[Row]:
    """Those of the panel, condition by condition."""
    conditions = panel.conditions or tuple(dict.fromkeys(row.condition for row in summary.rows))
    for condition in conditions:
        for measure in panel.measures:
            yield from (row for row in summary.rows if (row.condition, row.measure) == (condition, measure))


def _draw_dots(axes: Axes, panel: Dots, result: Result) -> None:
    rows = list(_rows_of(panel, result.summary))
    several = len(panel.measures) > 1
    for line, row in enumerate(rows):
        axes.plot(row.values, [line - 0.15] * len(row.values), "o", color=CHANCE, alpha=0.5, ms=3, mew=0)
        spread = _spread([row.mean], [row.low], [row.high])
        axes.errorbar([row.mean], [line + 0.1], xerr=spread, fmt="D", color=FINDING, ms=5, capsize=2, lw=1.2)
    alone = len({row.condition for row in rows}) == 1
    names = [row.title if alone else f"{row.condition}, {row.title}" if several else row.condition for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    if not several:
        axes.set_xlabel(result.experiment.measure(panel.measures[0]).title)


def _draw_lines(axes: Axes, panel: Lines, summary: Summary) -> None:
    shown = [
        row
        for row in summary.curves
        if row.curve in panel.curves and (panel.conditions is None or row.condition in panel.conditions)
    ]
    for row, colour in zip(shown, _cycle(), strict=False):
        axes.plot(row.x, row.mean, color=colour, lw=1.3, label=_curve_name(row, shown))
        axes.fill_between(row.x, row.low, row.high, color=colour, alpha=0.2, lw=0)
    if shown:
        axes.set(xlabel=shown[0].x_title, ylabel=shown[0].title if len({row.title for row in shown}) == 1 else "")
    if len(shown) > 1:
        axes.legend(frameon=False, fontsize=7, labelcolor=MUTED)


def _curve_name(row: CurveRow, shown: list[CurveRow]) -> str:
    """What tells this curve from the others."""
    parts = []
    if len({each.condition for each in shown}) > 1:
        parts.append(row.condition)
    if len({each.curve for each in shown}) > 1:
        parts.append(row.title)
    return ", ".join(parts)


def _draw_plane(axes: Axes, panel: Plane, result: Result) -> None:
    experiment, summary = result.experiment, result.summary
    conditions = panel.conditions or tuple(dict.fromkeys(row.condition for row in summary.rows))
    for number, (condition, colour) in enumerate(zip(conditions, _cycle(), strict=False)):
        x, y = (_find(summary, condition, key) for key in (panel.x, panel.y))
        if x is None or y is None:
            continue
        axes.errorbar(
            [x.mean], [y.mean], xerr=_spread([x.mean], [x.low], [x.high]), yerr=_spread([y.mean], [y.low], [y.high]),
            fmt=_MARKS[number // len(_COLOURS) % len(_MARKS)], color=colour, ms=5, capsize=2, lw=1.2, label=condition,
        )  # fmt: skip
    if panel.log_x:
        _scale_by_twos(
            axes, [row.mean for row in summary.rows if row.measure == panel.x and row.condition in conditions]
        )
    axes.set(xlabel=_title_of(experiment, panel.x), ylabel=_title_of(experiment, panel.y))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=7, labelcolor=MUTED)


def _scale_by_twos(axes: Axes, values: list[float]) -> None:
    """Ticks at powers of two, written out."""
    axes.set_xscale("log", base=2)
    known = [value for value in values if value > 0]
    if known:
        powers = range(int(np.floor(np.log2(min(known)))), int(np.ceil(np.log2(max(known)))) + 1)
        axes.set_xticks([2.0**power for power in powers], [f"{2.0**power:,.6g}" for power in powers])


def _title_of(experiment: Experiment, key: str) -> str:
    return experiment.measure(key).title


def _find(summary: Summary, condition: str, key: str) -> Row | None:
    return next((row for row in summary.rows if (row.condition, row.measure) == (condition, key)), None)


def _cycle() -> Iterator[str]:
    while True:
        yield from _COLOURS


def _spread(means: list[float], lows: list[float], highs: list[float]) -> np.ndarray:
    """Bars around means; NaN, the interval of a single seed, draws none."""
    mean, low, high = map(np.asarray, (means, lows, highs))
    return np.clip(np.stack([mean - low, high - mean]), 0, None)
