"""Runs are pure, kept one by one, and gone on with to the same numbers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from headwise.bench.experiments import EXPERIMENTS, check_name, check_seeds, load_experiment
from headwise.bench.experiments.run import Result, run_experiment
from headwise.errors import UserError
from tests.bench.experiments.toy import CALLS, TOY, Settings


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


def numbers_of(result: Result) -> list[tuple]:
    return [(run["condition"], run["seed"], run["numbers"]) for run in result.runs]


def test_every_condition_runs_at_every_seed_seed_by_seed():
    result = run_experiment(TOY, seeds=(5, 3))
    assert CALLS == [("a", 3), ("b", 3), ("a", 5), ("b", 5)]
    assert [(run["condition"], run["seed"]) for run in result.runs] == CALLS
    assert result.summary.seeds == (3, 5)


def test_the_same_seed_gives_the_same_numbers_whatever_runs_beside_it():
    assert numbers_of(run_experiment(TOY, seeds=(2, 3)))[2:] == numbers_of(run_experiment(TOY, seeds=(3, 7)))[:2]


def test_a_killed_experiment_goes_on_to_the_same_numbers(tmp_path):
    whole = run_experiment(TOY, seeds=range(3))
    calls = list(CALLS)
    CALLS.clear()

    def killed(condition, seed, settings):
        if (condition, seed) == ("b", 1):
            raise KeyboardInterrupt
        return TOY.run(condition, seed, settings)

    partial = tmp_path / "new.partial"
    with pytest.raises(KeyboardInterrupt):
        run_experiment(replace(TOY, run=killed), seeds=range(3), partial=partial)
    assert calls[:3] == CALLS
    CALLS.clear()
    resumed = run_experiment(TOY, seeds=range(3), partial=partial)
    assert calls[3:] == CALLS
    assert numbers_of(resumed) == numbers_of(whole)
    assert resumed.summary.record() == whole.summary.record()


def test_more_seeds_go_on_with_those_that_are_kept(tmp_path):
    run_experiment(TOY, seeds=range(2), partial=tmp_path)
    CALLS.clear()
    assert len(run_experiment(TOY, seeds=range(4), partial=tmp_path).runs) == 8
    assert CALLS == [("a", 2), ("b", 2), ("a", 3), ("b", 3)]


@pytest.mark.parametrize(
    ("other", "differing"),
    [({"settings": Settings(shift=2.0)}, "settings"), ({"inputs": lambda: {"corpus": "another"}}, "inputs")],
)
def test_what_other_settings_left_is_refused_or_dropped(tmp_path, other, differing):
    run_experiment(TOY, seeds=range(2), partial=tmp_path)
    with pytest.raises(UserError, match=rf"a half-finished experiment with other settings \({differing}\) lies there"):
        run_experiment(replace(TOY, **other), seeds=range(2), partial=tmp_path)
    CALLS.clear()
    run_experiment(replace(TOY, **other), seeds=range(2), partial=tmp_path, overwrite=True)
    assert len(CALLS) == 4


@pytest.mark.parametrize("seeds", [(), (4,), (4, 4)])
def test_fewer_than_two_seeds_are_refused_before_any_run(seeds):
    count = len(set(seeds))
    message = f"experiment: expected 2 seeds or more, for intervals over them, got {count}; give --seeds 10"
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        run_experiment(TOY, seeds=seeds)
    assert not CALLS


@pytest.mark.parametrize("seeds", [range(1_001), range(7, 10**12), list(range(1_009))])
def test_more_seeds_than_can_be_run_are_refused_before_any_run(seeds):
    message = (
        "experiment: expected 1,000 seeds or fewer, since all their runs are held in memory and take seconds to "
        f"minutes a seed, got {len(seeds)}; give --seeds 10, or 1000 at most"
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        run_experiment(TOY, seeds=seeds)
    assert not CALLS


@pytest.mark.parametrize("seeds", [range(1_000), range(2), [3, 5] * 1_000])
def test_bounds_of_seeds_count_different_ones_and_are_taken_themselves(seeds):
    check_seeds(seeds)


def test_notes_say_what_few_seeds_mean_and_which_values_are_missing():
    assert [note.split(":")[0] for note in run_experiment(TOY, seeds=range(3)).notes] == [
        "3 seeds",
        "no difference can be called shown with fewer than 6 seeds",
        "seeds that have a value",
    ]
    assert [note[:8] for note in run_experiment(TOY, seeds=range(2, 9)).notes] == ["7 seeds:"]
    assert run_experiment(TOY, seeds=range(2, 12)).notes == ()


def test_what_is_no_number_is_kept_as_none_and_records_are_plain_json(tmp_path):
    result = run_experiment(TOY, seeds=range(3), partial=tmp_path)
    files = list((tmp_path / "runs").iterdir())
    assert len(files) == 6
    kept = {(run["condition"], run["seed"]): run["numbers"] for run in (json.loads(f.read_text()) for f in files)}
    assert kept["b", 1]["bytes"] is None
    assert kept["b", 2]["bytes"] == 64
    assert result.summary.row("b", "bytes").n == 2
    for record in (result.record(), result.manifest()):
        assert json.loads(json.dumps(record, allow_nan=False))
    assert result.manifest()["settings"] == {"shift": 1.0}
    assert result.manifest()["inputs"] == {"corpus": "digest"}
    assert {"processor", "versions", "threads"} <= set(result.manifest()["environment"])


def test_progress_counts_what_is_left_by_its_cost(tmp_path):
    told: list[tuple[str, float | str]] = []

    class Listener:
        def plan(self, tokens):
            told.append(("plan", tokens))

        def stage(self, text):
            told.append(("stage", text))

        def advance(self, tokens):
            told.append(("advance", tokens))

    dear = replace(TOY, cost=lambda condition: 3.0 if condition == "b" else 1.0)
    run_experiment(dear, seeds=range(2), partial=tmp_path)
    run_experiment(dear, seeds=range(3), partial=tmp_path, progress=Listener())
    assert told == [
        ("plan", 4.0), ("stage", "going on after 4 of 6 runs"), ("stage", "seed 2, a"), ("advance", 1.0),
        ("stage", "seed 2, b"), ("advance", 3.0),
    ]  # fmt: skip


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_of_the_table_is_whole(name):
    experiment = load_experiment(name)
    assert experiment.name == name
    assert len(set(experiment.conditions)) == len(experiment.conditions)
    keys = {measure.key for measure in experiment.measures}
    cells = {cell for each in experiment.comparisons for cell in (each.first, each.second)}
    assert {condition for condition, _ in cells} <= set(experiment.conditions)
    assert {measure for _, measure in cells} <= keys
    curves = {curve.key for curve in experiment.curves}
    for panel in experiment.panels:
        told = {key for field in ("measures", "x", "y") for key in _keys(getattr(panel, field, ()))}
        assert told <= keys
        assert set(getattr(panel, "curves", ())) <= curves
        assert set(panel.conditions or ()) <= set(experiment.conditions)
    assert len(EXPERIMENTS[name]) <= 100
    assert Path(__file__).with_name(f"test_{name}.py").is_file()


def _keys(value) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def test_an_unknown_name_is_refused_with_the_list():
    message = f"experiment: expected one of {', '.join(EXPERIMENTS)}, got 'haeds'"
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        check_name("haeds")
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        load_experiment("haeds")
