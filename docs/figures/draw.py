"""Draw the figures of the documentation: `make figures`, or `python docs/figures/draw.py [NAME …] [--out FOLDER]`.

A figure is a function from :class:`style.Colours` to a matplotlib figure, listed by its name in the ``FIGURES`` of a
module beside this one. Every figure is drawn twice, for light and for dark pages; the site shows the one that fits.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from style import Draw, save

__all__ = ["FOLDER", "draw", "figures"]

FOLDER = Path(__file__).parents[1] / "lesson" / "figures"
_HELPERS = {"style", "draw", "photograph"}


def figures() -> dict[str, Draw]:
    """Every figure by its name."""
    found: dict[str, Draw] = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem not in _HELPERS:
            listed = importlib.import_module(path.stem).FIGURES
            assert not found.keys() & listed.keys(), f"{path.name}: a name that another figure has"
            found |= listed
    return found


def draw(names: list[str], folder: Path) -> list[Path]:
    """Draw the figures of these names, or all if there is none, into ``folder``; return the paths."""
    known = figures()
    folder.mkdir(parents=True, exist_ok=True)
    return [path for name in names or known for path in save(known[name], name, folder)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw the figures of the documentation.")
    parser.add_argument("names", nargs="*", choices=[[], *figures()], metavar="NAME", help="a figure; without one, all")
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="FOLDER", help="where they are written")
    asked = parser.parse_args()
    for each in draw(asked.names, asked.out):
        print(each)
