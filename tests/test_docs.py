"""The table of features holds what it rests on: every test that it names exists, and every cell names something."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs" / "features.md"
COLUMNS = ["", "headwise", "SDPA", "Flex", "transformers", "ONNX", "x-transformers"]
CELL = re.compile(r"(yes|partly|no|n/a)((?: \[\d+\])+)")
SOURCE = re.compile(r"(\d+)\. (?:`(tests/[\w/.]+\.py)::(\w+)`|<(https://[^\s>]+)>)")


def rows() -> list[list[str]]:
    """The cells of every row of the tables, headings and rulers included."""
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def sources() -> dict[int, tuple[str, str, str]]:
    """File and name of a test, or an address, by number."""
    listed = TABLE.read_text(encoding="utf-8").split("## Sources")[1].split("\n")
    found = [SOURCE.fullmatch(line) for line in listed if line.strip()]
    assert all(found), "a line that is neither a test nor an address"
    return {int(match[1]): (match[2] or "", match[3] or "", match[4] or "") for match in found if match}


def features() -> list[list[str]]:
    return [row for row in rows() if row != COLUMNS and not set("".join(row)) <= set("-")]


@cache
def names_in(file: str) -> frozenset[str]:
    """Names of the test functions of a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_every_cell_is_an_answer_with_its_source() -> None:
    known, used = sources(), set()
    assert len(features()) > 30
    for name, *cells in features():
        assert len(cells) == len(COLUMNS) - 1, name
        for cell in cells:
            match = CELL.fullmatch(cell)
            assert match, f"{name}: {cell}"
            used |= {int(number) for number in re.findall(r"\d+", match[2])}
    assert used == set(known)
    assert list(known) == list(range(1, len(known) + 1))


def test_every_test_that_is_named_exists() -> None:
    named = [(file, name) for file, name, _ in sources().values() if file]
    assert len(named) > 40
    missing = [f"{file}::{name}" for file, name in named if name not in names_in(file)]
    assert not missing
    assert all(name.startswith("test_") for _, name in named)


def test_headwise_rests_on_tests_alone() -> None:
    known = sources()
    for name, own, *_ in features():
        assert own.startswith("yes"), name
        assert all(known[int(number)][0] for number in re.findall(r"\d+", own)), name


def test_the_versions_are_those_that_the_tests_run_with() -> None:
    pinned: dict[str, str] = {}
    for name, version in re.findall(r"^([\w-]+)==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE):
        pinned.setdefault(name, version)
    text = " ".join(TABLE.read_text(encoding="utf-8").split())
    names = {"torch": "PyTorch", "transformers": "transformers", "onnxruntime": "ONNX Runtime"}
    told = {name: f"{title} {pinned[name]}" for name, title in names.items() if name in pinned}
    assert {"torch", "transformers"} <= set(told)
    for version in told.values():
        assert version in text, f"{version} is installed for the tests; look through the table again"
