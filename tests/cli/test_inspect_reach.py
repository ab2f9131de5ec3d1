"""What `inspect` says of KV heads is what the command `convert` takes; all methods and architectures are in
tests/surgery/test_layout_reach.py."""

from __future__ import annotations

import json

import pytest

from headwise.surgery.export import export
from tests.cli.typed import run, texts
from tests.surgery.resized import resized, whole

__all__ = ["run", "texts"]

MADE = {
    "llama": lambda: whole("llama"),
    "layers of 2, 4 and 2": lambda: resized("llama", 4, 4, [1]),
    "qwen3": lambda: whole("qwen3"),
    "gpt2": lambda: whole("gpt2"),
    "gpt2 with heads removed": lambda: resized("gpt2", 4, 4),
    "gpt-neox": lambda: whole("gpt-neox"),
    "bert": lambda: whole("bert"),
}


@pytest.mark.parametrize("name", MADE)
def test_the_command_makes_what_is_told_and_nothing_else(run, tmp_path, texts, name):
    folder = export(MADE[name](), tmp_path / "model")
    found = json.loads(run("inspect", folder, "--json").stdout)
    most = max(layer["num_kv_heads"] for layer in found["layers"])
    for method in ("pca", "first"):
        made = []
        for number in range(1, most + 1):
            words = ("--kv-heads", number, "--method", method, "--steps", 0, "--documents", texts, "--json")
            out = ("--out", tmp_path / f"{method}-{number}", "--tokens", 700, "--length", 50)
            made += [number] * (run("convert", folder, *words, *out).returncode == 0)
        assert found["reach"]["fewer"].get(method, []) == made, method
