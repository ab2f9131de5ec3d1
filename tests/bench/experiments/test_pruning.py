"""Removing heads: zeros against cut-out weights, orders, counts, and what the numbers allow to say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from headwise.bench.experiments import induction_model, sharing
from headwise.bench.experiments.characters import draw_stretches, read_characters
from headwise.bench.experiments.experiment import FOUND, NO_CONCLUSION, NOT_SHOWN
from headwise.bench.experiments.pruning import EXPERIMENT, run
from headwise.bench.experiments.pruning_findings import findings
from headwise.bench.experiments.pruning_order import rank, rank_anew, within_limit
from headwise.bench.experiments.pruning_removal import without_heads, zeroed
from headwise.bench.experiments.pruning_task import TIMES, Settings
from headwise.bench.experiments.run import run_experiment
from headwise.bench.experiments.summary import Summary, summarise
from headwise.bench.experiments.training import Decoder, generator_of
from tests.fixtures import one_thread

__all__ = ["one_thread"]

TINY = Settings(width=24, layers=2, heads=4, mlp=11, length=13, batch=3, steps=4, points=1, rows=5, ranking=3, rounds=2)


@pytest.fixture
def model() -> Decoder:
    return sharing.build("MHA", 0, TINY)


@pytest.fixture
def tokens() -> torch.Tensor:
    return draw_stretches(read_characters().test, 3, 13, generator_of(0))


def test_zeroed_heads_write_nothing_and_are_put_back(model, tokens):
    heads = [(0, 2), (1, 0), (1, 3)]
    with torch.no_grad():
        before = model(tokens)
        with induction_model.without_heads(model, heads, mean=False):
            expected = model(tokens)
        with zeroed(model, heads):
            torch.testing.assert_close(model(tokens), expected)
        assert not torch.allclose(expected, before)
        with pytest.raises(RuntimeError), zeroed(model, heads):
            raise RuntimeError
        assert torch.equal(model(tokens), before)


def test_cut_out_heads_give_what_zeroed_ones_give(model, tokens):
    heads = [(0, 1), (0, 2), (1, 3)]
    smaller = without_heads(model, heads)
    assert [layer.num_heads for layer in smaller.attentions] == [2, 3]
    assert [layer.q_proj.weight.shape for layer in smaller.attentions] == [(12, 24), (18, 24)]
    with torch.no_grad():
        before = model(tokens)
        with zeroed(model, heads):
            torch.testing.assert_close(smaller(tokens), model(tokens), atol=1e-5, rtol=1e-5)
        assert torch.equal(model(tokens), before), "the model itself stays"


def test_the_limit_ends_the_count_where_it_is_first_passed():
    assert within_limit([0.0, 0.01, 0.2, 0.01], 0.05) == 1
    assert within_limit([0.0, -0.3, 0.05], 0.05) == 2
    assert within_limit([0.0, 0.06], 0.05) == 0


def test_ranking_anew_heeds_what_is_gone(model):
    """The second of two heads that stand in for each other is dear once the first is gone."""
    heads = [(layer, head) for layer in range(2) for head in range(4)]
    costs = {head: 0.1 + number for number, head in enumerate(reversed(heads))}

    def rise(gone) -> float:
        twins = 100.0 if {(1, 3), (1, 2)} <= set(gone) else 0.0
        return sum(costs[head] for head in gone) + twins

    assert rank(model, rise) == heads[::-1]
    anew = rank_anew(heads, rise)
    assert anew == [(1, 3), (1, 1), (1, 0), (0, 3), (0, 2), (0, 1), (0, 0), (1, 2)]


@pytest.mark.parametrize("name", EXPERIMENT.conditions)
def test_the_same_seed_gives_the_same_numbers_but_for_times(name):
    first, again, other = (
        {key: value for key, value in run(name, seed, TINY).items() if key not in TIMES} for seed in (2, 2, 3)
    )
    assert first == again
    assert first["loss"] != other["loss"]
    assert first["removed"] == list(range(9))
    assert {len(values) for key, values in first.items() if key.endswith("_curve")} == {9}


def test_orders_end_in_the_same_place_and_sums_are_of_single_effects():
    numbers = run("trained", 0, TINY)
    ends = [numbers[f"{curve}_curve"][-1] for curve in ("joint", "ranked_anew", "at_random")]
    assert ends == pytest.approx([ends[0]] * 3, abs=1e-6)
    assert numbers["joint_curve"][1] == pytest.approx(numbers["sum_curve"][1])
    assert numbers["joint_curve"][4] == numbers["joint_half"]
    assert numbers["sum_all"] == numbers["sum_curve"][8]
    assert max(np.diff(numbers["sum_curve"])) == pytest.approx(numbers["largest"])
    assert numbers["apart"] < 1e-4


def test_only_the_trained_model_is_trained_and_timed():
    settings = replace(TINY, heads=2, steps=60, rate=2e-2, rows=32)
    trained, random = (run(name, 0, settings) for name in EXPERIMENT.conditions)
    assert trained["loss"] < random["loss"] - 1
    assert set(TIMES) <= set(trained)
    assert all(trained[key] > 0 for key in TIMES)
    assert not set(TIMES) & set(random)


def test_tiny_runs_are_summed_up_without_times_in_the_differences():
    result = run_experiment(EXPERIMENT, seeds=range(2), settings=TINY)
    assert len(result.runs) == 4
    assert NO_CONCLUSION in {finding.kind for finding in result.findings}
    cells = [cell for each in EXPERIMENT.comparisons for cell in (each.first, each.second)]
    assert not {measure for _, measure in cells} & set(TIMES)


def made(
    *, jointly: float, alone: float, joint: float, random: float, removed: float, loss: float = 1.7, others: float = 5
) -> Summary:
    """Ten seeds with these numbers of the trained model; heads that go from random weights."""
    noise = np.random.default_rng(0).normal(0, 1e-3, (10, 40))
    runs = []
    for seed in range(10):
        draws = iter(noise[seed])
        trained = {"loss": loss, "jointly": jointly, "each_alone": alone, "by_sum": others, "ranked_anew": others}
        trained |= {"at_random": others, "sum_half": 0.3, "joint_half": 0.3 + joint, "sum_all": 1.0}
        trained |= {"joint_all": 1.0 + joint, "zeroed_time": 1.0, "removed_time": removed}
        for condition, numbers in (("trained", trained), ("random weights", {"loss": 4.7, "jointly": random})):
            told = {key: value + next(draws) for key, value in numbers.items()}
            runs.append({"condition": condition, "seed": seed, "numbers": told})
    return summarise(replace(EXPERIMENT, curves=()), runs, Settings())


def texts(summary: Summary, kind: str) -> str:
    return "\n".join(finding.text for finding in findings(summary) if finding.kind == kind)


def test_findings_when_single_effects_promise_too_much():
    summary = made(jointly=4, alone=12, joint=0.5, random=16, removed=0.8)
    found, limits = texts(summary, FOUND), texts(summary, NO_CONCLUSION)
    assert "trained: fewer heads go together than cost less than 0.05 nats alone" in found
    assert "adding up single costs lets more heads go than ranking them once" in found
    assert "all heads together cost more than the sum of each alone: +0.5" in found
    assert "more heads of 16 go from random weights than from trained ones" in found
    assert "take less time cut out than zeroed, with the same outputs" in found
    assert "how many heads can go, from what each costs alone" in limits
    assert "from random weights, which use nothing, more go" in limits


def test_findings_when_it_is_the_other_way_round():
    summary = made(jointly=9, alone=6, joint=-0.2, random=3, removed=1.2, loss=5.0)
    found, limits = texts(summary, FOUND), texts(summary, NO_CONCLUSION)
    assert "trained: more heads go together than cost less than 0.05 nats alone" in found
    assert "chance lets fewer heads go than ranking them once" in found
    assert "the lesser half of all heads together cost less than the sum of each alone: −0.2" in found
    assert "fewer heads of 16 go from random weights" in found
    assert "take more time cut out than zeroed" in found
    assert "that anything was learnt" in texts(summary, NOT_SHOWN)
    assert "from what each costs alone" not in limits
    assert "which use nothing" not in limits


def test_findings_when_nothing_is_shown():
    missing = texts(made(jointly=5, alone=5, joint=0.0, random=5, removed=1.0), NOT_SHOWN)
    assert "that more or fewer heads go together than cost less than 0.05 nats alone is not shown" in missing
    assert "that ranking anew lets more or fewer heads go than ranking them once is not shown" in missing
    assert "that all heads together cost more or less than the sum of each alone is not shown" in missing
    assert "no difference in how many heads of 16 go is shown" in missing
    assert "take less time cut out than zeroed is not shown" in missing
