"""A folder that isn't a finished study is refused in one line that says what is missing and what to do."""

from __future__ import annotations

import json
import re
import shutil

import pandas as pd
import pytest

from headwise.errors import UserError
from headwise.report import write_report
from headwise.report.folder import read_study
from tests.report.made_study import Made, make_study


@pytest.fixture
def study(made, tmp_path):
    """A copy that a test may break."""
    return shutil.copytree(made(), tmp_path / "study")


def refused(folder, message):
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        write_report(folder)
    assert "\n" not in str(caught.value)
    assert "headwise study" in str(caught.value)


def test_no_folder(tmp_path):
    refused(tmp_path / "none", f"report: expected a study folder at {tmp_path / 'none'}, got nothing there")


def test_a_file_instead_of_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", "got a file; make one with `headwise study MODEL --out")


@pytest.mark.parametrize("name", ["manifest.json", "scores.parquet"])
def test_an_unfinished_study(study, name):
    (study / name).unlink()
    refused(study, f"isn't a finished study: {name} is missing; run `headwise study MODEL --out {study}`")


def test_a_broken_manifest(study):
    (study / "manifest.json").write_text('{"model": ')
    refused(study, "manifest.json can't be read as JSON")


@pytest.mark.parametrize("content", ["{}", "[]", '{"model": {"name": "m"}, "layers": []}'])
def test_a_manifest_of_something_else(study, content):
    (study / "manifest.json").write_text(content)
    refused(study, "manifest.json lacks ")


def test_a_table_that_is_no_parquet(study):
    (study / "effects.parquet").write_bytes(b"PAR1 no")
    refused(study, "effects.parquet can't be read")


def test_a_table_of_another_version(study):
    table = pd.read_parquet(study / "scores.parquet").drop(columns=["null", "q_value"])
    table.to_parquet(study / "scores.parquet")
    refused(study, "scores.parquet lacks the columns null, q_value; it comes from another version")


def test_a_table_without_rows(study):
    pd.read_parquet(study / "scores.parquet").iloc[:0].to_parquet(study / "scores.parquet")
    refused(study, "scores.parquet holds no rows")


def test_scores_of_another_model(study):
    manifest = json.loads((study / "manifest.json").read_text())
    manifest["layers"] = manifest["layers"][:12]
    (study / "manifest.json").write_text(json.dumps(manifest))
    refused(study, "which manifest.json doesn't have; the files come from different studies")


def test_an_example_without_weights(study):
    (study / "examples.json").write_text('[{"layer": 0, "head": 0, "score": "first", "document": 0, "query": 0}]')
    refused(study, "examples.json lacks tokens, weights; run")


@pytest.mark.parametrize("name", ["importance.parquet", "effects.parquet", "examples.json"])
def test_what_a_study_may_leave_out(study, name):
    (study / name).unlink()
    assert len(getattr(read_study(study), name.split(".")[0])) == 0
    write_report(study)


def test_a_place_that_cannot_be_written(study, tmp_path):
    with pytest.raises(UserError, match=r"can't write .*name another file with --out"):
        write_report(study, tmp_path / "none" / "page.html")


def test_a_failed_write_leaves_the_earlier_page_and_no_rest(study, monkeypatch):
    (study / "report.html").write_text("earlier")

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headwise.report.page.os.replace", fail)
    with pytest.raises(UserError, match="No space left on device"):
        write_report(study)
    assert (study / "report.html").read_text() == "earlier"
    assert not list(study.glob(".*"))


def test_the_page_lies_where_it_is_asked_for(study, tmp_path):
    (study / "report.html").unlink()
    assert write_report(study, tmp_path / "page.html") == tmp_path / "page.html"
    assert not (study / "report.html").exists()
    assert write_report(str(study)) == study / "report.html"


def test_layers_with_different_numbers_of_heads(tmp_path):
    sizes = [(5, 5), (7, 1), (3, 3)]
    layers = [{"num_heads": h, "num_kv_heads": g, "head_dim": 11, "window": None} for h, g in sizes]
    assert read_study(make_study(tmp_path / "odd", Made(layers=layers))).num_heads == 15
