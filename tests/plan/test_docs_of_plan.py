"""docs/plan.md prints what the command prints: every block is run, every number compared."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

from headwise.cli.main import main

TEXT = (Path(__file__).parents[2] / "docs" / "plan.md").read_text(encoding="utf-8")
CONFIG = json.loads(re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)[0])
BLOCKS = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [
    (command, told)
    for block in BLOCKS
    for command, told in re.findall(r"^\$ headwise (.*)\n((?:(?!\$ ).*\n)*)", block, re.M)
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "gemma.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def bare(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def test_there_are_commands():
    assert len(COMMANDS) == 6


@pytest.mark.parametrize(("command", "told"), COMMANDS)
def test_a_command_prints_what_stands_below_it(command, told, capsys):
    code = main(command.split())
    captured = capsys.readouterr()
    if "--json" in command:
        assert code == 0
        found = json.loads(captured.out)
        assert (
            f"gives a `max_context` of {found['max_context']:,} tokens and a `max_batch` of {found['max_batch']}."
            in TEXT
        )
        return
    assert bare(captured.out + captured.err) == bare(told)
    assert code == (2 if captured.err else 0)
    assert not captured.out or max(len(line) for line in bare(captured.out)) <= 80


ROWS = re.findall(r"^\| `(\w+)` \| (?:`([^`|]+)` )?\| ([\d,]+) \| ([\d.]+) \|$", TEXT, re.MULTILINE)


def test_the_table_has_every_runtime():
    from headwise.plan.runtimes import RUNTIMES

    assert {row[0] for row in ROWS} == set(RUNTIMES)
    described = TEXT.split("## Runtimes and where")[1]
    assert not [name for name in RUNTIMES if f"| `{name}` |" not in described]


@pytest.mark.parametrize(("runtime", "option", "size", "times"), ROWS)
def test_a_row_is_what_the_runtime_takes(runtime, option, size, times, capsys):
    words = ["--runtime-option", option] if option else []
    assert main(["plan", "gemma.json", "--runtime", runtime, *words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["kv_bytes"]
    assert f"{told:,}" == size
    assert f"{told / 654_311_424:.2f}" == times


def test_the_two_numbers_of_a_token():
    from headwise.plan import plan

    told = plan(CONFIG)
    assert f"it costs `kv_bytes_per_token`, above\n{told.per_token:,} bytes in all 26 layers" in TEXT
    assert f"`kv_growth_bytes_per_token`, {told.growth:,} bytes in the\n13 full layers" in TEXT


def test_every_storage_and_every_option_is_named():
    from inspect import signature

    from headwise.plan.runtimes import RUNTIMES, runtime_named
    from headwise.plan.storages import STORAGES

    assert not [name for name in STORAGES if f"`{name}`" not in TEXT]
    for runtime in RUNTIMES:
        options = signature(type(runtime_named(runtime))).parameters
        assert not [name for name in options if f"`{name}`" not in TEXT]


def test_every_option_stands_with_what_holds_without_it():
    from headwise.plan.runtimes import RUNTIMES, runtime_named

    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| ([^|]+) \| [^|]+ \|$", TEXT, re.MULTILINE)
    told = {(runtime, option): words for runtime, option, words in rows}
    options = {(name, option): value for name in RUNTIMES for option, value in runtime_named(name).options.items()}
    assert told.keys() == options.keys()
    for row, value in options.items():
        bare = value if isinstance(value, str) else json.dumps(value)
        assert told[row] == bare or (value is None and len(told[row]) > 4), row


def test_the_python_runs():
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(block, {})
    lines = printed.getvalue().splitlines()
    assert len(lines) == 7
    assert lines[2].startswith("13 layers, window 4096, key 4 × 256, value 4 × 256 = ")


def test_the_readme_counts_what_is_known():
    from headwise.plan.architectures.registry import FAMILIES, WRAPPERS

    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert "about 200 model types" in readme
    assert 190 <= len(FAMILIES) + len(WRAPPERS) < 250
