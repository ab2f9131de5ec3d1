from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.fixtures import demo, one_thread
from tests.study.tiny import save_bert, save_llama

__all__ = ["demo", "one_thread"]


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory) -> Path:
    """A small Llama as a folder that loads."""
    return save_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory) -> Path:
    """A small BERT as a folder that loads."""
    return save_bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture
def folder(llama_folder, tmp_path) -> Path:
    """A checkpoint that a test may spoil."""
    return Path(shutil.copytree(llama_folder, tmp_path / "model"))
