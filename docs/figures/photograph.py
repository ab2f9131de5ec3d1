"""Photograph the report of the demo model for the README: `python docs/figures/photograph.py` after `make demo`."""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from selenium import webdriver

ROOT = Path(__file__).parents[2]
WIDTH, HEIGHT = 1400, 1560  # of the window
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def photograph(page: Path, picture: Path) -> None:
    """Open a report in a window and save what it shows as a PNG."""
    options = webdriver.ChromeOptions()
    options.binary_location = next(path for path in map(shutil.which, BROWSERS) if path)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        metrics = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        driver.get(page.as_uri())
        time.sleep(3)  # charts draw themselves
        driver.save_screenshot(str(picture))
    finally:
        driver.quit()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Photograph the report of a study.")
    parser.add_argument("page", type=Path, nargs="?", default=ROOT / "build" / "demo" / "report.html")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "report.png", metavar="FILE")
    asked = parser.parse_args()
    photograph(asked.page.resolve(), asked.out)
    print(asked.out)
