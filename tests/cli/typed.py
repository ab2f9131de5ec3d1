"""What tests of commands have in common: a small model, texts, and a command typed in this process."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from headwise.cli.main import main
from tests.study import tiny

__all__ = ["changed", "model", "run", "texts"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Three layers of six query heads on two KV heads."""
    return tiny.save_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    return tiny.write_texts(tmp_path_factory.mktemp("texts") / "all")


@pytest.fixture
def run(capsys) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command in this process, which saves the seconds that importing torch and transformers takes."""

    def inside(*words: object) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    return inside


def changed(usual: Sequence[object], words: Sequence[object]) -> list[object]:
    """Usual options with their values, less those that ``words`` give anew, and then these: none stands twice."""
    pairs = zip(usual[::2], usual[1::2], strict=True)
    return [word for option, value in pairs if option not in words for word in (option, value)] + [*words]
