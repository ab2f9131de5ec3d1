"""`headwise report`: what it prints, where it writes, how it refuses."""

from __future__ import annotations

import json

import pytest

from headwise.cli.main import main
from tests.report.made_study import Made


def test_it_writes_the_page_and_prints_its_path(made, tmp_path, capsys):
    assert main(["report", str(made()), "--out", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    assert (tmp_path / "page.html").read_bytes() == (made() / "report.html").read_bytes()


def test_json_is_one_object(made, tmp_path, capsys):
    folder = made("one layer", Made(layers=[{"num_heads": 5, "num_kv_heads": 1, "head_dim": 7, "window": None}]))
    page, picture = tmp_path / "page.html", tmp_path / "heads.png"
    assert main(["report", str(folder), "--out", str(page), "--figure", str(picture), "--json"]) == 0
    expected = {"report": str(page), "figure": str(picture), "bytes": page.stat().st_size}
    assert json.loads(capsys.readouterr().out) == expected
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_open_shows_the_page(made, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    assert main(["report", str(made()), "--out", str(tmp_path / "a page.html"), "--open"]) == 0
    assert shown == [(tmp_path / "a page.html").as_uri()]


def test_an_unfinished_study_is_wrong_input(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"headwise: report: {tmp_path} isn't a finished study: manifest.json is missing")
    assert told.err.count("\n") == 1


@pytest.mark.parametrize("words", [[], ["--figure", "x.png"]])
def test_a_folder_is_needed(words, capsys):
    assert main(["report", *words]) == 2
    assert "folder" in capsys.readouterr().err
