"""Fixtures that several folders of tests share; a conftest.py takes them by importing them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from headwise.models import Checkpoint, load

__all__ = ["demo", "one_thread"]


@pytest.fixture(scope="session")
def demo() -> Checkpoint:
    """The demo model, loaded once for all tests. Whoever changes it puts it back."""
    return load("demo")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors as small as those of tests are slower on several threads, and very much slower beside other programs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
