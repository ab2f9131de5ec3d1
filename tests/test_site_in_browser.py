"""The built site in a real browser: it fits a phone and a desk in light and dark, and it asks nothing of a network."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.test_site import DOCS, ROOT, SETTINGS

pytestmark = pytest.mark.slow

WIDTHS = (1280, 390)
SCHEMES = {"default": "only-light", "slate": "only-dark"}  # of the theme, and the end of the figures that fit it
LESSON = [page.replace(".md", ".html") for page in re.findall(r": (lesson/[\w-]+\.md)$", SETTINGS, re.MULTILINE)]
# Beside the lesson: the start, a how-to, an explanation with figures, and the pages with the widest tables and names.
PAGES = ["index.html", *LESSON, "how-to/halve-my-cache.html", "explanations/kernels.html", "features.html",
         "reshape.html", "claims/index.html", "api/surgery.html"]  # fmt: skip

SMALLEST = 630  # pixels in width: the figures are made for 635 to 710, with words that are read at that size
BUTTONS = {"default": "__palette_2", "slate": "__palette_0"}  # what the header's button would switch to next

# What sticks out to the right of the page; parts that scroll or are cut by something inside of it do not count.
STICKS_OUT = """
const room = document.documentElement.clientWidth;
const inside = (node) => {
  for (let up = node.parentElement; up !== null; up = up.parentElement)
    if (getComputedStyle(up).overflowX !== "visible" && up.getBoundingClientRect().right <= room + 1) return true;
  return false;
};
const wide = document.scrollingElement.scrollWidth > room ? ["the page"] : [];
for (const node of document.querySelectorAll(".md-content *")) {
  const box = node.getBoundingClientRect();
  if (box.width > 0 && box.right > room + 1 && !inside(node))
    wide.push(`${node.tagName} ${node.textContent.slice(0, 40)}`);
}
return wide;
"""

FIGURES = """
return [...document.querySelectorAll(".md-content img")].filter((img) => getComputedStyle(img).display !== "none")
  .map((img) => ({end: img.src.split("#")[1], loaded: img.complete && img.naturalWidth > 0, width: img.width}));
"""

# Words of code whose colour is too close to what they stand on: WCAG asks for a ratio of 4.5.
HARD_TO_READ = """
const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const painted = (...colours) => {
  for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const light = (colour) => {
  const [red, green, blue] = colour.map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05;
};
const found = new Map();
for (const block of document.querySelectorAll(".md-content pre > code")) {
  const ground = ["white", getComputedStyle(document.body).backgroundColor, getComputedStyle(block).backgroundColor];
  const below = light(painted(...ground));
  for (const word of [block, ...block.querySelectorAll("span[class]")]) {
    const colour = getComputedStyle(word).color;
    if (found.has(colour)) continue;
    const above = light(painted(...ground, colour));
    found.set(colour, [Math.max(above, below) / Math.min(above, below), `${word.className} ${colour}`]);
  }
}
return [...found.values()].filter(([ratio]) => ratio < 4.5).map(([ratio, word]) => `${word}: ${ratio.toFixed(2)}`);
"""


# Opens every folded question, after closing it again once: before, after two presses, after three, and what is shown.
QUESTIONS = """
return [...document.querySelectorAll("details")].map((question) => {
  const press = () => { question.querySelector("summary").click(); return question.open; };
  const before = question.open;
  press();
  return [before, press(), press(), question.lastElementChild.getBoundingClientRect().height > 0];
});
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once into a folder of its own."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is installed by `make docs`")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    return folder


