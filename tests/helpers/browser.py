"""A headless browser for the tests of what people look at."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


class BrowserMissingError(RuntimeError):
    """There is no browser, or no driver for it; the message says what to install."""


def find_browser(which: Callable[[str], str | None] = shutil.which) -> tuple[str, str]:
    """The paths of a Chromium or Chrome and of its driver.

    Raises:
        BrowserMissingError: one of the two isn't on the PATH.
    """
    browser = next((path for path in map(which, BROWSERS) if path), None)
    driver = which("chromedriver")
    missing = [name for name, path in (("Chromium or Chrome", browser), ("chromedriver", driver)) if path is None]
    if browser is None or driver is None:
        raise BrowserMissingError(
            "the browser tests expected Chromium or Chrome and chromedriver on the PATH, got no "
            f"{' and no '.join(missing)}; on Debian: apt install chromium chromium-driver"
        )
    return browser, driver


@contextmanager
def open_browser() -> Iterator[Any]:
    """A headless browser as a selenium driver; it keeps what pages write to the console."""
    from selenium import webdriver

    browser, driver = find_browser()
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    # No sandbox: the tests may run as root in a container, and open only pages that they made themselves.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.add_argument("--window-size=1280,900")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    session = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    try:
        yield session
    finally:
        session.quit()
