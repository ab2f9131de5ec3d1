"""Text from a study is never markup, never code, and is shown as it is."""

from __future__ import annotations

import json
import re

import pytest

from tests.report.made_study import Made, make_study

IMAGE = "</script><img src=x onerror=alert(1)>"
QUOTES = "\"'`;window.__pwned=1;//\\"
HOSTILE = [
    IMAGE,
    QUOTES,
    "<script>window.__pwned=1</script>",
    "<svg/onload=window.__pwned=1>",
    "]]><!--",
    "{{scripts}}",
    "${window.__pwned=1}",
    "🙈🏽👩‍👩‍👧",
    "a\u2028b\u2029c",
    "\u202eשלם עלם\u202c",
    "\x00\x07",
    "javascript:window.__pwned=1",
    "<b>bold</b><a href='https://example.org'>a</a><br>",
    "",
    " ",
    "\n",
]
LAYERS = [{"num_heads": 5, "num_kv_heads": 5, "head_dim": 11, "window": None}] * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from headwise.report import write_report

    hostile = " ".join(text for text in HOSTILE if text.strip())
    checks = [{"name": IMAGE, "passed": False, "detail": QUOTES}]
    made = Made(layers=LAYERS, name=hostile, source=hostile, tokens=[*HOSTILE, IMAGE], notes=[hostile], checks=checks)
    folder = make_study(tmp_path_factory.mktemp("hostile"), made)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["settings"] = {IMAGE: QUOTES, "list": [IMAGE], "nested": {IMAGE: IMAGE}}
    manifest["versions"][IMAGE] = IMAGE
    manifest["command"] = ["headwise", IMAGE, QUOTES]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def opened(page, folder):
    return page.open(folder / "report.html")


def test_no_text_runs_or_loads(opened):
    assert opened.run("return document.documentElement.dataset.ready") == "yes"
    for option in opened.all("#grid-measure option, #scatter-x option, #scatter-y option"):
        opened.run("arguments[0].selected = true; arguments[0].parentNode.dispatchEvent(new Event('change'))", option)
    for cell in opened.all("#grid [role=gridcell]"):
        opened.fire(cell, "pointerover")
        opened.fire(cell, "click")
    assert opened.complaints() == []
    assert opened.run("return typeof window.__pwned") == "undefined"
    assert opened.all("img, iframe, object, [onerror], [onload], main script, a[href*=example]") == []


def test_the_text_is_shown_as_it_is(opened):
    assert IMAGE in opened.text("#model")
    assert QUOTES in opened.text("#read")
    assert IMAGE in opened.text("#alerts")
    assert IMAGE in opened.text("#method")
    assert opened.run("return document.title").startswith(IMAGE)


def test_tokens_are_shown_as_they_are(opened, folder):
    example = json.loads((folder / "examples.json").read_text())[0]
    opened.fire(opened.one(f"#grid [data-head='L{example['layer']}.H{example['head']}']"), "click")
    texts = opened.run("return [...document.querySelector('#card .example').children].map((node) => node.textContent)")
    assert texts == [token.replace("\n", "↵\n") for token in example["tokens"]]


def test_the_file_holds_no_such_markup(folder):
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "onerror=alert" not in page.replace("\\u003cimg src=x onerror=alert(1)", "")
    # The policy, the data, plotly, ours: no other script begins.
    assert len(re.findall(r"<script[ >]", page.split("</style>")[1])) == 3


def test_the_watch_would_see_it(page, tmp_path):
    """The same text, written as markup: the tests above can fail."""
    (tmp_path / "open.html").write_text(
        f"<script>'{IMAGE}<script>window.__pwned=1</script><img src=http://localhost:9/>"
    )
    page.open(tmp_path / "open.html")
    page.run("return new Promise((done) => setTimeout(done, 200))")
    assert page.run("return window.__pwned") == 1
    assert "1" in page.complaints()
