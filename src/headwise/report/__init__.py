"""The page of a study: one file, no network, from the results of `headwise study`.

`write_report(folder)` writes `report.html`; `figure(folder, path)` draws the static picture of the same study.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["figure", "write_report"]


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the page of the study in `folder` and return its path (`folder/report.html` unless `out` is given).

    Raises:
        UserError: `folder` isn't a finished study, or the page can't be written there.
    """
    from headwise.report.page import write_page

    return write_page(Path(folder), Path(out) if out is not None else None)


def figure(folder: str | Path, path: str | Path) -> Path:
    """Draw the study in `folder` as one static picture (PNG, SVG or PDF, by the suffix of `path`).

    Raises:
        UserError: `folder` isn't a finished study, or the suffix isn't one of the three.
    """
    from headwise.report.static import draw

    return draw(Path(folder), Path(path))
