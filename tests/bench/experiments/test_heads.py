"""One head against four: the tasks, the splits, equal starts, and what the numbers allow to say."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from headwise.bench.experiments.experiment import FOUND, NO_CONCLUSION, NOT_SHOWN
from headwise.bench.experiments.heads import EXPERIMENT, run
from headwise.bench.experiments.heads_findings import findings
from headwise.bench.experiments.heads_models import Retriever, TinyLM
from headwise.bench.experiments.heads_tasks import Settings, condition, draw_rows, unordered_loss
from headwise.bench.experiments.run import run_experiment
from headwise.bench.experiments.summary import Summary, summarise
from headwise.bench.experiments.training import TEST, TRAINING, VALIDATION, generator_of, seeded
from tests.fixtures import one_thread

__all__ = ["one_thread"]

TINY = Settings(
    sequence_width=12, sequence_steps=3, keys=5, values=7, slots=2, queries=3, width=8, batch=6, steps=4,
    rates=(1e-3, 1e-1), rows=11,
)  # fmt: skip


def test_answers_are_the_values_of_what_is_asked():
    rows = draw_rows(13, TRAINING, 2, generator_of(0), TINY)
    assert rows.keys.shape == rows.values.shape == rows.assignment.shape == (13, 5)
    assert rows.asked.shape == rows.answers.shape == (13, 3, 2)
    for row in range(13):
        held = dict(zip(rows.keys[row].tolist(), rows.values[row].tolist(), strict=True))
        assert sorted(held) == list(range(5))
        assert [held[key] for key in range(5)] == rows.assignment[row].tolist()
        for asked, answers in zip(rows.asked[row].tolist(), rows.answers[row].tolist(), strict=True):
            assert len(set(asked)) == 2
            assert answers == [held[key] for key in asked]


def test_no_assignment_is_in_two_splits():
    drawn = [
        {tuple(row) for row in draw_rows(300, splits, 1, generator_of(1), TINY).assignment.tolist()}
        for splits in (VALIDATION, TEST, TRAINING)
    ]
    assert all(len(each) > 200 for each in drawn)
    assert not drawn[0] & drawn[1]
    assert not drawn[0] & drawn[2]
    assert not drawn[1] & drawn[2]


def test_any_number_of_heads_starts_from_the_same_values():
    for build in (lambda heads: TinyLM(heads, 12), lambda heads: Retriever(heads, 2, TINY)):
        states = []
        for heads in (1, 4):
            with seeded(5):
                states.append(build(heads).state_dict())
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_heads_make_another_function_of_the_same_values():
    rows = draw_rows(4, TEST, 2, generator_of(2), TINY)
    read = []
    for heads in (1, 4):
        with seeded(5), torch.no_grad():
            read.append(Retriever(heads, 2, TINY)(rows))
    assert read[0].shape == (4, 3, 2, 7)
    assert not torch.allclose(*read)


@pytest.mark.parametrize("name", EXPERIMENT.conditions)
def test_the_same_seed_gives_the_same_numbers_and_another_does_not(name):
    first, again, other = (run(name, seed, TINY) for seed in (2, 2, 3))
    assert first == again
    assert first["loss"] != other["loss"]
    assert {"loss", "accuracy", "train_loss", "parameters"} <= set(first)


def test_numbers_of_heads_have_as_many_parameters_and_the_same_first_loss():
    for task in ("sequence", "several", "single"):
        one, four = (run(condition(task, heads), 0, TINY) for heads in (1, 4))
        assert one["parameters"] == four["parameters"]
        assert one["loss"] != four["loss"]


def test_the_learning_rate_is_chosen_on_validation_rows():
    """Of two, of which one changes nothing, the other wins; turned around, too: it is not the first or the last."""
    for rates in ((1e-9, 3e-2), (3e-2, 1e-9)):
        settings = replace(TINY, steps=12, rates=rates, slots=1)
        assert run(condition("single", 4), 0, settings)["rate"] == 3e-2


def test_the_sequence_is_that_of_the_text_and_is_memorised():
    numbers = run(condition("sequence", 4), 0, Settings())
    assert numbers["first_loss"] > math.log(5) / 2
    assert numbers["train_loss"] < 0.2 < numbers["first_loss"]


def test_a_reader_without_slots_loses_what_the_order_tells():
    # Two values out of two: half of the pairs are equal and cost nothing, the others one bit.
    assert unordered_loss(Settings(values=2, slots=2)) == pytest.approx(math.log(2) / 2)
    assert unordered_loss(Settings(slots=1)) == 0


def test_tiny_runs_are_summed_up():
    result = run_experiment(EXPERIMENT, seeds=range(2), settings=TINY)
    assert len(result.runs) == 12
    assert len(result.summary.rows) == 2 * 5 + 4 * 5
    assert {finding.kind for finding in result.findings} >= {NO_CONCLUSION}


def made(several: float, single: float, *, one: float = 1.4, memorised: float = 0.01) -> Summary:
    """Ten seeds in which four heads' loss differs from one head's by so much."""
    noise = np.random.default_rng(0).normal(0, 1e-3, (10, 6))
    losses = {
        condition("several", 1): one, condition("several", 4): one + several, condition("single", 1): 0.5,
        condition("single", 4): 0.5 + single,
    }  # fmt: skip
    runs = []
    for seed in range(10):
        for number, name in enumerate(EXPERIMENT.conditions):
            told = {"first_loss": 2.0, "train_loss": memorised + noise[seed, number]}
            told["loss"] = losses.get(name, 0.1) + noise[seed, number]
            runs.append({"condition": name, "seed": seed, "numbers": told})
    return summarise(EXPERIMENT, runs, Settings())


def texts(summary: Summary, kind: str) -> str:
    return "\n".join(finding.text for finding in findings(summary) if finding.kind == kind)


def test_findings_when_four_heads_win_where_several_things_are_retrieved():
    summary = made(several=-0.9, single=0.0)
    found = texts(summary, FOUND)
    assert "several: four heads have the lower held-out loss (four − one): −0.9" in found
    assert "single: held-out losses differ by less than 0.02 nats" in found
    assert "both learn the two rows by heart" in found
    assert "one head is not shown to tell more than which values are asked for" in texts(summary, NOT_SHOWN)
    limits = texts(summary, NO_CONCLUSION)
    assert "that four heads are better in general" in limits
    assert "two rows are memorised" in limits


def test_findings_when_it_is_the_other_way_round():
    summary = made(several=0.4, single=-0.3, one=0.2, memorised=1.9)
    found = texts(summary, FOUND)
    assert "several: four heads have the higher held-out loss (four − one): +0.4" in found
    assert "single: four heads have the lower held-out loss (four − one): −0.299" in found
    assert "one head tells more than which values are asked for" in found
    assert "the two rows are not learnt by heart" in texts(summary, NOT_SHOWN)
    limits = texts(summary, NO_CONCLUSION)
    assert "that more heads help where several things are retrieved" in limits
    assert "in general" not in limits.split("\n", 1)[1]


def test_findings_when_four_heads_win_everywhere():
    limits = texts(made(several=-0.9, single=-0.3), NO_CONCLUSION)
    assert "that several retrievals are the reason" in limits
