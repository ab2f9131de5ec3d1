"""Local and global heads in one layer: rows and zones, who sees what, what it costs, and what numbers allow to say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from headwise.bench.experiments.experiment import FOUND, NO_CONCLUSION, NOT_SHOWN
from headwise.bench.experiments.run import run_experiment
from headwise.bench.experiments.summary import Summary, summarise
from headwise.bench.experiments.training import TEST, TRAINING, generator_of, seeded
from headwise.bench.experiments.windows import EXPERIMENT, run
from headwise.bench.experiments.windows_findings import findings
from headwise.bench.experiments.windows_model import Recaller, cache_bytes, visible_pairs
from headwise.bench.experiments.windows_task import LOCALS, Settings, condition, draw_rows
from headwise.plan.pairs import mixed_pair_work
from tests.fixtures import one_thread

__all__ = ["one_thread"]

TINY = Settings(
    keys=6, values=7, fillers=5, slots=2, queries=3, near=4, far=11, length=23, window=8, width=12, batch=5, steps=4,
    rate=3e-2, rows=9,
)  # fmt: skip


def model_of(local: int, settings: Settings = TINY) -> Recaller:
    with seeded(5):
        return Recaller(local, settings)


def test_half_of_what_is_asked_stands_near_and_half_far():
    rows = draw_rows(17, TRAINING, generator_of(0), TINY)
    first = TINY.length - TINY.queries
    assert rows.keys.shape == rows.values.shape == (17, first)
    assert rows.asked.shape == rows.answers.shape == (17, 3, 2)
    for row in range(17):
        tokens = list(zip(rows.keys[row].tolist(), rows.values[row].tolist(), strict=True))
        places = {key: place for place, (key, _) in enumerate(tokens) if key < 6}
        assert sorted(places) == list(range(6))
        assert all(value == 7 and key < 6 + 5 for key, value in tokens if key >= 6)
        assert [tokens[places[key]][1] for key in range(6)] == rows.assignment[row].tolist()
        for query, (near, far) in enumerate(rows.asked[row].tolist()):
            assert 1 <= first + query - places[near] < TINY.window
            assert first + query - places[far] >= TINY.window
        assert [[tokens[places[key]][1] for key in asked] for asked in rows.asked[row].tolist()] == (
            rows.answers[row].tolist()
        )


def test_both_slots_of_a_zone_ask_for_different_keys():
    asked = draw_rows(31, TRAINING, generator_of(0), Settings()).asked
    assert (asked.sort(-1).values.diff(dim=-1) > 0).all()


def test_no_assignment_is_in_two_splits():
    drawn = [
        {tuple(row) for row in draw_rows(300, splits, generator_of(1), TINY).assignment.tolist()}
        for splits in (TEST, TRAINING)
    ]
    assert all(len(each) > 200 for each in drawn)
    assert not drawn[0] & drawn[1]


@pytest.mark.parametrize("wrong", [{"window": 6}, {"far": 14}])
def test_zones_that_windows_cut_are_refused(wrong):
    with pytest.raises(ValueError, match="near \\+ queries of at most window"):
        draw_rows(3, TRAINING, generator_of(0), replace(TINY, **wrong))


@pytest.mark.parametrize("local", LOCALS)
def test_only_global_heads_tell_of_the_far_zone(local):
    model, rows = model_of(local), draw_rows(6, TEST, generator_of(2), TINY)
    far, near = rows.values.clone(), rows.values.clone()
    far[:, :11] = (far[:, :11] + 1) % 7
    near[:, -4:] = (near[:, -4:] + 1) % 7
    with torch.no_grad():
        before = model(rows)
        assert torch.equal(model(replace(rows, values=far)), before) == (local == 4)
        assert not torch.allclose(model(replace(rows, values=near)), before)


def test_any_number_of_local_heads_starts_from_the_same_values():
    states = [model_of(local).state_dict() for local in LOCALS]
    for state in states[1:]:
        assert all(torch.equal(state[name], states[0][name]) for name in states[0])


@pytest.mark.parametrize("local", LOCALS)
def test_costs_are_counted_exactly(local):
    model, rows = model_of(local), draw_rows(2, TEST, generator_of(2), TINY)
    held, allocated = cache_bytes(model, rows)
    entry = 2 * 3 * 4  # a key and a value of three numbers
    assert held == entry * (local * 7 + (4 - local) * 23)
    assert allocated == entry * (local * min(7 + 16, 23) + (4 - local) * 23)
    assert visible_pairs(model.attention, 23) == mixed_pair_work(local, 4 - local, 23, 8, 1).visible


@pytest.mark.parametrize("name", EXPERIMENT.conditions)
def test_the_same_seed_gives_the_same_numbers_and_another_does_not(name):
    first, again, other = (run(name, seed, TINY) for seed in (2, 2, 3))
    assert first == again
    assert first["loss"] != other["loss"]


def test_near_and_far_are_told_apart():
    """Local heads learn the near zone of a small task and can't know the far one."""
    settings = replace(TINY, values=3, width=16, batch=16, steps=150, rate=3e-2, rows=64)
    numbers = run("all local", 0, settings)
    assert numbers["near"] > 0.6 > 0.5 > numbers["far"]


