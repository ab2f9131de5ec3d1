"""The cache against the context, one line per layout, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.plan.compare import Comparison, Row, curve
from headwise.plan.errors import PlanError
from headwise.plan.units import bytes_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_comparison"]

SUFFIXES = (".png", ".svg", ".pdf")
# Told apart without colours too: each line ends in its own name.
COLOURS = ["#1a1d21", "#c2500a", "#1d5a86", "#5d8a3a", "#8a4f9e", "#b3892b", "#3a8f8a", "#a33b4a"]
TEXT, MUTED, GRID = "#1a1d21", "#5b616a", "#e2e2dc"
# Without a fixed salt and with a date, an SVG of the same plan would differ from run to run.
STYLE: dict[Any, Any] = {"font.size": 9, "svg.hashsalt": "headwise", "svg.fonttype": "path", "text.parse_math": False}


def draw_comparison(comparison: Comparison, path: Path) -> Path:
    """Draw the cache of every layout over ten octaves, up to the context that was asked for, and return ``path``.

    Raises:
        PlanError: ``path`` doesn't end in .png, .svg or .pdf, or can't be written, or there is no cache to draw.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise PlanError(f"--figure: expected a file that ends in {', '.join(SUFFIXES)}, got {path.name[:60]}")
    last = _contexts(comparison.rows[0].plan.request.context)[-1:]
    if not any(map(any, (curve(row.plan, last) for row in comparison.rows))):
        kind = comparison.rows[0].plan.architecture.model_type
        raise PlanError(f"--figure: expected a model that keeps a cache, {kind} has none to draw")
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        picture = Figure(figsize=(7.2, 4.2), layout="constrained")
        _draw(picture.add_subplot(), comparison)
        metadata = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[path.suffix.lower()]
        try:
            picture.savefig(path, dpi=160, metadata=metadata, facecolor="white")
        except OSError as error:
            raise PlanError(f"--figure: can't write {path} ({error.strerror}); name another file") from error
    return path


def _draw(axes: Axes, comparison: Comparison) -> None:
    own = comparison.rows[0].plan
    contexts = _contexts(own.request.context)
    ends = []
    for number, row in enumerate(comparison.rows):
        sizes = curve(row.plan, contexts)
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(contexts, sizes, color=colour, linewidth=2.2 if number == 0 else 1.5, zorder=3 if number else 2)
        ends.append((sizes[-1], row, colour))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    if own.budget is not None and own.room is not None and own.room > 0:
        axes.axhline(own.room, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            f"room: {bytes_text(own.room)}", (contexts[0], own.room), (2, 3), textcoords="offset points",
            color=MUTED, fontsize=8,
        )  # fmt: skip
    _label_ends(axes, contexts[-1], ends)
    _label_axes(axes, comparison)


def _contexts(last: int) -> list[int]:
    """Four points an octave, so that the corner of a window is seen where it is."""
    last = max(last, 2)
    first = max(last >> 10, 1).bit_length() - 1
    points = {round(2 ** (step / 4)) for step in range(4 * first, 4 * last.bit_length())}
    return sorted({*(point for point in points if point < last), last})


def _label_ends(axes: Axes, last: int, ends: list[tuple[int, Row, str]]) -> None:
    """Names at the ends of the lines, moved apart where lines end together."""
    axes.margins(x=0.01)
    low, high = axes.get_ylim()
    place = axes.transData.transform
    height, gap = place((last, high))[1] - place((last, low))[1], 13.0
    taken = float("-inf")
    for size, row, colour in sorted(ends, key=lambda end: (end[0], end[1].layout)):
        at = max(place((last, max(size, low)))[1], taken + gap * height / 260)
        taken = at
        shift = (at - place((last, max(size, low)))[1]) * 72 / axes.figure.dpi
        axes.annotate(
            f"{row.layout}  {bytes_text(size)}", (last, max(size, low)), (6, shift), textcoords="offset points",
            color=colour, fontsize=8, va="center", annotation_clip=False,
        )  # fmt: skip


def _label_axes(axes: Axes, comparison: Comparison) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=99))
    own = comparison.rows[0].plan
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tokens(round(value))))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(round(value)).replace(".00", "")))
    sequences = "one sequence" if own.request.batch == 1 else f"{own.request.batch:,} sequences"
    axes.set_xlabel("tokens of context", color=MUTED)
    axes.set_title(
        f"{own.architecture.model_type}: cache of {sequences}, {own.request.storage.name}, {own.runtime.name}",
        fontsize=10, loc="left", color=TEXT,
    )  # fmt: skip
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED, length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def _tokens(count: int) -> str:
    return f"{count >> 20}M" if count >= 1 << 20 else f"{count >> 10}K" if count >= 1 << 10 else str(count)
