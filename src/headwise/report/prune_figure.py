"""The curve of a pruning as one static picture: the loss against heads removed, and what single heads did not tell.

The same curve always gives the same file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headwise.report.picture import CHANCE, FINDING, MUTED, ORIGINAL, TEXT, make_quiet, write_picture
from headwise.surgery.pruning.curve import ORDERS, Curve

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_curve"]

_COLOURS = {"fixed": ORIGINAL, "greedy": FINDING, "random": CHANCE}
_MARKS = {"fixed": "o", "greedy": "D", "random": "s"}


def draw_curve(curve: Curve, path: Path, *, name: str) -> Path:
    """Draw two panels into ``path`` and return it.

    Args:
        curve: what was measured.
        path: ends in .png.
        name: of the model.

    Raises:
        UserError: it can't be written.
    """
    return write_picture(lambda: _compose(curve, name), path, "prune")


def _compose(curve: Curve, name: str) -> Figure:
    from matplotlib.figure import Figure

    picture = Figure(figsize=(8.6, 3.6), layout="constrained")
    joint, interaction = picture.subplots(1, 2)
    joint.set_title("Rise of the loss (nats)", fontsize=9, loc="left", color=TEXT)
    interaction.set_title("Beyond the sum of single removals (nats)", fontsize=9, loc="left", color=TEXT)
    for order in ORDERS:
        rows = curve.table[curve.table["order"] == order]
        if len(rows):
            _line(joint, rows, ("low", "delta", "high"), order)
            known = rows.dropna(subset="interaction")
            _line(interaction, known, ("interaction_low", "interaction", "interaction_high"), order)
    for axes in (joint, interaction):
        axes.axhline(0, color=MUTED, linewidth=0.8, zorder=1)
        axes.set_xlabel("query heads removed")
        axes.set_xlim(left=0)
        make_quiet(axes)
    _draw_legend(picture, curve)
    count = len(curve.documents)
    documents = f"{count} held-out document{'s' * (count != 1)}"
    title = f"{name}: {curve.unit}s removed from any layer\nzeroed without compensation, {documents}"
    picture.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold", color=TEXT)
    return picture


def _line(axes: Axes, rows: pd.DataFrame, columns: tuple[str, str, str], order: str) -> None:
    """From nothing removed on; the band is the interval."""
    if rows.empty:
        return
    removed, low, middle, high = (np.r_[0, rows[column].to_numpy(float)] for column in ("removed", *columns))
    axes.fill_between(removed, low, high, color=_COLOURS[order], alpha=0.14, linewidth=0)
    axes.plot(removed, middle, color=_COLOURS[order], marker=_MARKS[order], markersize=3.5, linewidth=1.4)


def _draw_legend(picture: Figure, curve: Curve) -> None:
    from matplotlib.lines import Line2D

    words = {
        "fixed": f"by {curve.score}, scored once",
        "greedy": f"by {curve.score}, scored anew at each point",
        "random": "random",
    }
    shown = [order for order in ORDERS if (curve.table["order"] == order).any()]
    marks = [Line2D([], [], color=_COLOURS[order], marker=_MARKS[order], markersize=4) for order in shown]
    picture.legend(
        marks, [words[order] for order in shown], loc="outside lower left", ncols=3, frameon=False, fontsize=8
    )
