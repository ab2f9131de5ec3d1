"""What the figures of the documentation share: colours for light and dark pages, a plain frame, how one is saved."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headwise.report.picture import FINDING, MUTED, QUANTITY, STYLE, TEXT, make_quiet

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
    text=TEXT, muted=MUTED, line="#d5d5cf", none="#ecece8", amounts=tuple(QUANTITY[1:6]),
    groups=("#1d5a86", "#c2500a", "#5d7d2e", "#7a4a8c", "#a3820f", "#3f8f86"), accent=FINDING,
)  # fmt: skip
DARK = Colours(
    text="#e6e7ea", muted="#a9adb8", line="#454956", none="#2f323d",
    amounts=("#1f4257", "#2b6788", "#3c8fb9", "#74b9d8", "#c0e2ef"),
    groups=("#74b9d8", "#f08a45", "#a8c76a", "#c79ad6", "#dcc04f", "#79c9bf"), accent="#f08a45",
)  # fmt: skip

Draw = Callable[[Colours], Figure]  # one figure, in the colours given


def quiet(axes: Axes, colours: Colours, grid: Literal["both", "x", "y"] | None = None) -> None:
    """Numbers and data, no frame, in the colours of the page."""
    make_quiet(axes, grid, muted=colours.muted, line=colours.line)
    axes.title.set(color=colours.text, fontsize=9)


def save(draw: Draw, name: str, folder: Path) -> list[Path]:
    """Draw ``name.svg`` for light pages and ``name-dark.svg`` for dark ones; return both paths."""
    paths = []
    for colours, ending in ((LIGHT, ""), (DARK, "-dark")):
        path = folder / f"{name}{ending}.svg"
        with matplotlib.rc_context({**STYLE, "text.color": colours.text}):
            draw(colours).savefig(path, metadata={"Date": None}, transparent=True, bbox_inches="tight")
        lines = path.read_text(encoding="utf-8").splitlines()  # matplotlib leaves spaces at the ends of lines
        path.write_text(re.sub(r"[ \t]+$", "", "\n".join(lines) + "\n", flags=re.MULTILINE), encoding="utf-8")
        paths.append(path)
    return paths
