"""Fixtures that several folders of tests share; a conftest.py takes them by importing them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from headwise.models import Checkpoint, load

__all__ = ["demo", "one_thread"]


@contextmanager
def _single_threaded() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors as small as those of tests are slower on several threads, and very much slower beside other programs."""
    with _single_threaded():
        yield


@pytest.fixture(scope="session")
def demo() -> Checkpoint:
    """The demo model, loaded once for all tests. Whoever changes it puts it back."""
    with _single_threaded():  # a fixture of a session is made before those of a module
        return load("demo")
