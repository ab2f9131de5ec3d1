"""What holds for every test: no network, the same random numbers each time, no window."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import settings

from tests.helpers.browser import BrowserMissingError, open_browser

# Before anything imports the libraries that read them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "Agg"
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does it
os.environ.pop("HEADWISE_DEBUG", None)
# Started in the background of a shell, this process ignores interrupts, and so would every command that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Times differ too much between machines for a deadline. On CI the examples are always the same, so that a change is
# never blamed for what another draw would have found.
settings.register_profile("headwise", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("headwise")


# Few tests that take long: started first, so that the processes that run tests end at about the same time.
LONG = ("test_readme.py", "test_pages.py", "test_ranks.py", "test_uptrain_ranks.py", "test_docs.py", "test_study.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))  # keeps the order


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    # Only where torch is loaded already: most tests of the command line do without it.
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(20240531)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless browser as a selenium driver, shared by all tests; its absence fails them instead of skipping them."""
    with ExitStack() as stack:
        missing = None
        try:
            driver = stack.enter_context(open_browser())
        except BrowserMissingError as error:
            missing = str(error)
        if missing is not None:  # outside of the handler, so that the message stands alone
            pytest.fail(missing, pytrace=False)
        yield driver
