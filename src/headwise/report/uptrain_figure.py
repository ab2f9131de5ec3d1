"""The curve of a training as one static picture: held-out loss and divergence over the tokens that were trained on.

The same record always gives the same file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.report.picture import CHANCE, FINDING, MUTED, ORIGINAL, TEXT, make_quiet, write_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_training"]


def draw_training(record: Mapping[str, Any], path: Path) -> Path:
    """Draw the record of :class:`headwise.surgery.uptrain.Uptrained` into ``path`` and return it.

    Raises:
        UserError: ``path`` doesn't end in .png, .svg or .pdf, or can't be written.
    """
    return write_picture(lambda: _compose(record), path, "figure")


def _compose(record: Mapping[str, Any]) -> Figure:
    """A figure of its own, not pyplot's: no window, no state shared with the caller's figures."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(8.6, 3.4), layout="constrained")
    losses, divergences = picture.subplots(1, 2, width_ratios=[5, 4])
    _draw_losses(losses, record)
    _draw_curve(divergences, record["curve"], "divergence", FINDING, "student")
    divergences.set_ylim(bottom=0)
    for axes, title in ((losses, "Loss on held-out documents"), (divergences, "Divergence from the teacher")):
        axes.set_title(f"{title} (nats per token)", fontsize=9, loc="left", color=TEXT)
        axes.set_xlabel("tokens trained on")
        _count_tokens(axes)
        make_quiet(axes, "y")
    settings = record["settings"]
    rows = f"{settings['params']} weights, loss {settings['loss']}, rate {settings['rate']:g}"
    name = f"{record['student']['name']}, trained against {record['teacher']['name']}"
    picture.suptitle(f"{name}: {rows}", x=0.01, ha="left", fontsize=10, fontweight="bold", color=TEXT)
    return picture


def _draw_losses(axes: Axes, record: Mapping[str, Any]) -> None:
    _draw_curve(axes, record["curve"], "loss", FINDING, "student")
    if "control" in record:
        _draw_curve(axes, record["control"]["curve"], "loss", ORIGINAL, "original, trained on the same text")
    axes.axhline(
        record["loss"]["teacher"]["value"], color=CHANCE, linewidth=1.2, linestyle=(0, (4, 3)), label="teacher"
    )
    axes.margins(y=0.1)
    share = record["share_closed"]
    axes.annotate(
        _share_told(share), (0.98, 0.97), xycoords="axes fraction", ha="right", va="top", fontsize=8, color=MUTED
    )
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, frameon=False, fontsize=8)


def _share_told(share: Mapping[str, Any]) -> str:
    if share["value"] is None:
        return str(share["reason"]).partition(":")[0]
    interval = "" if share["low"] is None else f" ({share['low']:.0%} to {share['high']:.0%})"
    return f"gap closed: {share['value']:.0%}{interval}"


def _draw_curve(axes: Axes, curve: Sequence[Mapping[str, Any]], kind: str, colour: str, label: str) -> None:
    """Means, with the interval over documents as a band where there is one."""
    tokens = [point["tokens"] for point in curve]
    axes.plot(tokens, [point[kind]["value"] for point in curve], color=colour, marker="o", markersize=3, label=label)
    bounds = [(point[kind]["low"], point[kind]["high"]) for point in curve]
    if all(low is not None for low, _ in bounds):
        low, high = zip(*bounds, strict=True)
        axes.fill_between(tokens, low, high, color=colour, alpha=0.15, linewidth=0)


def _count_tokens(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
