"""The README's Python runs as it stands, and its commands are ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.pages import commands_in, has_such_options, python_in, run_blocks

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
TOLD = [  # what each block prints, in order
    ["KV heads of a layer: 3, loss ", "KV heads of a layer: 1, loss "],
    ["L16.H0: 0.", "logits move by"],
    ["True\nTrue"],
    ["True 53760 bytes for any length"],
    ["The capital of France is Paris", " 1474560 bytes"],
]
BLOCKS = [code for code, _ in python_in(README)]
COMMANDS = [command for command, _ in commands_in(README) if command.startswith("headwise ")]


def test_there_are_blocks_to_run():
    assert len(BLOCKS) == len(TOLD)
    assert len(COMMANDS) >= 15


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_runs_and_prints_what_it_says(number, tmp_path):
    [printed] = run_blocks([BLOCKS[number]], tmp_path)
    for words in TOLD[number]:
        assert words in printed
    assert "False" not in printed


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_one(command):
    assert has_such_options(command)
