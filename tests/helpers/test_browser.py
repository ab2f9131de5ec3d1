from __future__ import annotations

import re

import pytest

from tests.helpers.browser import BrowserMissingError, find_browser


def test_any_chromium_will_do():
    there = {"google-chrome": "/opt/chrome", "chromedriver": "/opt/driver"}
    assert find_browser(there.get) == ("/opt/chrome", "/opt/driver")


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        ({}, "Chromium or Chrome and no chromedriver"),
        ({"chromium": "/opt/chromium"}, "chromedriver"),
        ({"chromedriver": "/opt/driver"}, "Chromium or Chrome"),
    ],
)
def test_a_missing_browser_is_an_error_that_says_what_to_install(there, missing):
    message = (
        "the browser tests expected Chromium or Chrome and chromedriver on the PATH, "
        f"got no {missing}; on Debian: apt install chromium chromium-driver"
    )
    with pytest.raises(BrowserMissingError, match=f"^{re.escape(message)}$"):
        find_browser(there.get)


def test_the_browser_opens_a_page_and_keeps_its_console(browser):
    browser.get("data:text/html,<title>here</title><script>console.log('told')</script>")
    assert browser.title == "here"
    assert "told" in "".join(entry["message"] for entry in browser.get_log("browser"))
