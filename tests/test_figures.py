"""The figures of the lesson: each is drawn by a script, is used by a page, and is what the script draws today."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
FOLDER = DOCS / "lesson" / "figures"
_NUMBER = re.compile(r"(?<![\w#-])-?\d+(?:\.\d+)?(?![\w])")  # no pieces of ids and colours


def _load():
    """The script as `make figures` runs it: with its own folder among the places of modules."""
    sys.path.insert(0, str(DOCS / "figures"))
    try:
        spec = importlib.util.spec_from_file_location("headwise_figures", DOCS / "figures" / "draw.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module, module.figures()
    finally:
        sys.path.remove(str(DOCS / "figures"))


DRAWING, FIGURES = _load()


def same(first: str, second: str) -> bool:
    """Whether two drawings are the same to a hundredth of a point; sums in another order move lines by less."""
    if _NUMBER.sub("0", first) != _NUMBER.sub("0", second):
        return False
    pairs = zip(_NUMBER.findall(first), _NUMBER.findall(second), strict=True)
    return all(one == other or abs(float(one) - float(other)) < 0.01 for one, other in pairs)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_what_its_script_draws(name, tmp_path):
    for path in DRAWING.save(FIGURES[name], name, tmp_path):
        assert same(path.read_text(encoding="utf-8"), (FOLDER / path.name).read_text(encoding="utf-8")), path.name


def test_every_figure_is_used_and_every_one_that_is_used_is_drawn():
    pages = [
        page.read_text(encoding="utf-8")
        for folder in ("lesson", "explanations")
        for page in (DOCS / folder).glob("*.md")
    ]
    used = {Path(target).stem for page in pages for target in re.findall(r"!\[[^\]]+\]\(([^)]+\.svg)\)", page)}
    assert used == FIGURES.keys()
    kept = {path.name for path in FOLDER.iterdir()}
    assert kept == {f"{name}{ending}.svg" for name in FIGURES for ending in ("", "-dark")}


@pytest.mark.parametrize(
    ("first", "second", "alike"),
    [
        ("M 1.001 2", "M 1.002 2", True),
        ("M 1.0 2", "M 1.1 2", False),
        ("M 1 2", "L 1 2", False),
        ("#1e2129", "#1e2128", False),
    ],
)
def test_what_counts_as_the_same(first, second, alike):
    assert same(first, second) is alike
