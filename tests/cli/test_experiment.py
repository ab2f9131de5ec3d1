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


@pytest.mark.parametrize("count", [1, 0, -3, 1_001, 10**12, 10**30])
def test_too_few_and_too_many_seeds_are_refused_with_what_was_typed(run, toy, count):
    done = run("experiment", "heads", "--seeds", count)
    assert done.returncode == 2
    expected = "2 seeds or more, for intervals" if count < 2 else "1,000 seeds or fewer, since all their runs"
    assert f"expected {expected}" in done.stderr
    assert f", got {count}; give --seeds 10" in done.stderr
    assert not CALLS


@pytest.mark.parametrize(
    "words",
    [("--out", "x"), ("--seeds", 10), ("--seed", 0), ("--threads", 1), ("--overwrite",), ("--json", "--out", "x")],
)
def test_the_list_takes_no_options_that_say_how_to_run(run, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    done = run("experiment", *words)
    assert (done.returncode, done.stdout) == (2, "")
    option = words[1] if words[0] == "--json" else words[0]
    assert done.stderr == (
        f"headwise: {option}: expected NAME with it, the experiment to run; give one of {', '.join(EXPERIMENTS)}, or "
        "leave this out\n"
    )


def test_overwrite_without_a_folder_is_refused_before_any_run(run, toy):
    done = run("experiment", "heads", "--overwrite")
    assert done.returncode == 2
    assert done.stderr == (
        "headwise: --overwrite: expected --out with it, the folder to replace; name it, or leave this out\n"
    )
    assert not CALLS


@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_a_folder_where_a_half_finished_experiment_is_kept_is_not_removed(run, toy, tmp_path, more):
    (tmp_path / "q.partial").mkdir()
    (tmp_path / "q.partial" / "important").write_text("mine")
    done = run("experiment", "heads", "--seeds", 2, "--out", tmp_path / "q", *more)
    assert done.returncode == 2
    assert done.stderr == (
        f"headwise: {tmp_path}/q.partial: expected a half-finished experiment, which is kept there, or nothing, got a "
        "folder with content but no request.json, which not even --overwrite replaces; move it away, or give another "
        "--out\n"
    )
    assert not CALLS
    assert (tmp_path / "q.partial" / "important").read_text() == "mine"


def test_the_table_says_what_was_measured_and_what_follows(run, toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("experiment", "heads", "--seeds", 7)
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "Is b higher than a?" in words
    assert "cache [bytes] 64 – 6" in words, "square brackets are no markup; a seed without a value is left out"
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
    assert again.stderr.endswith(
        f"{out}: exists already, with these 3 seeds; give more --seeds to go on from it, another --out, or "
        "--overwrite to replace it\n"
    )
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


def _runs(folder) -> list:
    runs = [_strict(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    return [(run["condition"], run["seed"], run["numbers"]) for run in runs]


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("first", [(0, 3), (2, 3)])
def test_a_finished_experiment_grows_to_the_numbers_of_one_from_scratch(
    run, toy, tmp_path, monkeypatch, first, interrupted
):
    from headwise.bench import experiments

    whole, out = tmp_path / "whole", tmp_path / "new"
    run("experiment", "heads", "--seeds", 7, "--out", whole)
    seed, count = first
    assert run("experiment", "heads", "--seed", seed, "--seeds", count, "--out", out).returncode == 0
    if interrupted:

        def killed(condition, seed, settings):
            if seed == 6:
                raise KeyboardInterrupt
            return TOY.run(condition, seed, settings)

        before = {file.name: file.read_bytes() for file in out.iterdir()}
        with monkeypatch.context() as patched:
            patched.setattr(experiments, "load_experiment", lambda name: replace(TOY, run=killed))
            assert run("experiment", "heads", "--seeds", 7, "--out", out).returncode == 130
        assert {file.name: file.read_bytes() for file in out.iterdir()} == before
        assert len(list((tmp_path / "new.partial" / "runs").iterdir())) == 12, "those of the finished folder among them"
    CALLS.clear()
    done = run("experiment", "heads", "--seeds", 7, "--out", out)
    assert done.returncode == 0, done.stderr
    left = [6] if interrupted else [each for each in range(7) if not seed <= each < seed + count]
    assert [(condition, each) for each in left for condition in "ab"] == CALLS
    assert f"going on after {14 - 2 * len(left)} of 14 runs" in done.stderr
    assert _runs(out) == _runs(whole)
    for name in ("summary.json", "figure.png"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    grown, scratch = (_strict((folder / "manifest.json").read_text()) for folder in (out, whole))
    assert grown | {"seconds": 0} == scratch | {"seconds": 0}
    assert {file.name for file in out.iterdir()} == FILES
    assert not (tmp_path / "new.partial").exists()


def _without(*names):
    def change(out):
        manifest = _strict((out / "manifest.json").read_text())
        (out / "manifest.json").write_text(json.dumps({k: v for k, v in manifest.items() if k not in names}))

    return change


@pytest.mark.parametrize(
    ("words", "change", "told"),
    [
        (("--seed", 1), None, "differs from what is asked for (seeds, of which it has others)"),
        (("--threads", 2), None, "differs from what is asked for (threads)"),
        ((), _without("code", "versions"), "differs from what is asked for (code, versions)"),
        ((), lambda out: (out / "manifest.json").write_text("{"), "its manifest.json and runs.jsonl cannot be read"),
        ((), lambda out: (out / "manifest.json").write_text("7"), "its manifest.json and runs.jsonl cannot be read"),
        ((), lambda out: (out / "manifest.json").unlink(), "its manifest.json and runs.jsonl cannot be read"),
        ((), lambda out: (out / "runs.jsonl").write_text('{"seed": 0}\n'), "and runs.jsonl cannot be read"),
        ((), lambda out: (out / "notes.txt").write_text("mine"), "more than an experiment writes (notes.txt)"),
    ],
)
def test_a_finished_experiment_that_differs_is_kept_and_what_differs_is_told(
    run, toy, tmp_path, monkeypatch, words, change, told
):
    out = tmp_path / "new"
    run("experiment", "heads", "--seeds", 3, "--out", out)
    if change is not None:
        change(out)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    CALLS.clear()
    done = run("experiment", "heads", "--seeds", 5, "--out", out, *words)
    assert done.returncode == 2
    assert f"{out}: exists already" in done.stderr
    assert told in done.stderr
    assert "give another --out, or --overwrite to replace" in done.stderr
    assert not CALLS
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert not (tmp_path / "new.partial").exists()
    assert run("experiment", "heads", "--seeds", 5, "--out", out, "--overwrite", *words).returncode == 0
    assert len(CALLS) == 10, "nothing is taken over from what is replaced"


@pytest.mark.parametrize("columns", [24, 40, 60, 80, 200])
def test_nothing_is_cut_however_narrow_the_terminal_is(run, toy, monkeypatch, columns):
    from headwise.bench import experiments

    long, title = "two layers without the best previous-token head", "the best of both, against training"
    named = replace(
        TOY,
        conditions=(long, "b"),
        run=lambda condition, seed, settings: TOY.run("b" if condition == "b" else "a", seed, settings),
        comparisons=(replace(TOY.comparisons[0], title=title, first=(long, "loss")),),
    )
    monkeypatch.setattr(experiments, "load_experiment", lambda name: named)
    monkeypatch.setenv("COLUMNS", str(columns))
    done = run("experiment", "heads", "--seeds", 7)
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "…" not in words
    for whole in ("two layers without the best", "loss (nats)", "cache [bytes]", "difference, paired by seed"):
        assert whole in words
    assert set(title.split()) <= set(words.split()), "wrapped between words"
    assert re.search(r"0\.\d{3} to 1\.\d{3}", words)
    listed = re.search(r"against training mean: \+0\.\d{3} 95 %: 0\.\d{3} to 1\.\d{3} q: 0\.016 shown: yes", words)
    assert bool(listed) == (columns < 70)


@pytest.mark.parametrize("columns", [22, 31, 80])
def test_lines_of_a_finding_stand_under_its_first_word(run, toy, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    done = run("experiment", "heads", "--seeds", 7)
    told = done.stdout.split("What the numbers show\n")[1].split("\n\n")[0].splitlines()
    assert len(told) == {22: 4, 31: 3, 80: 1}[columns]
    assert told[0].startswith("- b is higher: +0.")
    assert all(re.match(r"  \S", line) for line in told[1:])
    assert max(map(len, told)) <= columns


def test_what_is_the_same_at_every_seed_has_no_interval(run, toy, monkeypatch):
    from headwise.bench import experiments

    def constant(condition, seed, settings):
        return {**TOY.run(condition, seed, settings), "loss": 1349.0 + (condition == "b")}

    measures = (replace(TOY.measures[0], form=",.0f"), *TOY.measures[1:])
    monkeypatch.setattr(
        experiments, "load_experiment", lambda name: replace(TOY, run=constant, measures=measures, curves=(), panels=())
    )
    words = " ".join(run("experiment", "heads", "--seeds", 7).stdout.split())
    assert "a loss (nats) 1,349 – 7 b loss (nats) 1,350 – 7 cache [bytes] 64 – 6" in words
    assert "b − a +1.000 – 0.016 yes" in words
    assert "1,349 to 1,349" not in words


def test_a_folder_of_another_kind_is_refused_before_any_run(run, toy, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    done = run("experiment", "heads", "--out", tmp_path, "--overwrite")
    assert done.returncode == 2
    assert "not what headwise writes as a result of an experiment (no runs.jsonl)" in done.stderr
    assert not CALLS
    assert (tmp_path / "notes.txt").read_text() == "mine"
