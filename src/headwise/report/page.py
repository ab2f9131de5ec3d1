"""Assembles the page: a template, one style sheet, plotly, our scripts and the data, all inside one HTML file.

The page opens from a disk, an e-mail or an archive, so it may load nothing. Its content policy says so to the
browser: no request at all, and no script but the two whose hashes it names. Text from a study is never markup: it
travels as JSON and enters the document through `textContent` only.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import tempfile
from importlib import resources
from pathlib import Path

from headwise.errors import UserError
from headwise.report.data import page_data, to_script_json
from headwise.report.folder import read_study

__all__ = ["render", "write_page"]

STYLES = ("base.css", "frame.css", "parts.css", "media.css")
# The scripts share one scope and are read in this order.
SCRIPTS = (
    "core.js",
    "measures.js",
    "colour.js",
    "export.js",
    "tooltip.js",
    "summary.js",
    "axes.js",
    "grid-drawing.js",
    "grid.js",
    "scatter.js",
    "example.js",
    "ranges.js",
    "card.js",
    "table.js",
    "effects.js",
    "effects-chart.js",
    "method.js",
    "main.js",
)


def write_page(folder: Path, out: Path | None = None) -> Path:
    """Write the page of the study in `folder` to `out`, by default `folder/report.html`.

    Raises:
        UserError: the folder isn't a finished study, or `out` can't be written.
    """
    page = render(folder)
    out = folder / "report.html" if out is None else out
    try:
        _replace(out, page)
    except OSError as error:
        raise UserError(f"report: can't write {out} ({error.strerror}); name another file with --out") from error
    return out


def render(folder: Path) -> str:
    """The whole page as text.

    Raises:
        UserError: the folder isn't a finished study.
    """
    data = to_script_json(page_data(read_study(folder)))
    plotly, scripts = _plotly(), _scripts()
    parts = {
        "policy": _policy(plotly, scripts),
        "style": "\n".join(_asset(name) for name in STYLES),
        "data": data,
        "plotly": plotly,
        "scripts": scripts,
    }
    # One pass over the template, so that nothing inside a part is taken for a placeholder.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (resources.files("headwise.report") / "assets" / name).read_text(encoding="utf-8")


def _scripts() -> str:
    return _checked('(() => {\n"use strict";\n' + "\n".join(_asset(name) for name in SCRIPTS) + "\n})();")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return _checked(get_plotlyjs())


def _checked(script: str) -> str:
    """A script as a browser reads it, since its hash is taken of that: line ends are normalised, no early end tag."""
    script = script.replace("\r\n", "\n").replace("\r", "\n")
    if re.search(r"</script|<!--", script, re.IGNORECASE):
        # Inside a script both end or bend the element; escaping them here could change what the script means.
        raise RuntimeError("a script of the page holds an end tag or a comment start and can't be inlined")
    return script


def _policy(*scripts: str) -> str:
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _replace(out: Path, page: str) -> None:
    """Write beside the target and rename, so that a reader never sees half a page."""
    handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(page)
        os.chmod(name, 0o644)  # mkstemp's 0600 would keep a colleague from opening it
        os.replace(name, out)
    except BaseException:
        os.unlink(name)
        raise