class Reader:
    """The browser on a page of the site."""

    def __init__(self, driver: Any, site: Path) -> None:
        self.driver = driver
        self.site = site

    def open(self, page: str, width: int = WIDTHS[0]) -> None:
        self.resize(width)
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get((self.site / page).as_uri())

    def resize(self, width: int) -> None:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def scheme(self) -> str:
        return self.run("return document.body.dataset.mdColorScheme")

    def choose(self, scheme: str) -> None:
        """Press the button of the header until this scheme is on, whatever the system prefers."""
        for _ in range(3):
            button = self.driver.find_element("css selector", ".md-header label[for^=__palette]:not([hidden])")
            if button.get_attribute("for") == BUTTONS[scheme]:
                break
            button.click()
        assert self.scheme() == scheme

    def wait(self, what: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + 10
        while not (found := what()):
            assert time.monotonic() < deadline, "it did not come within ten seconds"
            time.sleep(0.05)
        return found

    def complaints(self) -> list[str]:
        """Errors and warnings in the console, and whatever was fetched from elsewhere than the site's own folder."""
        fetched = self.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        console = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]
        return [*console, *(name for name in fetched if not name.startswith((self.site.as_uri(), "data:")))]


@pytest.fixture
def reader(browser: Any, site: Path) -> Iterator[Reader]:
    light = [{"name": "prefers-color-scheme", "value": "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": light})
    yield Reader(browser, site)
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_its_room_in_light_and_dark(reader, page):
    markdown = (DOCS / page).with_suffix(".md").read_text(encoding="utf-8")
    figures = len(re.findall(r"!\[[^\]]*\]\([\w./-]+\.svg\)", markdown))
    reader.open(page)
    questions = reader.run(QUESTIONS)
    assert questions == [[False, False, True, True]] * len(re.findall(r"^\?\?\? ", markdown, re.MULTILINE))
    for scheme, end in SCHEMES.items():
        for width in WIDTHS:
            reader.resize(width)
            reader.choose(scheme)
            case = f"{width} pixels, {scheme}"
            assert reader.run(STICKS_OUT) == [], case
            shown = reader.run(FIGURES)
            assert [figure["end"] for figure in shown] == [end] * figures, case
            assert all(figure["loaded"] for figure in shown), case
            assert all(figure["width"] >= SMALLEST for figure in shown), f"{case}: words too small to read"
            assert reader.run(HARD_TO_READ) == [], case
    assert reader.complaints() == []


def test_the_choice_of_light_or_dark_is_kept_on_other_pages(reader):
    for scheme in ("slate", "default"):
        reader.open("index.html")
        reader.choose(scheme)
        reader.open(LESSON[1])
        assert reader.scheme() == scheme
    reader.open("index.html")
    assert reader.scheme() == "default"


def test_search_finds_a_page_and_opens_it(reader):
    reader.open("lesson/index.html")
    field = reader.driver.find_element("css selector", ".md-search__input")
    reader.wait(field.is_displayed)
    field.click()
    field.send_keys("induction")
    found = reader.wait(lambda: reader.driver.find_elements("css selector", ".md-search-result__link"))
    assert "how-to/find-induction-heads.html" in found[0].get_attribute("href")
    found[0].click()
    reader.wait(lambda: "find-induction-heads.html" in reader.driver.current_url)
    assert reader.driver.find_element("css selector", "h1").text.startswith("Find the induction heads")
    assert reader.complaints() == []


def test_next_and_previous_go_through_the_lesson_in_order(site):
    for page, following in pairwise(LESSON):
        for here, way, there in ((page, "next", following), (following, "prev", page)):
            html = (site / here).read_text(encoding="utf-8")
            link = re.search(rf'href="([^"]+)" class="md-footer__link md-footer__link--{way}"', html)
            assert link is not None
            assert (site / here).parent / link[1] == site / there


@pytest.mark.parametrize("page", ["index.html", "lesson/masks.html"])
def test_the_navigation_leads_to_every_page(reader, page):
    reader.open(page)
    links = reader.run("return [...document.querySelectorAll('.md-nav--primary a')].map((a) => a.href.split('#')[0])")
    built = {path.as_uri() for path in reader.site.rglob("*.html")} - {(reader.site / "404.html").as_uri()}
    assert set(links) == built
