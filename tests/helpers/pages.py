"""Pages that are held to what they show: their code is run, and what it prints must stand below it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from headwise.cli.main import COMMANDS
from headwise.cli.quick import read_quickly

__all__ = ["Block", "blocks_of", "commands_in", "has_such_options", "python_in", "run_blocks", "shows"]

_BLOCK = re.compile(r"^```(?P<language>\w*)(?: title=\"(?P<title>[\w./-]+)\")?\n(?P<text>.*?)^```$", re.M | re.S)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
# Runs its blocks one after the other in one namespace, as a reader does, and says what each one printed.
_RUNNER = """
import contextlib, io, json, sys
names, printed = {"__name__": "__main__"}, []
for code in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, f"block {len(printed)}", "exec"), names)
    printed.append(out.getvalue())
print(json.dumps(printed))
"""


class Block(NamedTuple):
    """A fenced block: its language, the name of the file that it is, if it is one, and its text."""

    language: str
    title: str | None
    text: str


def blocks_of(page: str) -> list[Block]:
    """Every fenced block of a page, in order."""
    return [Block(found["language"], found["title"], found["text"]) for found in _BLOCK.finditer(page)]


def python_in(page: str) -> list[tuple[str, str]]:
    """Every block of Python, with the block of text right after it, which is what it prints."""
    pairs = pairwise([*blocks_of(page), Block("", None, "")])
    codes = [(code.text, after) for code, after in pairs if code.language == "python"]
    return [(code, after.text if after.language == "text" else "") for code, after in codes]


def run_blocks(codes: Sequence[str], folder: Path) -> list[str]:
    """What each of these prints, run one after the other in one process in that folder."""
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-c", _RUNNER], input=json.dumps(codes), capture_output=True, text=True, cwd=folder,
        env=environment, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed: list[str] = json.loads(done.stdout)
    return printed


def commands_in(page: str) -> list[tuple[str, str]]:
    """Every typed command of ``console`` and plain blocks, with the output below it (none in plain blocks)."""
    found = []
    for block in blocks_of(page):
        if block.language == "console":
            found += re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.M)
        elif not block.language:
            found += [(line, "") for line in block.text.splitlines() if line.strip()]
    return found


def has_such_options(command: str) -> bool:
    """Whether headwise takes these words; comments and files for the output are left out."""
    _, name, *words = shlex.split(command.partition(" > ")[0], comments=True)
    module, _ = COMMANDS[name]
    return read_quickly(getattr(import_module(module), name), words) is not None


def shows(told: str, printed: str) -> bool:
    """Whether a page tells what was printed: line by line, ``...`` for any lines.

    Whole numbers must be the same, others to within one of the last digit, which sums in another order may change.
    """
    lines, skipping = [line.rstrip() for line in printed.rstrip().splitlines()], False
    for line in (line.rstrip() for line in told.rstrip().splitlines()):
        if line == "...":
            skipping = True
            continue
        while skipping and lines and not _same(line, lines[0]):
            lines.pop(0)
        if not lines or not _same(line, lines.pop(0)):
            return False
        skipping = False
    return skipping or not lines


def _same(told: str, printed: str) -> bool:
    numbers = list(zip(_NUMBER.findall(told), _NUMBER.findall(printed), strict=False))
    return _NUMBER.sub("0", told) == _NUMBER.sub("0", printed) and all(_near(*pair) for pair in numbers)


def _near(told: str, printed: str) -> bool:
    digits = len(told.partition(".")[2])
    if not digits or digits != len(printed.partition(".")[2]):
        return told == printed
    first, second = (round(float(each.replace(",", "")) * 10**digits) for each in (told, printed))
    return abs(first - second) <= 1
