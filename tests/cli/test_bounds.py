"""Numbers that end a command half-way are refused by all commands, in one place; refusals say what was typed."""

from __future__ import annotations

import os
from typing import Any

import pytest

from headwise.cli.bounds import LARGEST_SEED, check_bounds, most_threads
from headwise.cli.main import COMMANDS, main
from headwise.cli.quick import read_quickly
from headwise.errors import UserError
from tests.cli.test_repeated import FUNCTIONS, SINGLE, called, required
from tests.cli.typed import model, run, texts

__all__ = ["called", "model", "run", "texts"]

SEEDED = [name for name, option in SINGLE if option.name == "seed"]
THREADED = [name for name, option in SINGLE if option.name == "threads"]
NUMBERS = [(name, option) for name, option in SINGLE if option.type in (int, float)]


def refused(name: str, words: list[str], capsys: Any) -> str:
    assert main([name, *required(name), *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_these_are_the_commands_that_draw_and_that_compute():
    drawing = {"study", "prune", "convert", "uptrain", "verify", "bench", "experiment"}
    assert set(SEEDED) == drawing
    assert set(THREADED) == drawing | {"plan", "doctor"}
    assert set(FUNCTIONS) == set(COMMANDS)


# Up to 18 digits are read quickly, and more by typer; more than torch takes; more than is shown.
@pytest.mark.parametrize("name", SEEDED)
@pytest.mark.parametrize("seed", [LARGEST_SEED + 1, 2**63, 10**22 + 1, 10**4000])
def test_a_seed_beyond_what_can_be_drawn_from_is_refused(name, seed, called, capsys):
    told = str(seed) if seed < 10**60 else f"{str(seed)[:59]}…"
    assert refused(name, ["--seed", str(seed)], capsys) == (
        f"headwise: --seed: expected a whole number from 0 to 9007199254740991 (2**53 - 1), got {told}; give a smaller "
        "one\n"
    )
    assert called == []


@pytest.mark.parametrize("name", SEEDED)
@pytest.mark.parametrize("seed", [0, LARGEST_SEED])
def test_every_other_seed_is_taken(name, seed, called):
    assert main([name, *required(name), "--seed", str(seed)]) == 0
    assert called[0]["seed"] == seed


def test_a_study_draws_from_the_largest_seed(run, tmp_path, model, texts):
    """It seeds with many times its own seed, more than any other command."""
    fast = ("--count", "8", "--length", "41", "--null-draws", "3", "--leaders", "2")
    done = run("study", model, "--documents", texts, "--out", tmp_path / "s", "--seed", LARGEST_SEED, *fast)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", THREADED)
@pytest.mark.parametrize("threads", [129, 100_000, 10**22])
def test_more_threads_than_the_system_may_give_are_refused(name, threads, called, capsys, monkeypatch):
    """Starting them ends the process with a segmentation fault, without a word."""
    monkeypatch.setattr(os, "cpu_count", lambda: 32)
    monkeypatch.setenv("OMP_NUM_THREADS", "1000")
    assert refused(name, ["--threads", str(threads)], capsys) == (
        f"headwise: --threads: expected at most 128 on this machine, which has 32 logical cores, got {threads}; give "
        "32, or leave it out\n"
    )
    assert called == []


@pytest.mark.parametrize("name", THREADED)
def test_as_many_threads_as_that_are_taken(name, called):
    assert main([name, *required(name), "--threads", str(most_threads())]) == 0
    assert called[0]["threads"] == most_threads()


@pytest.mark.parametrize(("cores", "most"), [(None, 64), (1, 64), (16, 64), (17, 68), (192, 768)])
def test_the_bound_grows_with_the_machine(cores, most, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert most_threads() == most
    check_bounds({"threads": most, "seed": None})
    with pytest.raises(UserError, match=f"expected at most {most} on this machine, which has {cores or 1} logical co"):
        check_bounds({"threads": most + 1})


def test_words_that_typer_reads_are_held_to_the_same_bounds(called, capsys):
    """Not all words are read quickly, and what is out of bounds must not pass by the other door."""
    words = ["--json", "--seed", str(LARGEST_SEED + 1), "--threads=+3"]
    assert read_quickly(FUNCTIONS["bench"], words) is None
    assert "--seed: expected a whole number from 0 to" in refused("bench", words, capsys)
    assert "--threads: expected at most" in refused("bench", ["--seed=+3", "--threads", "4321"], capsys)
    assert called == []


@pytest.mark.parametrize(("name", "option"), NUMBERS, ids=lambda each: getattr(each, "name", each))
@pytest.mark.parametrize(
    ("word", "told"), [("3x", "'3x'"), ("", "''"), (" 1\n2", "'1 2'"), ("z" * 99, f"'{'z' * 59}…'")]
)
def test_every_number_that_cannot_be_read_is_told_as_it_was_typed(name, option, word, told, called, capsys):
    said = refused(name, [f"{option.words[0]}={word}"], capsys)
    assert said.startswith(f"headwise: {name}: Invalid value for '{option.words[0]}': ")
    assert said.endswith(f", got {told}; headwise {name} --help lists what it takes\n")
    assert called == []


BOUNDED = [(name, option) for name, option in NUMBERS if option.info.min is not None]


@pytest.mark.parametrize(("name", "option"), BOUNDED, ids=lambda each: getattr(each, "name", each))
def test_every_number_below_its_bound_is_told_as_it_was_typed(name, option, called, capsys):
    low = option.info.min - 3
    said = refused(name, [f"{option.words[0]}={low}"], capsys)
    assert f", got '{low}'; headwise {name} --help lists what it takes" in said
    assert called == []
