"""The curve of loss against heads removed: each point against an explicit ablation, greedy orders, interaction."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from headwise.errors import UserError
from headwise.intervals import bootstrap_interval
from headwise.models.questions import document_losses
from headwise.models.weights import heads_of, replace_heads
from headwise.report.prune_figure import _compose, draw_curve
from headwise.surgery.pruning.curve import prune_curve
from headwise.surgery.pruning.scores import UnitScores, score_units
from headwise.surgery.pruning.units import check_keep, choose, possible_counts
from tests.surgery.pruning import checkpoint, rows

TEXT, OTHER = rows(5, 2, 11, seed=3), rows(3, 2, 11, seed=4)


def loss_without(model, heads):
    with model.ablate(heads):
        return document_losses(model, TEXT)


@pytest.mark.parametrize(("name", "unit"), [("llama", "group"), ("llama", "head"), ("gpt2", "head"), ("bert", "group")])
def test_every_point_is_the_loss_without_those_heads_and_its_difference_from_the_singles(name, unit):
    model = checkpoint(name)
    curve = prune_curve(model, TEXT, calibration=OTHER, unit=unit, points=2, most=0.7, orders=("fixed",))
    scores = score_units(model, OTHER, unit=unit)
    whole = document_losses(model, TEXT)
    assert curve.baseline == pytest.approx(whole.mean())
    assert len(curve.table) == 2
    for row in curve.table.itertuples():
        removed = choose(model.layouts, scores.values, unit, row.removed, uniform=False)
        heads = [(layer, head) for layer, own in removed.items() for head in own]
        assert len(heads) == row.removed
        joint = loss_without(model, heads) - whole
        parts = {head if unit == "head" else (head[0], model.layouts[head[0]].kv_head(head[1])): [] for head in heads}
        for layer, head in heads:
            parts[(layer, head if unit == "head" else model.layouts[layer].kv_head(head))].append((layer, head))
        singles = sum(loss_without(model, part) - whole for part in parts.values())
        assert row.delta == pytest.approx(joint.mean(), abs=1e-6)
        assert row.loss == pytest.approx(whole.mean() + joint.mean(), abs=1e-6)
        assert row.singles == pytest.approx(singles.mean(), abs=1e-6)
        assert row.interaction == pytest.approx((joint - singles).mean(), abs=1e-6)
        assert (row.low, row.high) == pytest.approx(tuple(map(float, bootstrap_interval(joint, 0))), abs=1e-6)
        bounds = tuple(map(float, bootstrap_interval(joint - singles, 0)))
        assert (row.interaction_low, row.interaction_high) == pytest.approx(bounds, abs=1e-6)


def test_a_planted_pair_interacts_and_a_head_alone_does_not():
    """Two heads that do the same, and loudly: either alone still does it, so both together cost more than their sum."""
    model = checkpoint("gpt2")
    weights = heads_of(model, 2).clone()
    for kind in ("query", "key", "value", "query_bias", "key_bias", "value_bias"):
        getattr(weights, kind)[4] = getattr(weights, kind)[0]
    output = weights.output * 0.01
    output[0] = output[4] = 30 * weights.output[0]
    replace_heads(model, {2: replace(weights, output=output)})
    values = np.full((3, 5), 9.0)
    values[2, [0, 4]] = 0
    values[2, 1] = 5
    scores = UnitScores("magnitude", "head", values)
    curve = prune_curve(model, TEXT, scores=scores, points=2, most=2 / 15, orders=("fixed",))
    alone, both = curve.table.itertuples()
    assert curve.heads == {"fixed": ((2, 0), (2, 4))}
    assert (alone.removed, both.removed) == (1, 2)
    assert alone.interaction == pytest.approx(0, abs=1e-9)
    assert both.interaction_low > 0
    assert abs(both.singles) < 0.2 * abs(both.delta)


def test_greedy_scores_what_is_left_anew():
    model = checkpoint("gpt2")
    curve = prune_curve(
        model, TEXT, calibration=OTHER, score="contribution", unit="head", points=4, most=0.6, orders=("greedy",)
    )
    gone = {}
    for before, count in zip([0, *curve.table["removed"]], curve.table["removed"], strict=False):
        with model.ablate([(layer, head) for layer, heads in gone.items() for head in heads]):
            scores = score_units(model, OTHER, score="contribution", unit="head")
        taken = choose(model.layouts, scores.values, "head", count - before, uniform=False, gone=gone)
        gone = {layer: sorted(gone.get(layer, []) + taken.get(layer, [])) for layer in {*gone, *taken}}
    assert curve.heads["greedy"] == tuple((layer, head) for layer in sorted(gone) for head in gone[layer])
    fixed = prune_curve(
        model, TEXT, calibration=OTHER, score="contribution", unit="head", points=4, most=0.6, orders=("fixed",)
    )
    assert fixed.heads["fixed"] != curve.heads["greedy"], "the same heads: this seed tells nothing"


@pytest.mark.parametrize(("name", "unit"), [("llama", "head"), ("llama", "group"), ("gpt2", "head"), ("qwen3", "head")])
@pytest.mark.parametrize("score", ["magnitude", "contribution"])
def test_every_order_removes_as_many_as_it_says_and_what_can_be_removed_for_real(name, unit, score):
    """Up to the last unit of every layer, where some layers have nothing left to give before others."""
    model = checkpoint(name)
    step, most = possible_counts(model.layouts, unit, uniform=False)
    curve = prune_curve(model, TEXT, calibration=OTHER, score=score, unit=unit, points=most // step, most=1)
    for order, own in curve.table.groupby("order"):
        assert own["removed"].tolist() == [*range(step, most + 1, step)], order
        gone = set(curve.heads[order])
        assert len(gone) == most
        keep = {
            layer: [head for head in range(layout.num_heads) if (layer, head) not in gone]
            for layer, layout in enumerate(model.layouts)
        }
        assert check_keep(model.layouts, keep) == keep


def test_random_heads_have_no_singles_and_all_is_json():
    curve = prune_curve(checkpoint("llama"), TEXT, calibration=OTHER, points=2, most=0.5)
    told = json.loads(json.dumps(curve.as_dict(), allow_nan=False))
    by_order = {
        order: [row for row in told["points"] if row["order"] == order] for order in ("fixed", "greedy", "random")
    }
    assert [row["removed"] for row in by_order["random"]] == [6, 9]
    assert all(row["interaction"] is None and row["singles"] is None for row in by_order["random"])
    assert all(isinstance(row["interaction"], float) for row in by_order["fixed"] + by_order["greedy"])
    assert told["documents"] == list(TEXT.documents)


def test_the_picture_says_that_removal_is_free():
    """Whatever was removed uniformly for real: the curve is not of that."""
    curve = prune_curve(checkpoint("llama"), TEXT, score="magnitude", points=1, orders=("fixed",))
    (first, second) = _compose(curve, "a")._suptitle.get_text().splitlines()
    assert first == "a: groups removed from any layer"
    assert second == f"zeroed without compensation, {len(TEXT.documents)} held-out documents"


def test_the_picture_is_the_same_each_time(tmp_path):
    curve = prune_curve(checkpoint("llama"), TEXT, calibration=OTHER, points=2, most=0.5)
    first, again = (draw_curve(curve, tmp_path / name, name="a $ b").read_bytes() for name in ("one.png", "two.png"))
    assert first == again
    assert first.startswith(b"\x89PNG")
    with pytest.raises(UserError, match="can't write"):
        draw_curve(curve, tmp_path / "nowhere" / "one.png", name="a")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"calibration": None}, "expected rows of text for the score first-order, got none"),
        ({"orders": ("fixed", "clever")}, "orders out of fixed, greedy, random, got clever"),
        ({"most": 0.1}, "at least a point with 3 heads removed, got 8 points up to a share of 0.1"),
        ({"points": 0}, "got 0 points"),
        ({"unit": "layer"}, "the unit head or group"),
    ],
)
def test_what_makes_no_curve_is_refused(options, told):
    with pytest.raises(UserError, match=told):
        prune_curve(checkpoint("llama"), TEXT, **{"calibration": OTHER} | options)


def test_random_heads_are_drawn_by_the_seed_and_no_others():
    model = checkpoint("gpt2")
    for seed in (3, 4):
        options = {"score": "magnitude", "unit": "head", "points": 1, "most": 0.4, "orders": ("random",), "seed": seed}
        curve = prune_curve(model, TEXT, **options)
        drawn = score_units(model, score="random", unit="head", seed=seed).values
        wanted = choose(model.layouts, drawn, "head", 6, uniform=False)
        assert curve.heads["random"] == tuple((layer, head) for layer in sorted(wanted) for head in wanted[layer])


def test_masks_and_intervals_are_drawn_by_the_seed():
    model = checkpoint("bert")
    curve = prune_curve(model, TEXT, score="magnitude", unit="head", points=1, most=0.2, orders=("fixed",), seed=3)
    (row,) = curve.table.itertuples()
    whole = document_losses(model, TEXT, seed=3)
    assert curve.baseline == pytest.approx(whole.mean())
    with model.ablate(curve.heads["fixed"]):
        delta = document_losses(model, TEXT, seed=3) - whole
    assert row.delta == pytest.approx(delta.mean(), abs=1e-6)
    assert (row.low, row.high) == pytest.approx(tuple(map(float, bootstrap_interval(delta, 3))), abs=1e-6)
