"""Pages for readers: every block of Python runs and prints what stands below it, every command is one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headwise.cli.main import main
from tests.helpers.pages import blocks_of, commands_in, has_such_options, python_in, run_blocks, shows

ROOT = Path(__file__).parents[1]
FOLDERS = ["how-to", "lesson", "explanations"]
PAGES = {
    page.relative_to(ROOT / "docs").as_posix(): page.read_text(encoding="utf-8")
    for page in [
        ROOT / "docs" / "index.md",
        *sorted(p for name in FOLDERS for p in (ROOT / "docs" / name).glob("*.md")),
    ]
}
# Pages whose blocks are commands alone.
TYPED = {
    name: (ROOT / "docs" / name).read_text(encoding="utf-8")
    for name in ("bench.md", "experiments.md", "performance.md")
}
COMMANDS = [(page, *found) for page, text in (PAGES | TYPED).items() for found in commands_in(text)]


def test_there_are_pages_with_blocks():
    assert len(PAGES) == 23
    assert [page for page, text in PAGES.items() if not python_in(text)] == ["lesson/index.md"]
    known = {"python", "text", "console", "json", ""}
    assert {block.language for text in PAGES.values() for block in blocks_of(text)} <= known
    for page, text in PAGES.items():
        assert text.count("```") == 2 * len(blocks_of(text)), f"{page}: a block that isn't read"


@pytest.mark.parametrize("page", PAGES)
def test_what_is_shown_is_what_is_printed(page, tmp_path, monkeypatch, capsys):
    for block in blocks_of(PAGES[page]):
        if block.title:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
    code = python_in(PAGES[page])
    printed = run_blocks([block for block, _ in code], tmp_path)
    for (block, told), output in zip(code, printed, strict=True):
        assert shows(told, output), f"{block}\nprints\n{output}\nand not\n{told}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for command, told in commands_in(PAGES[page]):
        if told:
            assert main(command.split()[1:]) == 0
            output = capsys.readouterr().out
            assert shows(told, output), f"{command}\nprints\n{output}\nand not\n{told}"


@pytest.mark.parametrize(("page", "command", "told"), COMMANDS)
def test_a_command_is_one(page, command, told):
    if command.startswith("headwise "):
        assert has_such_options(command)
    elif command.startswith("make "):
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{re.escape(command.split()[1])}:", makefile, re.MULTILINE)
    elif command.startswith("python benchmarks/"):
        assert (ROOT / command.split()[1]).exists()
    else:
        assert command == "source .venv/bin/activate"


def test_options_that_are_none_are_noticed():
    assert has_such_options("headwise plan demo --context 8k  # a remark")
    assert not has_such_options("headwise plan demo --no-such-option 8k")


@pytest.mark.parametrize(
    ("told", "printed", "same"),
    [
        ("a 0.12 of 1,024\n", "a 0.13 of 1,024\n", True),
        ("a 0.12 of 1,024\n", "a 0.14 of 1,024\n", False),
        ("a 0.12 of 1,024\n", "a 0.12 of 1,025\n", False),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\n", "a\nb\n", True),
        ("a\n", "a\nb\n", False),
        ("a\nb\n", "a\n", False),
        ("", "a\n", False),
        ("", "", True),
        ("L5.H1: 0.5", "L5.H2: 0.5", False),
    ],
)
def test_what_counts_as_the_same(told, printed, same):
    assert shows(told, printed) is same
