"""`headwise experiment` as it is typed: the list, tables, JSON, the folder, resuming, and refusals."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from headwise.bench.experiments import EXPERIMENTS
from tests.bench.experiments.toy import CALLS, TOY
from tests.cli.typed import run
from tests.fixtures import one_thread

__all__ = ["one_thread", "run"]

FILES = {"runs.jsonl", "summary.json", "manifest.json", "figure.png"}


@pytest.fixture
def toy(monkeypatch) -> None:
    """In the place of `heads`, an experiment that takes no time."""
    from headwise.bench import experiments

    CALLS.clear()
    monkeypatch.setattr(experiments, "load_experiment", lambda name: TOY)


def _strict(text: str):
    def refuse(word: str):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_without_a_name_they_are_listed(run):
    done = run("experiment")
    assert done.returncode == 0
    for name, line in EXPERIMENTS.items():
        assert re.search(rf"^{name} +{re.escape(line)}$", done.stdout, re.MULTILINE)
    assert "headwise experiment NAME" in done.stdout
    assert json.loads(run("experiment", "--json").stdout) == {"experiments": EXPERIMENTS}


def test_an_unknown_name_is_refused_with_the_list(run):
    done = run("experiment", "haeds")
    assert done.returncode == 2
    assert done.stderr == f"headwise: experiment: expected one of {', '.join(EXPERIMENTS)}, got 'haeds'\n"


@pytest.mark.parametrize("count", [1, 0, -3])
def test_fewer_than_two_seeds_are_refused(run, toy, count):
    done = run("experiment", "heads", "--seeds", count)
    assert done.returncode == 2
    assert "expected 2 seeds or more, for intervals over them" in done.stderr
    assert not CALLS


def test_the_table_says_what_was_measured_and_what_follows(run, toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("experiment", "heads", "--seeds", 7)
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "Is b higher than a?" in words
    assert "cache [bytes] 64 64 to 64 6" in words, "square brackets are no markup; a seed without a value is left out"
    assert re.search(r"b − a \+0\.\d{3} 0\.\d{3} to 1\.\d{3} 0\.016 yes", words)
    assert "What the numbers show - b is higher: +0." in words
    assert "note: 7 seeds: intervals are wide" in words
    assert not list(tmp_path.iterdir()), "without --out nothing is written"


def test_json_is_one_object_and_nothing_else(run, toy):
    done = run("experiment", "heads", "--seeds", 2, "--seed", 40, "--json")
    record = _strict(done.stdout)
    assert record["seeds"] == [40, 41]
    assert record["folder"] is None
    assert record["rows"][0] | {"values": 0, "mean": 0, "low": 0, "high": 0} == {
        "condition": "a", "measure": "loss", "title": "loss (nats)", "mean": 0, "low": 0, "high": 0, "n": 2,
        "values": 0, "form": ".3f",
    }  # fmt: skip
    assert record["findings"][0]["kind"] == "not shown"
    assert record["manifest"]["settings"] == {"shift": 1.0}
    assert "seed 40, a" in done.stderr


def test_a_folder_holds_runs_summary_manifest_and_figure(run, toy, tmp_path):
    out = tmp_path / "new"
    done = run("experiment", "heads", "--seeds", 3, "--out", out)
    assert done.returncode == 0, done.stderr
    assert {file.name for file in out.iterdir()} == FILES
    assert not out.with_name("new.partial").exists()
    runs = [_strict(line) for line in (out / "runs.jsonl").read_text().splitlines()]
    assert [(each["condition"], each["seed"]) for each in runs] == [(c, s) for s in range(3) for c in "ab"]
    assert _strict((out / "summary.json").read_text())["notes"]
    manifest = _strict((out / "manifest.json").read_text())
    assert manifest["seeds"] == [0, 1, 2]
    assert manifest["environment"]["versions"]["torch"]
    assert (out / "figure.png").read_bytes()[:4] == b"\x89PNG"
    assert f"written: {out}" in done.stdout
    again = run("experiment", "heads", "--seeds", 3, "--out", out)
    assert again.returncode == 2
    assert f"{out}: exists already; give another --out, or --overwrite to replace it" in again.stderr
    assert run("experiment", "heads", "--seeds", 2, "--out", out, "--overwrite").returncode == 0
    assert len((out / "runs.jsonl").read_text().splitlines()) == 4


def test_interrupted_it_goes_on_to_the_same_numbers(run, toy, tmp_path, monkeypatch):
    from headwise.bench import experiments

    whole, out = tmp_path / "whole", tmp_path / "new"
    run("experiment", "heads", "--seeds", 3, "--out", whole)

    def killed(condition, seed, settings):
        if (condition, seed) == ("a", 2):
            raise KeyboardInterrupt
        return TOY.run(condition, seed, settings)

    with monkeypatch.context() as patched:
        patched.setattr(experiments, "load_experiment", lambda name: replace(TOY, run=killed))
        done = run("experiment", "heads", "--seeds", 3, "--out", out)
    assert done.returncode == 130
    assert f"what is finished is kept in {out}.partial; the same command goes on from there" in done.stderr
    assert not out.exists()
    CALLS.clear()
    done = run("experiment", "heads", "--seeds", 3, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "going on after 4 of 6 runs" in done.stderr
    assert CALLS == [("a", 2), ("b", 2)]
    assert (out / "summary.json").read_bytes() == (whole / "summary.json").read_bytes()
    assert (out / "figure.png").read_bytes() == (whole / "figure.png").read_bytes()


def test_a_folder_of_another_kind_is_refused_before_any_run(run, toy, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    done = run("experiment", "heads", "--out", tmp_path, "--overwrite")
    assert done.returncode == 2
    assert "not what headwise writes as a result of an experiment (no runs.jsonl)" in done.stderr
    assert not CALLS
    assert (tmp_path / "notes.txt").read_text() == "mine"
