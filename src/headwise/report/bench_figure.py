"""A comparison of layouts as one static picture: what was counted above, what was measured below.

Blue is headwise's own implementation, orange one that repeats keys and values. The same comparison always gives the
same file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.bench.layouts.result import Latency, LayoutComparison, Row
from headwise.plan.units import bytes_text, count_text
from headwise.report.picture import FINDING, MUTED, ORIGINAL, QUANTITY, TEXT, make_quiet, write_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["compose", "draw_layouts"]

_OWN, _REPEATED = ORIGINAL, FINDING
_PROJECTIONS = {
    "query": QUANTITY[6], "key": QUANTITY[4], "value": QUANTITY[3], "key value down": QUANTITY[5],
    "key value up": QUANTITY[1], "output": QUANTITY[2],
}  # fmt: skip
_APART = 0.2  # of a line, between headwise's own and the one that repeats


def draw_layouts(result: LayoutComparison, path: Path) -> Path:
    """Draw six panels into ``path`` and return it.

    Raises:
        UserError: ``path`` doesn't end in .png, .svg or .pdf, or can't be written.
    """
    return write_picture(lambda: compose(result), path, "bench")


def compose(result: LayoutComparison) -> Figure:
    """A figure of its own, not pyplot's: no window, no state shared with the caller's figures."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    lines = max(len(result.layouts), 3)
    picture = Figure(figsize=(11, 2.2 + 0.62 * lines), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
    panels = list(picture.subplots(2, 3).flat)
    first = result.rows[0].name
    _draw_parameters(panels[0], result)
    _draw_cache(panels[1], result)
    _draw_peaks(panels[2], result)
    _draw_ratios(panels[3], result, f"Prefill: time over {first}", lambda row: row.prefill)
    _draw_ratios(panels[4], result, f"A token: time over {first}", lambda row: row.decode)
    _draw_shares(panels[5], result)
    for index, panel in enumerate(panels):
        make_quiet(panel, "x")
        names = [row.spec.name for row in result.layouts] if index % 3 == 0 else [""] * len(result.layouts)
        panel.set_yticks(range(len(result.layouts)), names)
        panel.set_ylim(len(result.layouts) - 0.5, -0.5)
    load = result.load
    picture.suptitle(
        f"One attention layer of width {result.rows[0].spec.width:,}: batch {load.batch}, context {load.context:,}, "
        f"{load.dtype}",
        x=0.01, ha="left", fontsize=10, fontweight="bold", color=TEXT,
    )  # fmt: skip
    if any(row.repeats for row in result.rows):
        _name_implementations(picture)
    return picture


def _draw_parameters(panel: Axes, result: LayoutComparison) -> None:
    _title(panel, "Projection parameters")
    for line, row in enumerate(result.layouts):
        start = 0
        for name, count in row.cost.parameters.items():
            panel.barh(line, count, left=start, height=0.5, color=_PROJECTIONS[name], edgecolor="white", linewidth=0.6)
            start += count
        _say_beside(panel, start, line, count_text(start))
    named = {name: _PROJECTIONS[name] for row in result.layouts for name in row.cost.parameters}
    _legend(panel, [(name.replace("key value", "K V"), colour) for name, colour in named.items()])
    _room(panel, max(row.cost.parameters_total for row in result.layouts))


def _draw_cache(panel: Axes, result: LayoutComparison) -> None:
    _title(panel, "Cache, planned = allocated")
    for line, row in enumerate(result.layouts):
        panel.barh(line, row.allocated, height=0.5, color=_OWN)
        _say_beside(panel, row.allocated, line, bytes_text(row.allocated))
    _room(panel, max(row.allocated for row in result.layouts))


def _draw_peaks(panel: Axes, result: LayoutComparison) -> None:
    _title(panel, "Peak memory while decoding")
    peaks = [row.peak.decode_rise for row in result.rows if row.peak is not None]
    if not peaks:
        panel.text(0.5, 0.5, "not measured", transform=panel.transAxes, ha="center", color=MUTED, fontsize=8)
        panel.set_xticks([])
        return
    for line, row, shift, colour in _placed(result):
        assert row.peak is not None
        panel.barh(line + shift, row.peak.decode_rise, height=0.32, color=colour)
        _say_beside(panel, row.peak.decode_rise, line + shift, bytes_text(row.peak.decode_rise))
    _room(panel, max(peaks))


def _draw_ratios(panel: Axes, result: LayoutComparison, title: str, of: Callable[[Row], Latency]) -> None:
    _title(panel, title)
    for line, row, shift, colour in _placed(result):
        ratio = of(row).to_first
        spread = [[max(ratio.median - ratio.lower, 0)], [max(ratio.upper - ratio.median, 0)]]
        panel.errorbar(ratio.median, line + shift, xerr=spread, fmt="D", color=colour, markersize=4, capsize=2, lw=1.2)
    panel.axvline(1, color=TEXT, linewidth=0.8, zorder=1)
    panel.set_xlim(left=0)
    panel.set_xlabel("median paired ratio and quartiles; below 1 is faster")


def _draw_shares(panel: Axes, result: LayoutComparison) -> None:
    _title(panel, "Share of the roofline")
    if result.device is None:
        panel.text(0.5, 0.5, "not measured", transform=panel.transAxes, ha="center", color=MUTED, fontsize=8)
        panel.set_xticks([])
        return
    shares = [(row.decode.share or 0, row.prefill.share or 0) for row in result.layouts]
    for line, (decode, prefill) in enumerate(shares):
        panel.plot(decode, line - _APART / 2, "D", color=_OWN, markersize=5, clip_on=False)
        panel.plot(prefill, line + _APART / 2, "o", color=_OWN, markersize=6, markerfacecolor="white", clip_on=False)
    panel.set_xlim(0, 1.08 * max(1.0, *(share for pair in shares for share in pair)))
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    panel.set_xlabel("least time over median; filled: a token, open: prefill")
    panel.axvline(1, color=TEXT, linewidth=0.8, zorder=1)


def _placed(result: LayoutComparison) -> list[tuple[int, Row, float, str]]:
    """Every row with its line, how far it lies off it, and its colour."""
    placed = []
    for line, own in enumerate(result.layouts):
        repeated = result.repeated(own)
        placed.append((line, own, 0.0 if repeated is None else -_APART, _OWN))
        if repeated is not None:
            placed.append((line, repeated, _APART, _REPEATED))
    return placed


def _name_implementations(picture: Figure) -> None:
    """One legend beside the title: the two colours are those of several panels, whatever was measured."""
    from matplotlib.patches import Patch

    handles = [Patch(color=_OWN, label="headwise"), Patch(color=_REPEATED, label="K and V repeated")]
    picture.legend(
        handles=handles, loc="outside upper right", ncols=2, fontsize=8, frameon=False, labelcolor=MUTED,
        handlelength=0.9, columnspacing=1.0, handletextpad=0.4,
    )  # fmt: skip


def _legend(panel: Axes, entries: list[tuple[str, str]]) -> None:
    """Below the panel, where no bar can lie."""
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=name) for name, colour in entries]
    panel.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(-0.02, -0.02), ncols=3, fontsize=7, frameon=False,
        labelcolor=MUTED, handlelength=0.9, columnspacing=1.0, handletextpad=0.4,
    )  # fmt: skip


def _say_beside(panel: Axes, value: float, line: float, text: str) -> None:
    panel.annotate(text, (value, line), (4, 0), textcoords="offset points", va="center", color=MUTED, fontsize=7.5)


def _room(panel: Axes, most: float) -> None:
    """For the words beside the longest bar."""
    panel.set_xlim(0, 1.35 * max(most, 1))
    panel.set_xticks([])


def _title(panel: Axes, text: str) -> None:
    panel.set_title(text, fontsize=9, loc="left", color=TEXT)
