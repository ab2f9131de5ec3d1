"""What the site needs beyond Markdown: links out of ``docs/``, numbers in brackets, figures, tables, docstrings' roles.

The pages are read as plain files too, where a link such as ``../../tests/claims/test_masks.py`` works. The site has no
such files, so there the path is shown as it would be typed. They show a figure once; on the site a figure ``a.svg``
that has an ``a-dark.svg`` beside it is shown as the one that fits the page. Cells of tables are marked as numbers,
which do not break, and as long, which keep room for some words a line however many columns there are.
"""

from __future__ import annotations

import posixpath
import re
from html import unescape
from pathlib import Path
from typing import Any

__all__ = [
    "on_page_content",
    "on_page_markdown",
    "with_dark_figures",
    "with_kinds_of_cells",
    "without_pairs",
    "without_roles",
    "without_ways_out",
]

_LINK = re.compile(r"\[([^\]\[]+)\]\((\.\./[^)\s#]+)(#[^)\s]*)?\)")
_NUMBERS = re.compile(r"(\[\d+\]) (?=\[\d+\])")
_FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
_FIGURE = re.compile(r"!\[([^\]]*)\]\(([\w./-]+)\.svg\)")
_CELL = re.compile(r"<(t[hd])((?: style=\"[^\"]*\")?)>(.*?)</\1>", re.DOTALL)
_LONG, _SHORT = 28, 12  # characters
_ROLE = re.compile(r":(?:func|class|meth|mod|attr|data|exc):<code>~?([^<]+)</code>")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by mkdocs with every page before it is rendered."""
    folder = Path(page.file.abs_src_path).parent
    return with_dark_figures(without_pairs(without_ways_out(markdown, page.file.src_uri)), folder)


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs with every page once it is rendered."""
    return with_kinds_of_cells(without_roles(html))


def without_ways_out(markdown: str, page: str) -> str:
    """Markdown whose links to files outside of ``docs/`` are those paths as code; fenced blocks stay as they are.

    Args:
        markdown: the page.
        page: its path below ``docs/``.
    """
    pieces = _FENCE.split(markdown)
    pieces[::2] = [_LINK.sub(lambda link: _shown(link, page), piece) for piece in pieces[::2]]
    return "".join(pieces)


def _shown(link: re.Match[str], page: str) -> str:
    text, target = link[1], link[2]
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    if path.startswith("docs/"):
        return link[0]
    if text.startswith("test_"):  # as pytest takes it
        return f"`{path}::{text}`"
    return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}`)"


def without_pairs(markdown: str) -> str:
    """Markdown in which ``[4] [5]`` are two numbers, and not a link called 4 to a place called 5."""
    return _NUMBERS.sub(r"\1&#32;", markdown)


def with_dark_figures(markdown: str, folder: Path) -> str:
    """Markdown in which a figure with a dark one beside it is both, each only on pages of its kind.

    Fenced blocks stay as they are.

    Args:
        markdown: the page.
        folder: the folder that the page lies in.
    """

    def both(found: re.Match[str]) -> str:
        alt, path = found[1], found[2]
        if not (folder / f"{path}-dark.svg").exists():
            return found[0]
        return f"![{alt}]({path}.svg#only-light)![{alt}]({path}-dark.svg#only-dark)"

    pieces = _FENCE.split(markdown)
    pieces[::2] = [_FIGURE.sub(both, piece) for piece in pieces[::2]]
    return "".join(pieces)


def without_roles(html: str) -> str:
    """HTML in which :func:`name` and its like link to the name, if the site documents it."""
    return _ROLE.sub(r'<autoref optional identifier="\1"><code>\1</code></autoref>', html)


def with_kinds_of_cells(html: str) -> str:
    """HTML in which cells of tables have a class: ``long``, ``number``, or ``range`` for numbers with an interval."""
    return _CELL.sub(lambda cell: f"<{cell[1]}{_kind(cell[3])}{cell[2]}>{cell[3]}</{cell[1]}>", html)


def _kind(content: str) -> str:
    text = unescape(re.sub(r"<[^>]*>", "", content)).strip()
    if len(text) > _LONG:
        return ' class="long"'
    if not re.match(r"[+−-]?\d", text):
        return ""
    return ' class="number"' if len(text) <= _SHORT else ' class="range"'
