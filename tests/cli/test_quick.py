"""The quick reading of words gives what typer gives, or leaves the words to typer."""

from __future__ import annotations

import functools
import inspect
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Optional, get_type_hints

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from headwise.cli import main as command_line
from headwise.cli.main import COMMANDS, main
from headwise.cli.quick import read_quickly

FUNCTIONS = {name: getattr(import_module(module), name) for name, (module, _) in COMMANDS.items()}
PLAIN = [
    ("plan", []),
    ("plan", ["some/model", "--context", "7k", "--batch=3", "--kv-dtype", "fp8", "--json"]),
    ("plan", ["--set", "a=1", "--set=b=x=y", "--figure", "a.png", "--bandwidth", "1.5", "demo"]),
    ("plan", ["--threads", "2", "--provenance", "--budget", "24GiB", "--compare", "mha,gqa:8"]),
    ("doctor", ["--threads", "3", "--json"]),
    ("report", ["folder"]),
    ("study", ["model", "--out", "there", "--margin", "0.25", "--seed", "3", "--overwrite"]),
]
LEFT = [
    ("plan", ["--help"]),
    ("plan", ["-h"]),
    ("plan", ["a", "b"]),
    ("plan", ["--context"]),
    ("plan", ["--batch", "x"]),
    ("plan", ["--context", "--json"]),
    ("plan", ["--context", "-1"]),
    ("plan", ["--batch", "1_000"]),
    ("plan", ["--batch", "9" * 19]),
    ("plan", ["--context", "1", "--context", "2"]),
    ("plan", ["--json=1"]),
    ("plan", ["--threads", "0"]),
    ("plan", ["--bandwidth", "nan"]),
    ("plan", ["--nothing", "1"]),
    ("plan", ["--", "demo"]),
    ("plan", ["-"]),
    ("study", ["--margin", "1"]),
    ("report", []),
]


def by_typer(name: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, dict[str, Any] | None]:
    """What the command would be called with, and the exit code."""
    box: list[dict[str, Any]] = []
    called = functools.wraps(FUNCTIONS[name])(lambda **arguments: box.append(arguments))
    fake = SimpleNamespace(**{name: called})
    monkeypatch.setattr(command_line, "import_module", lambda module: fake)
    monkeypatch.setattr(command_line, "read_quickly", lambda function, words: None)
    code = main([name, *words])
    return code, box[0] if box else None


@pytest.mark.parametrize(("name", "words"), PLAIN)
def test_plain_words_are_read_as_typer_reads_them(name, words, monkeypatch):
    code, told = by_typer(name, words, monkeypatch)
    assert (code, told) == (0, told)
    assert told is not None
    # An option that may be given often and isn't is None here and perhaps an empty list there.
    assert {key: value or None for key, value in told.items()} == {
        key: value or None for key, value in (read_quickly(FUNCTIONS[name], words) or {}).items()
    }


@pytest.mark.parametrize(("name", "words"), LEFT)
def test_all_else_is_left_to_typer(name, words):
    assert read_quickly(FUNCTIONS[name], words) is None


def test_every_command_is_read_quickly():
    """A new kind of option that isn't understood would make its command slow without a word."""
    out = ["--out", "new"]
    arguments = {
        "report": ["folder"], "inspect": ["demo"], "prune": ["demo", *out], "convert": ["demo", *out],
        "uptrain": ["small", "--teacher", "demo", "--tokens", "5", *out], "verify": ["demo", "small"],
    }  # fmt: skip
    assert not [name for name, function in FUNCTIONS.items() if read_quickly(function, arguments.get(name, [])) is None]


@pytest.mark.parametrize(("name", "words"), PLAIN)
def test_annotations_as_python_3_10_has_them_are_read_as_well(name, words, monkeypatch):
    """There what defaults to None has an Optional around its annotation."""
    function, told = FUNCTIONS[name], read_quickly(FUNCTIONS[name], words)

    def as_there(function, **options):
        defaults = {each.name: each.default for each in inspect.signature(function).parameters.values()}
        hints = get_type_hints(function, **options)
        return {key: Optional[hint] if defaults.get(key, "") is None else hint for key, hint in hints.items()}  # noqa: UP045

    monkeypatch.setattr("headwise.cli.quick.get_type_hints", as_there)
    assert told is not None
    assert read_quickly(function, words) == told


def test_options_that_typer_alone_can_check_are_left_to_it():
    def checks(path: Annotated[Path, typer.Option("--path", exists=True)] = Path()) -> None: ...
    def negated(flag: Annotated[bool, typer.Option("--flag/--no-flag")] = True) -> None: ...
    def unnamed(flag: Annotated[bool, typer.Option()] = True) -> None: ...
    def environment(name: Annotated[str, typer.Option("--name", envvar="NAME")] = "") -> None: ...
    def bare(name: str = "") -> None: ...

    for function in (checks, negated, unnamed, environment, bare):
        function.__annotations__ = {
            name: each.annotation
            for name, each in inspect.signature(function, eval_str=True, locals=locals()).parameters.items()
        }
        assert read_quickly(function, []) is None, function.__name__


@given(
    st.lists(
        st.one_of(st.text(max_size=12), st.sampled_from(["--context", "--json", "--set", "a=b", "7", "--batch=2"]))
    )
)
def test_no_words_make_it_fail(words):
    told = read_quickly(FUNCTIONS["plan"], words)
    assert told is None or told["kv_dtype"] == "bf16"


def test_what_typer_checks_with_is_not_loaded(tmp_path):
    code = "import sys; from headwise.cli.main import main; main(['plan', 'no.json']); print('pydantic' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=dict(os.environ)
    )
    assert done.stdout == "False\n"
