"""An option of one value that is given twice is refused by every command, in one place."""

from __future__ import annotations

import functools
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
import typer
from typer.models import OptionInfo

from headwise.cli import main as command_line
from headwise.cli.main import COMMANDS, main
from headwise.cli.quick import _parameters, read_quickly

FUNCTIONS = {name: getattr(import_module(module), name) for name, (module, _) in COMMANDS.items()}
PLACES = {
    "report": ["folder"], "prune": ["demo"], "convert": ["demo"], "uptrain": ["small"], "verify": ["demo", "small"],
    "inspect": ["demo"],
}  # fmt: skip
MUST = {"prune": ["--out"], "convert": ["--out"], "uptrain": ["--teacher", "--tokens", "--out"]}
OPTIONS = [
    (name, each) for name in COMMANDS for each in _parameters(FUNCTIONS[name]) if isinstance(each.info, OptionInfo)
]
SINGLE = [(name, each) for name, each in OPTIONS if each.type is not bool and not each.repeated]
FLAGS = [(name, each) for name, each in OPTIONS if each.type is bool]


def two_values(option: Any) -> tuple[str, str]:
    """Two that are not the same, and within the bounds that commands set for numbers."""
    return {int: ("17", "19"), float: ("0.25", "0.5")}.get(option.type, ("one", "two"))


def required(name: str, *but: str) -> list[str]:
    return [*PLACES.get(name, []), *(word for each in MUST.get(name, []) if each not in but for word in (each, "5"))]


@pytest.fixture
def called(monkeypatch) -> list[dict[str, Any]]:
    """What the commands would be called with; none of them runs."""
    box: list[dict[str, Any]] = []
    fakes = {
        module: SimpleNamespace(**{name: functools.wraps(FUNCTIONS[name])(lambda **given: box.append(given))})
        for name, (module, _) in COMMANDS.items()
    }
    monkeypatch.setattr(command_line, "import_module", fakes.__getitem__)
    return box


@pytest.mark.parametrize(("name", "option"), SINGLE, ids=lambda each: getattr(each, "name", each))
@pytest.mark.parametrize("joined", [False, True])
def test_every_option_of_one_value_is_refused_when_it_is_given_twice(name, option, joined, called, capsys):
    word, (first, second) = option.words[0], two_values(option)
    words = [word, first, f"{word}={second}"] if joined else [word, first, *required(name, word), word, second]
    if joined:
        words = [*required(name, word), *words]
    assert read_quickly(FUNCTIONS[name], words) is None
    assert main([name, *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (f"headwise: {word}: expected once, got it 2 times ({first}, {second}); keep one of them\n")
    assert called == []


@pytest.mark.parametrize(("name", "option"), FLAGS, ids=lambda each: getattr(each, "name", each))
def test_a_flag_may_be_repeated(name, option, called):
    assert main([name, *required(name), option.words[0], option.words[0]]) == 0
    assert called[0][option.name] is True


def test_an_option_of_many_values_keeps_them_all(called):
    assert main(["verify", "demo", "small", "--documents", "one", "--documents=two", "--documents", "one"]) == 0
    assert called[0]["documents"] == [Path("one"), Path("two"), Path("one")]


@pytest.fixture
def odd(monkeypatch) -> list[dict[str, Any]]:
    """A command with options of kinds that the others may get one day."""
    box: list[dict[str, Any]] = []

    def odd(
        words: Annotated[list[str] | None, typer.Argument()] = None,
        rank: Annotated[int, typer.Option("-r", "--rank", "--size")] = 0,
        loud: Annotated[int, typer.Option("--loud", "-l", count=True)] = 0,
        safe: Annotated[bool, typer.Option("--safe/--unsafe")] = True,
        pair: Annotated[tuple[int, int], typer.Option("--pair")] = (0, 0),
        tag: Annotated[list[str] | None, typer.Option("--tag")] = None,
        name: Annotated[str, typer.Option("--name", envvar="ODD_NAME")] = "",
    ) -> None:
        box.append(locals())

    loaded = {"odd": SimpleNamespace(odd=odd)}
    monkeypatch.setattr(command_line, "import_module", loaded.__getitem__)
    monkeypatch.setitem(COMMANDS, "odd", ("odd", "Odd."))
    return box


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-r", "1", "--rank", "3"], "-r / --rank / --size: expected once, got it 2 times (1, 3)"),
        (["-r1", "--size=3", "--rank", "1"], "-r / --rank / --size: expected once, got it 3 times (1, 3, 1)"),
        (["--rank", "7", "--rank", "7"], "-r / --rank / --size: expected once, got it 2 times (7, 7)"),
        (["--name", "--name", "--name", "x"], "--name: expected once, got it 2 times (--name, x)"),
        (["--name=", "a", "--name", "b", "--", "--name"], "--name: expected once, got it 2 times (, b)"),
        (["--pair", "1", "2", "--pair", "3", "5"], "--pair: expected once, got it 2 times ("),
    ],
)
def test_other_names_and_other_ways_of_writing_are_counted_together(words, told, odd, capsys):
    assert main(["odd", *words]) == 2
    assert capsys.readouterr().err.startswith(f"headwise: {told}")
    assert odd == []


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["--rank", "1", "--", "--rank", "3"], {"rank": 1, "words": ["--rank", "3"]}),
        (["--name", "--rank", "--rank", "3"], {"name": "--rank", "rank": 3}),
        (["--name=--name=x", "--rank=1"], {"name": "--name=x", "rank": 1}),
        (["-l", "-ll", "--loud"], {"loud": 4}),
        (["--safe", "--unsafe", "--unsafe"], {"safe": False}),
        (["--tag", "a", "--tag", "a", "--pair", "1", "2"], {"tag": ["a", "a"], "pair": (1, 2)}),
        (["--name", "typed"], {"name": "typed"}),
    ],
)
def test_what_is_no_repetition_is_taken(words, given, odd, monkeypatch):
    monkeypatch.setenv("ODD_NAME", "of the environment")
    assert main(["odd", *words]) == 0
    assert {name: odd[0][name] for name in given} == given


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--help"], 0, ""),
        (["--rank", "x"], 2, "Invalid value"),
        (["--nothing"], 2, "No such option: --nothing"),
        (["--name"], 2, "Option '--name' requires an argument"),
    ],
)
def test_help_and_other_mistakes_come_first(words, code, told, odd, capsys):
    assert main(["odd", "--rank", "1", "--rank", "3", *words]) == code
    captured = capsys.readouterr()
    assert told in captured.err
    assert ("Usage: headwise odd" in captured.out) is (code == 0)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (("9" * 5_000, "8"), f"2 times ({'9' * 59}…, 8)"),
        (("1\n2", "3"), "2 times (1 2, 3)"),
        (("1", "2", "3"), "3 times (1, 2, 3)"),
        (tuple("12345"), "5 times (1, 2, 3, …)"),
    ],
)
def test_long_values_are_not_told_whole(capsys, values, told):
    """One line, whatever was typed."""
    words = [word for value in values for word in ("--context", value)]
    assert main(["plan", "config.json", *words]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
