"""Scores of heads and groups against plain computations of the same, and planted heads that do nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from headwise.errors import UserError
from headwise.models.losses import row_losses
from headwise.models.questions import ask_rows, by_document, document_losses
from headwise.models.weights import heads_of, replace_heads
from headwise.surgery.prune import prune
from headwise.surgery.pruning.scores import ablated_losses, score_units
from headwise.surgery.pruning.units import units_of
from tests.surgery.pruning import checkpoint, rows

NAMES = ["llama", "gpt2", "bert"]


def units(model, unit):
    return [
        (layer, place, heads)
        for layer, layout in enumerate(model.layouts)
        for place, heads in enumerate(units_of(layout, unit))
    ]


@pytest.mark.parametrize("unit", ["head", "group"])
@pytest.mark.parametrize("name", NAMES)
def test_contribution_is_the_mean_square_of_what_a_unit_adds(name, unit):
    """Position by position, from the output projection alone; a group's heads add up before they are squared."""
    model, text = checkpoint(name), rows(3, 2, 5)
    calls = []
    with torch.no_grad(), model.observe(lambda call: calls.append((call.layer, call.output.double()))):
        model.body(text.tokens)
    scores = score_units(model, text, score="contribution", unit=unit)
    for layer, place, heads in units(model, unit):
        output = heads_of(model, layer).output.double()
        attended = next(given for served, given in calls if served == layer)
        squares = [
            sum(output[head] @ attended[row, head, position] for head in heads).square().sum()
            for row in range(6)
            for position in range(5)
        ]
        assert scores.values[layer, place] == pytest.approx(float(torch.stack(squares).mean()), rel=1e-4)
    assert (scores.low <= scores.values).all()
    assert (scores.values <= scores.high).all()


@pytest.mark.parametrize("unit", ["head", "group"])
@pytest.mark.parametrize("name", NAMES)
def test_ablation_is_the_loss_without_a_unit_less_that_with_it(name, unit):
    model, text = checkpoint(name), rows(3, 2, 7)
    scores = score_units(model, text, score="ablation", unit=unit, seed=3)
    whole = document_losses(model, text, seed=3)
    for layer, place, heads in units(model, unit)[::2]:
        with model.ablate([(layer, head) for head in heads]):
            without = document_losses(model, text, seed=3)
        assert scores.values[layer, place] == pytest.approx(float((without - whole).mean()), abs=1e-6)


@pytest.mark.parametrize("unit", ["head", "group"])
@pytest.mark.parametrize("name", NAMES)
def test_first_order_is_the_slope_of_the_loss(name, unit):
    """By finite differences in float64, row by row, with one gate for all heads of a unit."""
    model, text, step = checkpoint(name, torch.float64), rows(3, 1, 7), 1e-3
    scores = score_units(model, text, score="first-order", unit=unit, seed=3)
    (question,) = ask_rows(model, text, seed=3)

    def loss(layer, heads, gate):
        gates = torch.ones(model.num_layers, len(text), model.max_heads, dtype=torch.float64)
        gates[layer, :, heads] = gate
        with torch.no_grad(), model.gate(gates):
            return row_losses(model, question)

    for layer, place, heads in units(model, unit)[::3]:
        slope = (loss(layer, heads, 1 + step) - loss(layer, heads, 1 - step)) / (2 * step)
        # Losses are rounded to float32 by the loss itself; a step of 1e-3 makes a few 1e-4 of that.
        assert scores.values[layer, place] == pytest.approx(float(slope.abs().mean()), rel=1e-2, abs=5e-4)


@pytest.mark.parametrize("name", NAMES)
def test_magnitude_is_the_norm_of_the_product_whatever_the_basis(name):
    model = checkpoint(name)
    weights = heads_of(model, 1)
    size = weights.group_size
    scores = score_units(model, score="magnitude", unit="head").values[1]
    products = [weights.output[head] @ weights.value[head // size] for head in range(weights.num_heads)]
    np.testing.assert_allclose(scores, [float(product.norm()) for product in products], rtol=1e-5)
    together = score_units(model, score="magnitude", unit="group").values[1]
    np.testing.assert_allclose(together, np.sqrt((scores**2).reshape(-1, size).sum(1)), rtol=1e-6)
    mixed = torch.randn(weights.value.shape[1], weights.value.shape[1])
    other = replace(weights, value=mixed @ weights.value, output=weights.output @ mixed.inverse())
    replace_heads(model, {1: other})
    np.testing.assert_allclose(score_units(model, score="magnitude", unit="head").values[1], scores, rtol=1e-3)


def test_random_scores_are_told_by_the_seed():
    model = checkpoint("llama")
    first, again, other = (score_units(model, score="random", seed=seed).values for seed in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first.shape == (3, 2)


@pytest.mark.parametrize("where", ["output", "value"])
@pytest.mark.parametrize("score", ["contribution", "magnitude", "ablation", "first-order"])
def test_a_planted_group_that_does_nothing_is_found_first(score, where):
    model = checkpoint("llama")
    weights = heads_of(model, 1).clone()
    if where == "output":
        weights.output[:3] = 0
    else:
        weights.value[0] = 0
    replace_heads(model, {1: weights})
    text = rows(3, 2, 11)
    values = score_units(model, text, score=score, unit="group").values
    assert np.unravel_index(np.abs(values).argmin(), values.shape) == (1, 0)
    assert values[1, 0] == pytest.approx(0, abs=1e-7)
    if score != "ablation":  # there another group may even do harm, and goes first
        removed = prune(model, text, heads=3, score=score, compensate=False).history[-1]["removed"]
        assert removed == {"1": [0, 1, 2]}


def test_the_seed_draws_the_interval_over_documents():
    model, text = checkpoint("llama"), rows(5, 2, 7)
    first, again, other = (score_units(model, text, score="contribution", seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first.values, other.values)
    assert np.array_equal(first.low, again.low)
    assert not np.array_equal(first.low, other.low)


def test_sets_of_heads_are_zeroed_together_and_documents_are_told_apart():
    model, text = checkpoint("gemma2"), rows(3, 3, 11)
    sets = [[], [(1, 2), (2, 0)], [(0, 4)]]
    losses = ablated_losses(model, text, sets)
    assert losses.shape == (3, 3)
    for heads, got in zip(sets, losses, strict=True):
        with model.ablate(heads):
            np.testing.assert_allclose(got, document_losses(model, text), rtol=1e-6)


def test_rows_of_a_document_are_averaged():
    values = np.array([[1.0, 2.0], [3.0, 6.0], [7.0, 8.0]])
    assert by_document(values, (1, 1, 0)).tolist() == [[7.0, 8.0], [2.0, 4.0]]


def test_a_model_without_a_language_head_has_no_loss_to_be_scored_by():
    model = checkpoint("llama")
    model.objective = None
    with pytest.raises(
        UserError,
        match="no language head, so there is no loss for the score first-order; take contribution or magnitude",
    ):
        score_units(model, rows(), score="first-order")
    assert score_units(model, rows(3, 1), score="contribution").values.shape == (3, 2)
