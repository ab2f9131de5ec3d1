"""What the figures of the documentation share: colours for light and dark pages, a plain frame, how one is saved."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["DARK", "LIGHT", "Colours", "Draw", "quiet", "save"]


@dataclass(frozen=True)
class Colours:
    """The colours of one kind of page; a figure's background is that of the page."""

    text: str  # words that are read
    muted: str  # numbers and names of axes
    line: str  # grids and frames
    none: str  # a cell that holds nothing, a masked one for instance
    amounts: tuple[str, ...]  # from little to much, five steps
    groups: tuple[str, ...]  # of equal rank: heads, groups
    accent: str  # what the caption speaks of


LIGHT = Colours(
    text="#1a1d21", muted="#5b616a", line="#d5d5cf", none="#ecece8",
    amounts=("#d3e4e6", "#a3cbd7", "#68a8c4", "#3681a8", "#1d5a86"),
    groups=("#1d5a86", "#c2500a", "#5d7d2e", "#7a4a8c", "#a3820f", "#3f8f86"), accent="#c2500a",
)  # fmt: skip
DARK = Colours(
    text="#e6e7ea", muted="#a9adb8", line="#454956", none="#2f323d",
    amounts=("#1f4257", "#2b6788", "#3c8fb9", "#74b9d8", "#c0e2ef"),
    groups=("#74b9d8", "#f08a45", "#a8c76a", "#c79ad6", "#dcc04f", "#79c9bf"), accent="#f08a45",
)  # fmt: skip

Draw = Callable[[Colours], Figure]  # one figure, in the colours given
# A fixed salt and no date: the same figure always gives the same file. Text is drawn, since readers have other fonts.
_STYLE: dict[Any, Any] = {"font.size": 9, "svg.hashsalt": "headwise", "svg.fonttype": "path", "text.parse_math": False}


def quiet(axes: Axes, colours: Colours, grid: str | None = None) -> None:
    """Numbers and data, no frame; ``grid`` is ``"x"``, ``"y"``, ``"both"`` or None."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    if grid is not None:
        axes.grid(axis=grid, color=colours.line, linewidth=0.6)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=8, colors=colours.muted)
    axes.title.set(color=colours.text, fontsize=9)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(color=colours.muted, fontsize=8)


def save(draw: Draw, name: str, folder: Path) -> list[Path]:
    """Draw ``name.svg`` for light pages and ``name-dark.svg`` for dark ones; return both paths."""
    paths = []
    for colours, ending in ((LIGHT, ""), (DARK, "-dark")):
        path = folder / f"{name}{ending}.svg"
        with matplotlib.rc_context({**_STYLE, "text.color": colours.text}):
            draw(colours).savefig(path, metadata={"Date": None}, transparent=True, bbox_inches="tight")
        lines = path.read_text(encoding="utf-8").splitlines()  # matplotlib leaves spaces at the ends of lines
        path.write_text(re.sub(r"[ \t]+$", "", "\n".join(lines) + "\n", flags=re.MULTILINE), encoding="utf-8")
        paths.append(path)
    return paths
