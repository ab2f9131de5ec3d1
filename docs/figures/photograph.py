"""Photograph the report of the demo model for the README: `python docs/figures/photograph.py` after `make demo`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # as pytest does it

from tests.helpers.browser import open_browser  # noqa: E402

WIDTH, HEIGHT = 1400, 1560  # of the window


def photograph(page: Path, picture: Path) -> None:
    """Open a report in a window and save what it shows as a PNG."""
    with open_browser() as driver:
        metrics = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        driver.get(page.as_uri())
        time.sleep(3)  # charts draw themselves
        driver.save_screenshot(str(picture))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Photograph the report of a study.")
    parser.add_argument("page", type=Path, nargs="?", default=ROOT / "build" / "demo" / "report.html")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "report.png", metavar="FILE")
    asked = parser.parse_args()
    photograph(asked.page.resolve(), asked.out)
    print(asked.out)
