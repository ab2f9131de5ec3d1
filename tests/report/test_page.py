"""The file itself: one file, no reference to anything outside, data that can't break out of its element."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import headwise.report.page as assembly
from headwise.report.data import page_data, to_script_json
from headwise.report.folder import read_study
from headwise.report.page import render

LOADING = {"src", "srcset", "href", "data", "poster", "action", "formaction", "background", "ping", "xlink:href"}


class Elements(HTMLParser):
    """Every element with its attributes, and the text of scripts and styles."""

    def __init__(self, page):
        super().__init__(convert_charrefs=False)
        self.elements, self.inside = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self.inside.append([tag, dict(attributes), ""])

    def handle_data(self, data):
        if self.cdata_elem:  # inside a script or a style
            self.inside[-1][2] += data


@pytest.fixture(scope="module")
def page(made):
    return (made() / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def parsed(page):
    return Elements(page)


@pytest.fixture(scope="module")
def policy(parsed):
    return next(a["content"] for t, a in parsed.elements if a.get("http-equiv") == "Content-Security-Policy")


def test_no_element_loads_anything(parsed):
    loaded = [(t, n, v) for t, a in parsed.elements for n, v in a.items() if n in LOADING and not v.startswith("#")]
    assert loaded == []
    assert {tag for tag, _ in parsed.elements} & {"link", "img", "iframe", "object", "embed", "base", "form"} == set()


def test_no_style_loads_anything(parsed):
    styles = "".join(text for tag, _, text in parsed.inside if tag == "style")
    assert "--finding" in styles
    assert not re.search(r"url\(|@import|https?:", styles)


def test_our_scripts_name_no_address_and_parse_no_markup(parsed):
    ours = parsed.inside[-1][2]
    assert "function drawGrid" in ours
    addresses = set(re.findall(r"https?://[^\"'`\s]+", ours))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a namespace, never fetched
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|fetch\(", ours)


def test_the_policy_allows_two_scripts_by_hash_and_nothing_from_outside(policy, parsed):
    scripts = [text for tag, attributes, text in parsed.inside if tag == "script" and "type" not in attributes]
    hashes = ["sha256-" + base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert len(hashes) == 2
    assert policy == (
        f"default-src 'none'; script-src '{hashes[0]}' '{hashes[1]}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def test_the_policy_comes_before_anything_it_rules(parsed):
    tags = [tag for tag, _ in parsed.elements]
    assert tags[:4] == ["html", "head", "meta", "meta"]
    assert parsed.elements[3][1]["http-equiv"] == "Content-Security-Policy"


def test_the_data_is_all_there_and_plain_json(parsed, made):
    data = json.loads(parsed.inside[1][2], parse_constant=lambda name: pytest.fail(f"{name} isn't JSON"))
    study = read_study(made())
    assert len(data["heads"]["layer"]) == study.num_heads == 270
    for entry in data["scores"]:
        rows = study.scores[(study.scores["score"] == entry["score"]) & (study.scores["probe"] == entry["probe"])]
        expected = rows.sort_values(["layer", "head"])["value"].to_numpy()
        np.testing.assert_allclose(np.array(entry["value"], float), expected, rtol=1e-4)
    assert data["scores"][-1]["q"] == [None] * 270
    assert len(data["effects"]) == len(study.effects)


def test_an_odd_table_order_changes_nothing(made):
    study = read_study(made())
    expected = to_script_json(page_data(study)["scores"])
    shuffled = study.scores.sample(frac=1, random_state=3)
    assert to_script_json(page_data(type(study)(**(vars(study) | {"scores": shuffled})))["scores"]) == expected


@pytest.mark.parametrize(
    "text", ["</script><!--<script>", "&lt;", "a\u2028b\u2029c", "\ud83d", "\x00\x1f", "{{plotly}}"]
)
def test_data_survives_and_stays_inside_its_element(text):
    written = to_script_json({"tokens": [text]})
    assert json.loads(written) == {"tokens": [text]}
    assert not re.search("[<>&\u2028\u2029\x00-\x1f\x7f-\U0010ffff]", written)
    written.encode("utf-8")


def test_infinities_and_nan_become_null(made):
    study = read_study(made())
    study.manifest["settings"] = {"a": float("inf"), "b": [float("nan")], "c": np.float32(0.5), "d": np.bool_(True)}
    assert page_data(study)["manifest"]["settings"] == {"a": None, "b": [None], "c": 0.5, "d": True}


def test_a_script_that_would_end_its_element_is_refused(monkeypatch, made):
    monkeypatch.setattr(assembly, "_asset", lambda name: "const a = '</SCRIPT >';")
    with pytest.raises(RuntimeError, match="can't be inlined"):
        render(made())


def test_the_same_study_gives_the_same_page(made, page):
    assert render(made()) == page
