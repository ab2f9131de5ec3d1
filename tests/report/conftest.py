"""The browser of the page tests: what a page writes, asks for or tries to run is kept and looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwise.report import write_report
from headwise.report.folder import read_study
from tests.report.made_study import Made, make_study

# Runs before any script of the page, so that nothing the page does at its start escapes it.
WATCH = """
const seen = window.__seen = {alerts: [], violations: [], errors: []};
for (const name of ['alert', 'confirm', 'prompt']) window[name] = (text) => { seen.alerts.push(String(text)); };
addEventListener('securitypolicyviolation', (e) => seen.violations.push(`${e.violatedDirective} ${e.blockedURI}`));
addEventListener('error', (e) => seen.errors.push(e.message));
addEventListener('unhandledrejection', (e) => seen.errors.push(String(e.reason)));
"""

RESET = """
scrollTo(0, 0);
for (const box of document.querySelectorAll('input[type=checkbox]:checked')) box.click();
for (const control of document.querySelectorAll('select, input[type=search]')) {
  const first = control.querySelector('option')?.value ?? '';
  if (control.value === first || control.id.startsWith('grid') || control.id.startsWith('scatter')) continue;
  control.value = first;
  for (const event of ['input', 'change']) control.dispatchEvent(new Event(event));
}
document.querySelector('#tiles [data-score=induction]').click();
const up = document.querySelector('#scatter-y');
up.value = 'importance/repeated';
up.dispatchEvent(new Event('change'));
"""


class Page:
    """A report in the browser."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, width: int = 1400, height: int = 1000, dark: bool = False, query: str = "") -> Page:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},  # a page that still scrolls can't be clicked
        ]
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get("about:blank")  # or a change of the part after # alone would not load the page again
        self.driver.get_log("browser")
        self.driver.get(path.as_uri() + query)
        return self

    def reset(self) -> Page:
        """Bring every control back to where the page opens, which takes a tenth of the time of opening it again."""
        self.run(RESET)
        self.driver.get_log("browser")
        return self

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def fire(self, element: Any, event: str) -> None:
        """Send an event to an element, wherever it lies: for many elements much faster than the mouse."""
        self.run("arguments[0].dispatchEvent(new PointerEvent(arguments[1], {bubbles: true}))", element, event)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option as a person does: by name, with the events that come with it."""
        from selenium.webdriver.support.ui import Select

        Select(self.one(selector)).select_by_value(value)

    def complaints(self) -> list[str]:
        """Everything that must not happen: console errors, exceptions, refused or made requests, dialogs."""
        seen = self.run("return window.__seen")
        requests = self.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        console = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        return [*seen["alerts"], *seen["violations"], *seen["errors"], *requests, *console]


@pytest.fixture(scope="session")
def page(browser: Any) -> Iterator[Page]:
    """The shared browser, watched."""
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
    yield Page(browser)
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a study made with these settings, with its report; each is made once per run."""
    folders: dict[str, Path] = {}

    def make(name: str = "usual", settings: Made | None = None) -> Path:
        if name not in folders:
            folders[name] = make_study(tmp_path_factory.mktemp("studies") / name, settings)
            write_report(folders[name])
        return folders[name]

    return make


@pytest.fixture
def usual(page, made):
    """The usual study, as it opens."""
    path = made() / "report.html"
    if page.driver.current_url.split("#")[0] == path.as_uri() and page.run("return innerWidth") == 1400:
        page.reset()
    else:
        page.open(path)
    yield page
    assert page.complaints() == []


@pytest.fixture(scope="session")
def findings(made):
    table = read_study(made()).scores
    return table[table["finding"]]
