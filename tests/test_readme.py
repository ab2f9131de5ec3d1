"""The README's Python runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
TOLD = [  # what each block prints, in order
    ["KV heads of a layer: 3, loss ", "KV heads of a layer: 1, loss "],
    ["L16.H0: 0.", "logits move by"],
    ["True\nTrue"],
    ["True 53760 bytes for any length"],
    ["The capital of France is Paris", " 1474560 bytes"],
]
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.S)


def test_there_are_blocks_to_run():
    assert len(BLOCKS) == len(TOLD)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_runs_and_prints_what_it_says(number):
    done = subprocess.run([sys.executable, "-c", BLOCKS[number]], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for words in TOLD[number]:
        assert words in done.stdout
    assert "False" not in done.stdout
