"""Shared keys and values: the text, equal widths and parameters, caches, and what the numbers allow to say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from headwise.bench.experiments.characters import draw_stretches, read_characters
from headwise.bench.experiments.experiment import FOUND, NO_CONCLUSION, NOT_SHOWN
from headwise.bench.experiments.run import run_experiment
from headwise.bench.experiments.sharing import EXPERIMENT, Settings, build, cache_bytes, condition, findings, run
from headwise.bench.experiments.summary import Summary, summarise
from headwise.bench.experiments.training import generator_of
from headwise.models.corpus import read_corpus
from tests.fixtures import one_thread

__all__ = ["one_thread"]

TINY = Settings(
    width=24, layers=2, heads=4, kv_heads=2, latent=5, rotary=2, mlp=11, length=13, batch=3, steps=4, points=2, rows=5
)


def sizes(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_held_out_topics_are_quoted_nowhere_else():
    """Topics quote each other: with whole topics held out and no more, one stretch in three stands on both sides."""
    text, corpus = read_characters(), read_corpus(None)
    parts = [bytes(part.tolist()) for part in (text.training, text.validation, text.test)]
    assert max(map(max, parts)) == text.count - 1
    assert len(parts[0]) > 0.5 * sum(len(each.text) for each in corpus.working)
    assert min(map(len, parts)) > 0.3 * sum(len(each.text) for each in corpus.held_out)
    for here, others in ((1, (0, 2)), (2, (0, 1))):
        drawn = draw_stretches((text.validation, text.test)[here - 1], 100, 79, generator_of(here))
        stretches = [bytes(row.tolist()) for row in drawn]
        assert all(stretch in parts[here] for stretch in stretches)
        assert sum(stretch in parts[other] for stretch in stretches for other in others) <= 4, "headings may repeat"


def test_stretches_are_neighbours_of_the_text():
    drawn = draw_stretches(torch.arange(31), 500, 7, generator_of(0))
    assert torch.equal(drawn, drawn[:, :1] + torch.arange(8))
    assert drawn.min() == 0
    assert drawn.max() == 30


@pytest.mark.parametrize("name", EXPERIMENT.conditions)
@pytest.mark.parametrize("settings", [TINY, Settings()], ids=["tiny", "whole"])
def test_equal_is_what_the_condition_says(name, settings):
    mha, model = build("MHA", 0, settings), build(name, 0, settings)
    assert mha.mlps[0][1].out_features == settings.mlp
    if "parameters" in name:
        assert sizes(model) == pytest.approx(sizes(mha), rel=0.01)
        assert (model.mlps[0][1].out_features > settings.mlp) == ("MLA" not in name or settings == TINY)
    else:
        assert model.mlps[0][1].out_features == settings.mlp
        assert (sizes(model) < sizes(mha)) == (name[:3] in ("GQA", "MQA") or ("MLA" in name and settings == TINY))


@pytest.mark.parametrize(("kind", "numbers"), [("MHA", 2 * 24), ("GQA", 2 * 12), ("MQA", 2 * 6), ("MLA", 5 + 2)])
def test_bytes_are_those_of_the_caches(kind, numbers):
    model = build(condition(kind), 0, TINY)
    assert cache_bytes(model, torch.zeros(1, 13, dtype=torch.int64)) == 2 * 13 * numbers * 4


def test_the_latent_is_as_large_in_the_cache_as_the_grouped_heads():
    grouped, latent = (
        cache_bytes(build(condition(kind), 0, Settings()), torch.zeros(1, 3, dtype=torch.int64))
        for kind in ("GQA", "MLA")
    )
    assert grouped == latent


@pytest.mark.parametrize("name", EXPERIMENT.conditions)
def test_the_same_seed_gives_the_same_numbers_and_another_does_not(name):
    first, again, other = (run(name, seed, TINY) for seed in (2, 2, 3))
    assert first == again
    assert first["loss"] != other["loss"]
    assert first["step"] == [0, 2, 4]


def test_training_lowers_the_loss():
    numbers = run("MHA", 0, replace(TINY, steps=60, rate=2e-2, points=1, rows=32))
    assert numbers["loss"] < numbers["loss_curve"][0] - 1


def test_tiny_runs_are_summed_up():
    result = run_experiment(EXPERIMENT, seeds=range(2), settings=TINY)
    assert len(result.runs) == 14
    assert len(result.summary.differences) == 8
    assert {finding.kind for finding in result.findings} >= {FOUND, NO_CONCLUSION}
    assert set(result.request["inputs"]) == {"corpus"}


def made(width: dict[str, float], parameters: dict[str, float]) -> Summary:
    """Ten seeds in which losses differ from that of MHA by so much."""
    noise = np.random.default_rng(0).normal(0, 1e-3, (10, 7))
    losses = {condition(kind, "equal width"): 2.0 + more for kind, more in width.items()}
    losses |= {condition(kind, "equal parameters"): 2.0 + more for kind, more in parameters.items()}
    caches = {"MHA": 1024.0, "GQA": 256.0, "MQA": 128.0, "MLA": 256.0}
    runs = []
    for seed in range(10):
        for number, name in enumerate(EXPERIMENT.conditions):
            told = {"loss": losses.get(name, 2.0) + noise[seed, number], "train_loss": 1.9, "cache": caches[name[:3]]}
            told["parameters"] = 45_760.0 if name == "MHA" else 39_616.0
            runs.append({"condition": name, "seed": seed, "numbers": told})
    return summarise(replace(EXPERIMENT, curves=()), runs, Settings())


def texts(summary: Summary, kind: str) -> str:
    return "\n".join(finding.text for finding in findings(summary) if finding.kind == kind)


def test_findings_when_sharing_costs_at_equal_width_only():
    summary = made({"GQA": 0.05, "MQA": 0.1, "MLA": 0.0}, {"GQA": 0.0, "MQA": 0.07, "MLA": -0.06})
    found, limits = texts(summary, FOUND), texts(summary, NO_CONCLUSION)
    assert "MHA 1024, GQA 256 (1/4), MQA 128 (1/8), MLA 256 (1/4)" in found
    assert "equal width: GQA has the higher held-out loss (GQA − MHA): +0.05" in found
    assert "equal width: held-out losses differ by less than 0.01 nats (MLA − MHA)" in found
    assert "equal width: MLA has the lower held-out loss (MLA − GQA): −0.05" in found
    assert "equal parameters: MLA has the lower held-out loss (MLA − MHA): −0.06" in found
    assert "GQA: that sharing as such costs loss: at equal width GQA has 39,616 parameters and MHA 45,760" in limits
    assert "MQA: that parameters alone explain the loss at equal width" in limits
    assert "MLA: that" not in limits


def test_findings_when_nothing_is_shown():
    summary = made({"GQA": 0.0, "MQA": 0.0, "MLA": 0.0}, {"GQA": 0.0, "MQA": 0.0, "MLA": 0.0})
    summary = replace(summary, settings=replace(Settings(), margin=0.0))
    assert "no difference of held-out losses is shown" in texts(summary, NOT_SHOWN)
    assert "sharing as such" not in texts(summary, NO_CONCLUSION)
    assert "parameters alone" not in texts(summary, NO_CONCLUSION)
