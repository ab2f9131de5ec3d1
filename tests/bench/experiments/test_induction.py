"""Induction heads: the rows, the splits, the scores, taking heads out, and what the numbers allow to say."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from headwise.bench.experiments.experiment import FOUND, NO_CONCLUSION, NOT_SHOWN
from headwise.bench.experiments.induction import EXPERIMENT, run
from headwise.bench.experiments.induction_findings import findings
from headwise.bench.experiments.induction_model import build, head_scores, without_heads
from headwise.bench.experiments.induction_task import Settings, draw_rows
from headwise.bench.experiments.run import run_experiment
from headwise.bench.experiments.summary import Summary, summarise
from headwise.bench.experiments.training import TEST, TRAINING, VALIDATION, generator_of
from tests.fixtures import one_thread

__all__ = ["one_thread"]

TINY = Settings(
    vocabulary=19, length=17, prefix=2, shortest=5, longest=7, width=12, heads=3, batch=4, steps=6, points=3, rows=11
)


def test_rows_repeat_a_block_and_say_where_what_follows_is_known():
    rows = draw_rows(40, TRAINING, generator_of(0), TINY)
    starts = set()
    for tokens, known, block in zip(rows.tokens.tolist(), rows.known.tolist(), rows.blocks.tolist(), strict=True):
        start = tokens.index(block[0])
        assert tokens[start : start + 5] == block
        size = tokens.index(block[0], start + 1) - start
        starts.add((start, size))
        assert len(set(tokens[: start + size])) == start + size  # all different until the block comes again
        assert all(tokens[place] == tokens[place - size] for place in range(start + size, 17))
        assert known == [place >= start + size for place in range(17)]
    assert {start for start, _ in starts} == {0, 1, 2}
    assert {size for _, size in starts} == {5, 6, 7}


def test_no_block_is_in_two_splits():
    drawn = [
        {tuple(row) for row in draw_rows(300, splits, generator_of(1), TINY).blocks.tolist()}
        for splits in (VALIDATION, TEST, TRAINING)
    ]
    assert all(len(each) > 290 for each in drawn)
    assert not drawn[0] & drawn[1]
    assert not drawn[0] & drawn[2]
    assert not drawn[1] & drawn[2]


def test_scores_are_those_of_the_weights_that_the_layers_use():
    model, rows = build(2, 0, TINY), draw_rows(5, TEST, generator_of(2), TINY)
    previous, induction = head_scores(model, rows)
    assert previous.shape == induction.shape == (2, 3)
    with torch.no_grad():
        hidden = model.embed(rows.tokens)
        for layer, (norm, attention) in enumerate(zip(model.norms, model.attentions, strict=True)):
            output, weights = attention(norm(hidden), causal=True, need_weights=True)  # [B, H, L, L]
            hidden = hidden + output
            tokens = rows.tokens
            follows = torch.zeros_like(weights[:, 0], dtype=torch.bool)
            follows[:, :, 1:] = tokens[:, :, None] == tokens[:, None, :-1]
            follows &= torch.ones(17, 17).tril().bool()
            expected = weights.diagonal(-1, 2, 3).mean((0, 2))
            torch.testing.assert_close(previous[layer], expected, atol=1e-5, rtol=1e-4)
            mass = (weights * follows[:, None]).sum(-1)
            asked = follows.any(-1)[:, None].expand_as(mass)
            of_rows = (mass * asked).sum(-1) / asked.sum(-1)
            torch.testing.assert_close(induction[layer], of_rows.mean(0), atol=1e-5, rtol=1e-4)


def test_a_head_is_taken_out_and_put_back():
    model, rows = build(2, 0, TINY), draw_rows(5, TEST, generator_of(2), TINY)
    with torch.no_grad():
        before = model(rows.tokens)
        twin = build(2, 0, TINY)
        twin.attentions[1].o_proj.weight[:, 4:8] = 0  # head 1 of three writes nothing
        with without_heads(model, [(1, 1)], mean=False):
            torch.testing.assert_close(model(rows.tokens), twin(rows.tokens))
        with without_heads(model, [(1, 1)]):
            by_mean = model(rows.tokens)
        assert not torch.allclose(by_mean, before)
        assert not torch.allclose(by_mean, twin(rows.tokens))
        with without_heads(model, [(0, head) for head in range(3)] + [(1, head) for head in range(3)]):
            # Nothing is left that tells one place from another but the token itself.
            read = model(rows.tokens)
            same = rows.tokens[0, 16] == rows.tokens[0]
            torch.testing.assert_close(read[0, same], read[0, 16].expand(int(same.sum()), -1))
        assert torch.equal(model(rows.tokens), before)
        with pytest.raises(RuntimeError), without_heads(model, [(0, 0)]):
            raise RuntimeError
        assert torch.equal(model(rows.tokens), before)


@pytest.mark.parametrize("name", EXPERIMENT.conditions)
def test_the_same_seed_gives_the_same_numbers_and_another_does_not(name):
    first, again, other = (run(name, seed, TINY) for seed in (2, 2, 3))
    assert first == again
    assert first["loss"] != other["loss"]
    assert first["step"] == [0, 2, 4, 6]
    assert len(first["loss_curve"]) == len(first["induction_curve"]) == 4


def test_two_layers_form_induction_heads():
    """Shortened: more than chance gives after 150 steps at the sizes of the experiment."""
    settings = replace(Settings(), steps=150, rate=1e-2, points=2, rows=32)
    numbers = run("two layers", 0, settings)
    assert numbers["loss"] < math.log(6), "less than the place alone can tell"
    assert numbers["induction"] > 3 * numbers["untrained"]
    assert numbers["without_both"] > numbers["loss"]


def test_tiny_runs_are_summed_up():
    result = run_experiment(EXPERIMENT, seeds=range(2), settings=TINY)
    assert [run["condition"] for run in result.runs] == ["two layers", "one layer"] * 2
    assert {row.condition for row in result.summary.curves} == {"two layers", "one layer"}
    kinds = {finding.kind for finding in result.findings}
    assert NO_CONCLUSION in kinds
    assert len(result.summary.differences) == 10
    row = result.summary.row("two layers", "sum_of_both")
    parts = {key: result.summary.mean("two layers", key) for key in ("loss", "without_previous", "without_induction")}
    assert row.mean == pytest.approx(parts["without_previous"] + parts["without_induction"] - parts["loss"])


def made(*, formed: bool, layers: float, taken: float, joint: float, order: float = 30.0) -> Summary:
    """Ten seeds with these differences."""
    noise = np.random.default_rng(0).normal(0, 1e-3, (10, 40))
    runs = []
    for seed in range(10):
        draws = iter(noise[seed])
        two = dict.fromkeys((each.second[1] for each in EXPERIMENT.comparisons), 1.0 + taken)
        two |= {"loss": 1.0, "previous": 0.9, "induction": 0.9 if formed else 0.1, "untrained": 0.07}
        two |= {"sum_of_both": 3.0, "without_both": 3.0 + joint, "without_last_both": 1.0}
        two |= {"previous_at": 30.0, "induction_at": 30.0 + order, "induction_heads": 4.0 if formed else 0.0}
        one = {"loss": 1.0 + layers, "previous": 0.9, "induction": 0.1}
        for condition, numbers in (("two layers", two), ("one layer", one)):
            runs.append(
                {
                    "condition": condition,
                    "seed": seed,
                    "numbers": {key: value + next(draws) for key, value in numbers.items()},
                }
            )
    return summarise(replace(EXPERIMENT, curves=()), runs, Settings())


def texts(summary: Summary, kind: str) -> str:
    return "\n".join(finding.text for finding in findings(summary) if finding.kind == kind)


def test_findings_when_heads_form_and_matter():
    summary = made(formed=True, layers=0.7, taken=0.5, joint=-1.0)
    found = texts(summary, FOUND)
    assert "forms in 10 of 10 seeds with two layers" in found
    assert "in 0 of 10 with one layer" in found
    assert "one layer's loss where what follows is known is higher (one layer − two): +0.7" in found
    assert "the previous-token score passes the threshold first" in found
    assert "without the best induction head the loss there rises: +0.5" in found
    assert "the best head of both kinds matters more than the least of both layers" in found
    limits = texts(summary, NO_CONCLUSION)
    assert "both kinds cost less than the sum" in limits
    assert "that a head with a high score matters" not in limits
    assert "nearly all of them are induction heads" in limits


def test_findings_when_none_forms_and_nothing_matters():
    summary = made(formed=False, layers=0.0, taken=0.0, joint=1.0, order=-15.0)
    missing, limits = texts(summary, NOT_SHOWN), texts(summary, NO_CONCLUSION)
    assert "forms in 0 of 10 seeds with two layers" in missing
    assert "no difference between one layer and two is shown" in missing
    assert "that the loss there changes without the best induction head is not shown" in missing
    assert "both kinds cost more than the sum" in limits
    assert "nearly all of them are induction heads" not in limits
    assert "that a head with a high score matters: the best induction head alone is not shown to" in limits
    found = texts(summary, FOUND)
    assert "the induction score passes the threshold before the previous-token score" in found


def test_findings_when_it_is_the_other_way_round():
    summary = made(formed=True, layers=-0.4, taken=-0.2, joint=0.0)
    found = texts(summary, FOUND)
    assert "one layer's loss where what follows is known is lower" in found
    assert "without the best previous-token head the loss there falls: −0.2" in found
    assert "whether effects of the two kinds add up" in texts(summary, NO_CONCLUSION)