def test_tiny_runs_are_summed_up():
    result = run_experiment(EXPERIMENT, seeds=range(2), settings=TINY)
    assert len(result.runs) == 10
    assert len(result.summary.differences) == 8
    assert NO_CONCLUSION in {finding.kind for finding in result.findings}


def made(near: tuple[float, ...], far: tuple[float, ...]) -> Summary:
    """Ten seeds with these shares of right answers, by the number of local heads."""
    noise = np.random.default_rng(0).normal(0, 1e-3, (10, 5, 2))
    runs = []
    for seed in range(10):
        for local in LOCALS:
            told = {"near": near[local] + noise[seed, local, 0], "far": far[local] + noise[seed, local, 1]}
            told |= {"held": 8192.0 - 1696 * local, "pairs": 8320.0 - 1378 * local}
            runs.append({"condition": condition(local), "seed": seed, "numbers": told})
    return summarise(EXPERIMENT, runs, Settings())


def texts(summary: Summary, kind: str) -> str:
    return "\n".join(finding.text for finding in findings(summary) if finding.kind == kind)


def test_findings_when_two_global_heads_are_enough():
    summary = made((0.95,) * 5, (0.95, 0.95, 0.95, 0.6, 0.13))
    found, limits = texts(summary, FOUND), texts(summary, NO_CONCLUSION)
    assert "1 local, 3 global: as much is recalled from far as with global heads alone, within 2%" in found
    assert "3 local, 1 global: less is recalled from far than with global heads alone" in found
    assert "all local: as much is recalled from near" in found
    assert "2 local, 2 global: neither zone loses more than 2% against global heads alone, for 4,800 of 8,192" in found
    assert "that a single global head recalls for all: with 3 local, 1 global" in limits


def test_findings_when_local_heads_lose_everywhere():
    summary = made((0.95, 0.9, 0.9, 0.9, 0.9), (0.95, 0.6, 0.5, 0.4, 0.1))
    assert "1 local, 3 global: less is recalled from near" in texts(summary, FOUND)
    assert "that any layout with local heads keeps both zones" in texts(summary, NOT_SHOWN)


def test_findings_when_local_heads_help_and_lose_nothing():
    summary = made((0.6, 0.7, 0.8, 0.9, 0.9), (0.9, 0.9, 0.9, 0.9, 0.9))
    assert "all local: more is recalled from near than with global heads alone" in texts(summary, FOUND)
    assert "all local: neither zone loses more than 2%" in texts(summary, FOUND)
    assert "that mixed layers lose anything from far: none is shown to" in texts(summary, NO_CONCLUSION)
