"""The page in a real browser: it draws, its parts answer to one another, and it fits a phone and a desk."""

from __future__ import annotations

import json
import re
import time

import pytest

from headwise.report.folder import read_study
from tests.report.made_study import Made

MIXED = [{"num_heads": h, "num_kv_heads": g, "head_dim": 11, "window": w} for h, g, w in
         ((7, 7, None), (5, 1, [127, 0]), (6, 2, None), (3, 3, None))]  # fmt: skip
SMALL = [{"num_heads": 4, "num_kv_heads": 4, "head_dim": 8, "window": None}] * 2
KINDS = {
    "usual": None,
    "none": Made(layers=SMALL, findings=False),
    "encoder": Made(layers=MIXED, causal=False, notes=["no language-model head: effects were not measured"]),
    "mixed": Made(layers=MIXED, set_sizes=(1, 2, 6)),
}


@pytest.mark.parametrize(
    ("kind", "width", "dark"),
    [("usual", 390, True), ("none", 390, False), ("encoder", 1400, True), ("mixed", 390, True), ("usual", 1400, False)],
)
def test_it_draws_without_a_complaint_and_fits_its_room(page, made, kind, width, dark):
    folder = made(kind, KINDS[kind])
    page.open(folder / "report.html", width=width, dark=dark)
    assert page.run("return document.documentElement.dataset.ready") == "yes"
    assert page.complaints() == []
    assert page.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    assert len(page.all("#grid [role=gridcell]")) == read_study(folder).num_heads
    assert len(page.all("#scatter .scatterlayer .trace")) >= 2
    assert len(page.all("#effects-chart .scatterlayer .trace")) == (0 if kind in ("none", "encoder") else 12)
    for part in ("#summary", "#heads"):
        assert not re.search(r"\[object|undefined|NaN|null", page.text(part))


def test_dark_and_light_are_different_and_the_button_chooses(usual):
    chart = "document.querySelector('#scatter').layout.paper_bgcolor"
    background = f"return [getComputedStyle(document.body).backgroundColor, {chart}]"
    light = usual.run(background)
    usual.one("#theme").click()
    assert usual.text("#theme") == "Theme: light"
    assert usual.run(background) == light
    usual.one("#theme").click()
    assert usual.text("#theme") == "Theme: dark"
    assert not set(usual.run(background)) & set(light)
    usual.one("#theme").click()
    assert usual.run(background) == light


def downloaded(folder, name):
    deadline = time.monotonic() + 8
    while time.monotonic() < deadline:
        if (folder / name).is_file():
            return (folder / name).read_bytes()
        time.sleep(0.05)
    raise AssertionError(f"{name} was not saved; there are {[path.name for path in folder.iterdir()]}")


def test_figures_and_numbers_can_be_saved(usual, tmp_path, made):
    place = {"behavior": "allow", "downloadPath": str(tmp_path)}
    usual.driver.execute_cdp_cmd("Browser.setDownloadBehavior", place)
    for button in usual.all(".exports button"):
        usual.run("arguments[0].click()", button)
        time.sleep(0.25)  # browsers hold back downloads that come at once
    for part in ("grid", "scatter", "effects"):
        assert downloaded(tmp_path, f"headwise-SmolLM2-135M-{part}.png").startswith(b"\x89PNG")
        vector = downloaded(tmp_path, f"headwise-SmolLM2-135M-{part}.svg").decode()
        assert vector.startswith("<svg")
        assert "L0.H0" not in vector.split(">", 1)[0]
    lines = downloaded(tmp_path, "headwise-SmolLM2-135M-scores.csv").decode().splitlines()
    assert lines[0].startswith("layer,head,score,probe,decides,value,low,high,uniform")
    assert len(lines) == 1 + len(read_study(made()).scores)


def test_on_paper_it_is_light_and_whole(page, made):
    page.open(made() / "report.html", width=1000, dark=True)
    pdf = page.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(pdf["data"]) > 50_000
    assert page.run("return document.documentElement.dataset.theme ?? 'auto'") == "auto"
    assert page.complaints() == []


def test_the_record_of_the_run_is_told(usual, made):
    manifest = json.loads((made() / "manifest.json").read_text())
    shown = usual.text("#method")
    for part in (
        manifest["model"]["weights_sha256"],
        "--seed 7",
        "2.9.1",
        "6 min 53 s",
        "1.80 GiB",
        "Only what survives",
    ):
        assert part in shown
    assert len(usual.all("#method .passed")) == len(manifest["checks"])
