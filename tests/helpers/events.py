"""Counts what a fresh Python does, instead of timing it: the number is the same on a slow machine and on a busy one."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import lru_cache

__all__ = ["events_of", "events_of_an_empty_help"]

# The statement is compiled before the count begins, and nothing is loaded for the counting.
_COUNTING = """
import sys
from itertools import count
statement, events = compile(sys.argv[1], "<statement>", "exec"), count()
sys.setprofile(lambda *_: next(events))
try:
    exec(statement, {"__name__": "__main__"})
finally:
    sys.setprofile(None)
print(next(events), file=sys.stderr)
"""
_EMPTY = """
import typer
app = typer.Typer(add_completion=False, rich_markup_mode="rich")
app.callback()(lambda: None)
app(["--help"], standalone_mode=False)
"""


def events_of(statement: str) -> int:
    """The calls and returns of a statement in a process of its own, those of its imports included.

    Python's compiler makes none. What is left of bytecode is reading and writing its files, some ten calls a module,
    and nothing where they are there: so the statement runs once before, without being counted.
    """
    # Without what changes how much is printed: the width of a terminal, colours.
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("COLUMNS", "FORCE_", "TTY_"))}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", _COUNTING, statement], capture_output=True, text=True, env=plain | {"COLUMNS": "80"}
        )
        assert done.returncode == 0, done.stderr
    return int(done.stderr.splitlines()[-1])


@lru_cache(maxsize=1)
def events_of_an_empty_help() -> int:
    """What typer's help needs by itself, without any command: the measure for commands that start at once."""
    return events_of(_EMPTY)
