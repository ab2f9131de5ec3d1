"""What all static pictures share: colours, a plain style, and how a picture becomes a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headwise.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "CHANCE", "FINDING", "LINE", "MUTED", "ORIGINAL", "QUANTITY", "STYLE", "TEXT",
    "check_picture", "make_quiet", "write_picture",
]  # fmt: skip

SUFFIXES = (".png", ".svg", ".pdf")
QUANTITY = ["#f3f4f1", "#d3e4e6", "#a3cbd7", "#68a8c4", "#3681a8", "#1d5a86", "#123a5f"]
ORIGINAL, FINDING, CHANCE = QUANTITY[5], "#c2500a", "#7d828a"
TEXT, MUTED, LINE = "#1a1d21", "#5b616a", "#e2e2dc"
# Without a fixed salt and with a date, an SVG of the same data would differ from run to run.
STYLE: dict[Any, Any] = {"font.size": 9, "svg.hashsalt": "headwise", "svg.fonttype": "path", "text.parse_math": False}
_UNDATED: dict[str, dict[str, None]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def check_picture(path: Path, who: str) -> None:
    """Refuse a name that tells no format.

    Args:
        path: of the picture.
        who: the command or option that it was given to, for the message.

    Raises:
        UserError: ``path`` doesn't end in .png, .svg or .pdf.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{who}: expected a file that ends in {', '.join(SUFFIXES)}, got {path.name or path}")


def write_picture(compose: Callable[[], Figure], path: Path, who: str) -> Path:
    """Compose a picture and write it into ``path``; the same picture always gives the same file.

    Args:
        compose: gives a figure of its own, not pyplot's: no window, no state shared with the caller's figures.
        path: ends in .png, .svg or .pdf.
        who: as for :func:`check_picture`.

    Raises:
        UserError: ``path`` ends otherwise, or can't be written.
    """
    check_picture(path, who)
    import matplotlib

    with matplotlib.rc_context(STYLE):
        picture = compose()
        try:
            picture.savefig(path, dpi=160, metadata=_UNDATED[path.suffix.lower()], facecolor="white")
        except OSError as error:
            raise UserError(f"{who}: can't write {path} ({error.strerror}); name another file") from error
    return path


def make_quiet(
    axes: Axes, grid: Literal["both", "x", "y"] | None = "both", *, muted: str = MUTED, line: str = LINE
) -> None:
    """Numbers and data, no frame; ``muted`` and ``line`` are the colours of numbers and of the grid."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    if grid:
        axes.grid(axis=grid, color=line, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=8, colors=muted)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(color=muted, fontsize=8)
