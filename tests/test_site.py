"""The site: every page is in its navigation, every link leads somewhere, and it is built without a warning."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
SETTINGS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
_hooks = importlib.util.spec_from_file_location("headwise_site_hooks", DOCS / "hooks" / "site.py")
assert _hooks is not None
assert _hooks.loader is not None
hooks = importlib.util.module_from_spec(_hooks)
_hooks.loader.exec_module(hooks)


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def test_every_page_is_in_the_navigation_once():
    navigation = SETTINGS.split("\nnav:\n")[1].split("\n\n")[0]
    assert sorted(re.findall(r": ([\w/-]+\.md)$", navigation, re.MULTILINE)) == PAGES
    assert len(PAGES) > 25


@pytest.mark.parametrize("page", [*(f"docs/{page}" for page in PAGES), "README.md", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(page):
    text = without_code((ROOT / page).read_text(encoding="utf-8"))
    for target in re.findall(r"\]\((?!\w+:)([^)#\s]+)", text):
        assert ((ROOT / page).parent / target).exists(), target


def test_nothing_is_fetched_from_elsewhere():
    assert "font: false" in SETTINGS
    assert not re.search(r"^\s*- https?:", SETTINGS, re.MULTILINE)
    own = [file.read_text(encoding="utf-8") for file in (DOCS / "assets").iterdir() if file.suffix in (".js", ".css")]
    assert own
    assert not [text for text in own if "http" in text]


@pytest.mark.parametrize(
    ("page", "markdown", "shown"),
    [
        ("claims/a.md", "[test_b](../../tests/c/test_d.py), e", "`tests/c/test_d.py::test_b`, e"),
        ("claims/a.md", "[f](../plan.md#g) [h](#i) [j](k.md)", "[f](../plan.md#g) [h](#i) [j](k.md)"),
        ("a.md", "[the readme](../README.md#b)", "the readme (`README.md`)"),
        ("a.md", "[`src/b.py`](../src/b.py)", "`src/b.py`"),
        ("a.md", "```\n[b](../c.py)\n```\n[b](../c.py)", "```\n[b](../c.py)\n```\nb (`c.py`)"),
    ],
)
def test_links_out_of_the_site_are_shown_as_paths(page, markdown, shown):
    assert hooks.without_ways_out(markdown, page) == shown


def test_numbers_side_by_side_are_no_link():
    assert hooks.without_pairs("yes [4] [5] [61] | no [7]") == "yes [4]&#32;[5]&#32;[61] | no [7]"


@pytest.mark.parametrize("place", ["heads.svg", "figures/heads.svg", "../lesson/figures/heads.svg"])
def test_a_figure_is_shown_as_the_one_that_fits_the_page(place, tmp_path):
    page = tmp_path / "explanations"
    page.mkdir()
    figure = page / place
    figure.parent.mkdir(parents=True, exist_ok=True)
    figure.with_name("heads-dark.svg").touch()
    dark = place.replace(".svg", "-dark.svg")
    shown = f"![two\nheads]({place}#only-light)![two\nheads]({dark}#only-dark)"
    assert hooks.with_dark_figures(f"a ![two\nheads]({place}) b", page) == f"a {shown} b"


def test_figures_without_a_dark_one_links_and_code_stay_as_they_are(tmp_path):
    (tmp_path / "a-dark.svg").touch()
    for same in ("![b](b.svg)", "![a](a.png)", "[a](a.svg)", "```\n![a](a.svg)\n```\n"):
        assert hooks.with_dark_figures(same, tmp_path) == same


def test_roles_of_docstrings_become_links():
    html = "see :func:<code>a.b</code> and :class:<code>~c.D</code>, not <code>e</code>"
    linked = "see {} and {}, not <code>e</code>"
    links = [f'<autoref optional identifier="{name}"><code>{name}</code></autoref>' for name in ("a.b", "c.D")]
    assert hooks.without_roles(html) == linked.format(*links)


@pytest.mark.parametrize(
    ("cell", "marked"),
    [
        ("<td>26 (40 %*)</td>", '<td class="number">26 (40 %*)</td>'),
        ('<td style="text-align: right;">−1.5</td>', '<td class="number" style="text-align: right;">−1.5</td>'),
        ("<td>1.35 (1.29 to 1.41)</td>", '<td class="range">1.35 (1.29 to 1.41)</td>'),
        ("<td>yes [4]</td>", "<td>yes [4]</td>"),
        (
            "<th>&lt;a&gt; <code>b</code> &lt;a&gt; &lt;a&gt;</th>",
            "<th>&lt;a&gt; <code>b</code> &lt;a&gt; &lt;a&gt;</th>",
        ),
        (f"<th>{'word ' * 6}</th>", f'<th class="long">{"word " * 6}</th>'),
        ('<td class="linenos">17</td>', '<td class="linenos">17</td>'),
    ],
)
def test_cells_of_tables_are_marked_by_what_they_hold(cell, marked):
    html = f"<table><tr><td>a</td>{cell}</tr></table>"
    assert hooks.with_kinds_of_cells(html) == html.replace(cell, marked)


@pytest.mark.slow
def test_it_is_built_without_a_warning_and_has_every_public_name(tmp_path):
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is installed by `make docs`")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    for page in PAGES:
        html = (tmp_path / page).with_suffix(".html").read_text(encoding="utf-8")
        assert not re.search(r'(src|href)="https?://[^"]*\.(js|css|woff2?)"', html), page
        assert ":func:" not in html
    for name in ("plan", "attention", "cache", "nn", "models", "study", "bench"):
        html = (tmp_path / "api" / f"{name}.html").read_text(encoding="utf-8")
        package = importlib.import_module(f"headwise.{name}")
        # Names of types that have no docstring are left out.
        offered = [
            each for each in package.__all__ if getattr(getattr(package, each), "__module__", "").startswith("headwise")
        ]
        assert not [each for each in offered if not re.search(rf'id="headwise\.{name}\.([\w.]+\.)?{each}"', html)]
