"""The pages of docs/claims hold what their tests decide: no entry without a test, no test without an entry."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGES = ROOT / "docs" / "claims"
INDEX = (PAGES / "index.md").read_text(encoding="utf-8")
VERDICTS = ("holds", "holds with conditions", "wrong", "not decided here")
PARTS = ("Claim", "Verdict", "Why", "Test")
THEMES = sorted(page.stem for page in PAGES.glob("*.md") if page.stem != "index")
LINK = re.compile(r"\[(test_\w+)\]\((\.\./\.\./tests/[\w/]+\.py)\)")
ROW = re.compile(r"\| \[([\w-]+)\]\((\w+)\.md#([\w-]+)\) \| ([^|]+) \| ([^|]+) \|")


class Entry(NamedTuple):
    page: str
    name: str
    parts: list[tuple[str, str]]

    def part(self, title: str) -> str:
        return dict(self.parts)[title]

    @property
    def links(self) -> list[tuple[str, str]]:
        return [(test, file) for test, file in LINK.findall(self.part("Test"))]


@cache
def entries() -> tuple[Entry, ...]:
    found = []
    for page in THEMES:
        _, *sections = (PAGES / f"{page}.md").read_text(encoding="utf-8").split("\n### ")
        for section in sections:
            name, _, body = section.partition("\n")
            pieces = re.split(r"^\*\*(\w+)\*\* ?", body, flags=re.MULTILINE)
            assert not pieces[0].strip(), f"{name}: text before its claim"
            parts = list(zip(pieces[1::2], (each.strip() for each in pieces[2::2]), strict=True))
            found.append(Entry(page, name, parts))
    return tuple(found)


@cache
def functions_of(file: Path) -> frozenset[str]:
    nodes = ast.parse(file.read_text(encoding="utf-8")).body
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))


def is_slow(file: Path, test: str) -> bool:
    """By its own mark or by that of its file."""
    nodes = ast.parse(file.read_text(encoding="utf-8")).body
    marks = [ast.unparse(node) for node in nodes if isinstance(node, ast.Assign)]
    marks = [mark for mark in marks if mark.startswith("pytestmark")]
    own = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == test]
    marks += [ast.unparse(mark) for node in own for mark in node.decorator_list]
    return any("mark.slow" in mark for mark in marks)


def test_every_page_has_a_heading_and_claims() -> None:
    assert len(THEMES) >= 9
    assert len(entries()) >= 75
    for page in THEMES:
        assert (PAGES / f"{page}.md").read_text(encoding="utf-8").startswith("# ")
        assert sum(entry.page == page for entry in entries()) >= 4


def test_ids_are_unique_and_can_be_linked() -> None:
    names = [entry.name for entry in entries()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in names)


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_an_entry_has_its_four_parts_and_its_tests_exist(entry: Entry) -> None:
    assert tuple(title for title, _ in entry.parts) == PARTS
    assert all(text for _, text in entry.parts)
    assert entry.part("Verdict") in VERDICTS
    assert re.match(r"\((the lesson|the chapter|both|the precise half|the other half)[^)]*\) \S", entry.part("Claim"))
    # The part is its links and the commas between them, so that none is overlooked for its spelling.
    assert not LINK.sub("", entry.part("Test")).replace(",", "").strip()
    assert entry.links
    for test, file in entry.links:
        path = (PAGES / file).resolve()
        assert path.is_file(), file
        assert test in functions_of(path), f"{file} has no {test}"
        assert not is_slow(path, test), f"{test} does not run in make test"
    if entry.part("Verdict") == "not decided here":
        assert "`headwise" in entry.part("Why"), "which command measures it?"
    if entry.part("Verdict") == "wrong":
        assert any("/claims/" in file for _, file in entry.links), "where is the counterexample?"


def test_every_test_of_a_page_is_linked_from_that_page() -> None:
    linked = {(page, test) for page, name, parts in entries() for test, file in LINK.findall(dict(parts)["Test"])}
    files = {file.stem.removeprefix("test_"): file for file in HERE.glob("test_*.py") if file != Path(__file__)}
    assert sorted(files) == THEMES
    unlinked = [
        (page, test) for page, file in files.items() for test in functions_of(file) if (page, test) not in linked
    ]
    assert not unlinked


def test_the_index_lists_every_claim_with_its_verdict_in_the_order_of_the_pages() -> None:
    rows = [match.groups() for match in map(ROW.fullmatch, INDEX.splitlines()) if match]
    assert all(name == anchor for name, _, anchor, _, _ in rows)
    assert sum(line.startswith("| [") for line in INDEX.splitlines()) == len(rows)
    told = [(page, name, verdict.strip()) for name, page, _, _, verdict in rows]
    assert sorted(told) == sorted((each.page, each.name, each.part("Verdict")) for each in entries())
    for page in THEMES:
        own = [name for place, name, _ in told if place == page]
        assert own == [each.name for each in entries() if each.page == page]


def test_the_index_counts_right() -> None:
    counted = {verdict: sum(each.part("Verdict") == verdict for each in entries()) for verdict in VERDICTS}
    told = {verdict: int(number) for number, verdict in re.findall(r"^- (\d+) \*([\w ]+)\*", INDEX, re.MULTILINE)}
    assert told == counted


def test_links_between_pages_lead_somewhere() -> None:
    for page in ("index", *THEMES):
        text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (PAGES / target).resolve().exists(), f"{page}: {target}"
        for name in re.findall(r"(?<!\*)\*([a-z0-9]+(?:-[a-z0-9]+)+)\*(?!\*)", text):
            assert name in {each.name for each in entries()}, f"{page} speaks of {name}"


def test_lines_are_short_and_the_readme_leads_here() -> None:
    for page in THEMES:
        for line in (PAGES / f"{page}.md").read_text(encoding="utf-8").splitlines():
            assert len(line) <= 120 or line.startswith(("[test_", "**Test**")), f"{page}: {line[:50]}"
    assert "docs/claims/index.md" in (ROOT / "README.md").read_text(encoding="utf-8")
