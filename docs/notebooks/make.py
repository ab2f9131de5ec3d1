"""Make the notebooks from the how-tos: `make notebooks`, or `python docs/notebooks/make.py [--out FOLDER]`.

The page is what is written; a notebook only follows from it, and the same page gives the same notebook to the byte.
Text becomes Markdown cells, Python becomes code cells with what the page shows as their output, a file with a title is
written by a cell, and a command of a console is run by one. Commands in plain blocks take long, so they stay text.
"""

from __future__ import annotations

import argparse
import posixpath
import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

__all__ = ["FOLDER", "NOTEBOOKS", "make", "notebook_of"]

FOLDER = Path(__file__).parent
NOTEBOOKS = ("find-induction-heads", "size-a-cache", "write-a-relation")  # how-tos that run in less than a minute
_PAGES = "how-to"  # beside the folder of the notebooks
_BLOCK = re.compile(r"^```(?P<language>\w*)(?: title=\"(?P<title>[\w./-]+)\")?\n(?P<text>.*?)^```\n", re.M | re.S)
_LINK = re.compile(r"(\]\()(?!\w+:|#)([^)\s]+)")
_COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


def notebook_of(page: str, name: str) -> NotebookNode:
    """The notebook of a page.

    Args:
        page: Markdown.
        name: of the page, without its ending.
    """
    origin = f"*Made from [this page](../{_PAGES}/{name}.md) by `make notebooks`: change the page, not the notebook.*"
    title, _, rest = page.partition("\n")
    cells = [new_markdown_cell(f"{title}\n\n{origin}"), *_cells(rest)]
    for place, cell in enumerate(cells):
        cell["id"] = f"cell-{place}"  # nbformat's own are random
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made = new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})
    nbformat.validate(made)
    return made


def _cells(page: str) -> list[NotebookNode]:
    cells: list[NotebookNode] = []
    text, at = "", 0  # text that has no cell yet, and up to where the page has been read
    for block in _BLOCK.finditer(page):
        text += _moved(page[at : block.start()])
        at = block.end()
        if block["language"] == "text" and not text.strip() and cells and cells[-1]["cell_type"] == "code":
            cells[-1]["outputs"] = _printed(block["text"])
        elif code := _code(block):
            cells += [*_text(text), *code]
            text = ""
        else:
            text += block[0]
    return cells + _text(text + _moved(page[at:]))


def _code(block: re.Match[str]) -> list[NotebookNode]:
    """The code cells that a block becomes; none if it stays text."""
    if block["title"]:
        source = f"%%writefile {block['title']}\n{block['text']}"
        return [_cell(source, f"Writing {block['title']}\n")]
    if block["language"] == "python":
        return [_cell(block["text"], "")]
    if block["language"] == "console":
        return [_cell(f"!{command}", output) for command, output in _COMMAND.findall(block["text"])]
    return []


def _cell(source: str, output: str) -> NotebookNode:
    return new_code_cell(source.rstrip("\n"), outputs=_printed(output))


def _printed(text: str) -> list[NotebookNode]:
    return [new_output("stream", name="stdout", text=text)] if text else []


def _text(text: str) -> list[NotebookNode]:
    return [new_markdown_cell(text.strip("\n"))] if text.strip() else []


def _moved(text: str) -> str:
    """Text whose links, which start from the page, start from the notebook."""

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(_PAGES, link[2]))
        return link[1] + posixpath.relpath(target, FOLDER.name)

    return _LINK.sub(moved, text)


def make(folder: Path = FOLDER) -> list[Path]:
    """Write all notebooks into ``folder`` and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in NOTEBOOKS:
        page = (FOLDER.parent / _PAGES / f"{name}.md").read_text(encoding="utf-8")
        paths.append(folder / f"{name}.ipynb")
        paths[-1].write_text(nbformat.writes(notebook_of(page, name)) + "\n", encoding="utf-8")
    return paths


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the notebooks of the documentation from its how-tos.")
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="FOLDER", help="where they are written")
    for each in make(parser.parse_args().out):
        print(each)
