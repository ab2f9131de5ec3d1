"""The README's Python runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.S)


def test_there_are_blocks_to_run():
    assert len(BLOCKS) == 2


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_runs_and_prints_what_it_says(number):
    done = subprocess.run([sys.executable, "-c", BLOCKS[number]], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = (("L16.H0: 0.", "logits move by"), ("True 196608 bytes",))[number]
    for words in told:
        assert words in done.stdout
