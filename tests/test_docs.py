"""The table of features holds what it rests on: every test that it names exists, and every cell names something."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs" / "features.md"
CACHES = ROOT / "docs" / "caches.md"
COLUMNS = ["", "headwise", "SDPA", "Flex", "transformers", "ONNX", "x-transformers"]
CELL = re.compile(r"(?:yes|partly|no|n/a)((?: \[\d+\])+)|not tried")
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
def marks_in(file: str) -> dict[str, str]:
    """The marks of every test function of a file, as they are written, those of the whole file included."""
    nodes = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    of_all = [ast.unparse(node) for node in nodes if isinstance(node, ast.Assign)]
    shared = " ".join(line for line in of_all if line.startswith("pytestmark"))
    return {
        node.name: " ".join([shared, *map(ast.unparse, node.decorator_list)])
        for node in nodes
        if isinstance(node, ast.FunctionDef)
    }


def test_every_cell_is_an_answer_with_its_source() -> None:
    known, used = sources(), set()
    assert len(features()) > 30
    for name, *cells in features():
        assert len(cells) == len(COLUMNS) - 1, name
        for cell in cells:
            match = CELL.fullmatch(cell)
            assert match, f"{name}: {cell}"
            used |= {int(number) for number in re.findall(r"\d+", match[1] or "")}
    assert used == set(known)
    assert list(known) == list(range(1, len(known) + 1))


def test_every_test_that_is_named_exists() -> None:
    named = [(file, name) for file, name, _ in sources().values() if file]
    assert len(named) > 40
    missing = [f"{file}::{name}" for file, name in named if name not in marks_in(file)]
    assert not missing
    assert all(name.startswith("test_") for _, name in named)


def test_no_test_that_is_named_is_slow() -> None:
    """The table says that all of them run in ``make test``, which leaves slow ones out."""
    named = [(file, name) for file, name, _ in sources().values() if file]
    assert not [f"{file}::{name}" for file, name in named if "mark.slow" in marks_in(file)[name]]
    # Slow ones are told apart: this is one.
    slow = marks_in("tests/peers/test_flex.py")["test_errors_are_at_most_twice_those_of_the_compiled_kernel"]
    assert "mark.slow" in slow


def test_headwise_rests_on_tests_alone() -> None:
    """And owns up to its limits among the others'."""
    known = sources()
    reasons = TABLE.read_text(encoding="utf-8").split('## What "partly" means')[1]
    assert any(own.startswith("partly") for _, own, *_ in features()) == ("\n- headwise " in reasons)
    for name, own, *_ in features():
        assert own.startswith(("yes", "partly")), name
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


def test_the_bytes_of_the_example_add_up_and_are_those_of_the_caches() -> None:
    from headwise.cache import BlockPool, DenseCache, QuantizedCache

    heads, width, capacity, layers = 3, 64, 200, 30
    built = {"dense": DenseCache(1, heads, capacity, width), "blocks of 16": BlockPool(13, 16, heads, width)}
    for bits in (8, 4):
        for residual in (64, 16):
            made = QuantizedCache(1, heads, capacity, width, bits=bits, residual=residual)
            built[f"{bits} bits, residual {residual}"] = made
    told = re.findall(
        r"^\| ([\w ,]+) \| ([\d ·+()]+) \| ([\d,]+) \|$", CACHES.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert {name for name, _, _ in told} == set(built)
    for name, formula, number in told:
        terms = formula.replace("·", "*")
        assert layers * eval(terms) == int(number.replace(",", "")) == layers * built[name].nbytes, name


def test_the_example_of_a_shared_prefix_prints_what_it_says() -> None:
    (block,) = [
        code
        for code in re.findall(r"```python\n(.*?)```", CACHES.read_text(encoding="utf-8"), re.DOTALL)
        if "Pool" in code
    ]
    said = re.findall(r"^print.*# (\d+)$", block, re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=True)
    assert len(said) == 2
    assert done.stdout.split() == said


def test_every_environment_variable_is_told_to_people() -> None:
    read = {
        name
        for file in (ROOT / "src").rglob("*.py")
        for name in re.findall(r"\bHEADWISE_[A-Z]+\b", file.read_text(encoding="utf-8"))
    }
    assert {"HEADWISE_ISA", "HEADWISE_CACHE", "HEADWISE_DEBUG"} <= read
    told = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    text = "".join(file.read_text(encoding="utf-8") for file in told)
    assert not [name for name in read if f"`{name}" not in text]


def test_what_is_said_of_generate_runs_without_a_warning() -> None:
    """transformers calls the argument otherwise than it did, and warns of the old name."""
    blocks = re.findall(r"```python\n(.*?)```", CACHES.read_text(encoding="utf-8"), re.DOTALL)
    calls = [code for code in blocks if "headwise_cache(" in code]
    assert len(calls) == 2
    for code in calls:
        command = [sys.executable, "-W", "error::FutureWarning", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
