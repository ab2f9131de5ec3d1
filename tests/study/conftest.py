"""Tiny models that several test files of the study share."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwise.models import Checkpoint, load
from tests.study import tiny


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory) -> Path:
    return tiny.save_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="session")
def llama(llama_folder) -> Checkpoint:
    return load(llama_folder)


@pytest.fixture(scope="session")
def bert(tmp_path_factory) -> Checkpoint:
    return load(tiny.save_bert(tmp_path_factory.mktemp("models") / "bert"))
