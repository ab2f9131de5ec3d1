"""Means, intervals and differences over seeds against numpy, and the rule by which a difference is shown."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from headwise.bench.experiments.experiment import FOUND, NOT_SHOWN, Comparison, Measure
from headwise.bench.experiments.findings import compare, difference_text, row_text
from headwise.bench.experiments.summary import Summary, sign_flip_p_value, summarise
from headwise.intervals import bootstrap_interval
from tests.bench.experiments.toy import TOY, Settings

PLAIN = replace(TOY, curves=())


def summary_of(a: list, b: list, experiment=PLAIN) -> Summary:
    runs = [
        {"condition": condition, "seed": seed, "numbers": {"loss": value}}
        for condition, values in (("a", a), ("b", b))
        for seed, value in enumerate(values)
    ]
    return summarise(experiment, runs[::-1], Settings())


def test_rows_and_differences_are_those_of_numpy():
    generator = np.random.default_rng(7)
    a, b = generator.normal(size=11), generator.normal(size=11)
    summary = summary_of(list(a), list(b))
    assert [(row.condition, row.measure) for row in summary.rows] == [("a", "loss"), ("b", "loss")]
    for condition, values in (("a", a), ("b", b)):
        row = summary.row(condition, "loss")
        low, high = bootstrap_interval(values, 0)
        assert (row.mean, row.low, row.high, row.n) == pytest.approx((values.mean(), low, high, 11))
        np.testing.assert_array_equal(summary.values(condition, "loss"), values)
        assert summary.mean(condition, "loss") == row.mean
    difference, low, high = summary.difference("shift"), *bootstrap_interval(b - a, 0)
    assert (difference.mean, difference.low, difference.high) == pytest.approx(((b - a).mean(), low, high))
    assert (difference.higher, difference.lower, difference.n) == ((b > a).sum(), (b < a).sum(), 11)


def test_a_seed_without_a_value_is_left_out_of_its_row_and_its_pair():
    summary = summary_of([1.0, 2.0, 4.0], [3.0, None, 7.0])
    row, difference = summary.row("b", "loss"), summary.difference("shift")
    assert (row.mean, row.n) == (5.0, 2)
    assert (difference.mean, difference.n, difference.higher, difference.lower) == (2.5, 2, 2, 0)
    assert np.isnan(difference.values[1])
    record = summary.record()
    assert record["rows"][1]["values"] == [3.0, None, 7.0]
    none = summary_of([1.0, 2.0], [None, None])
    assert none.record()["rows"][1] | {"values": 0} == {
        "condition": "b", "measure": "loss", "title": "loss (nats)", "mean": None, "low": None, "high": None, "n": 0,
        "values": 0, "form": ".3f",
    }  # fmt: skip
    assert not none.difference("shift").shown
    assert difference_text(none.difference("shift")) == "no seed has both values"


def test_curves_are_means_place_by_place():
    runs = [
        {"condition": "a", "seed": seed, "numbers": {"step": [0, 5], "curve": [float(seed), None if seed else 3.0]}}
        for seed in range(3)
    ]
    (curve,) = summarise(replace(TOY, comparisons=()), runs, Settings()).curves
    assert (curve.condition, curve.curve, curve.x, curve.n) == ("a", "curve", (0, 5), 3)
    assert curve.mean == (1.0, 3.0)
    assert (curve.low[0], curve.high[0]) == pytest.approx(bootstrap_interval(np.arange(3.0), 0))
    assert curve.record()["low"][1] is None


@pytest.mark.parametrize("count", [1, 2, 5, 7])
def test_p_values_are_exact_for_few_values(count):
    values = np.random.default_rng(count).normal(0.7, 1, count)
    means = [abs(np.mean(values * signs)) for signs in itertools.product((-1, 1), repeat=count)]
    expected = np.mean([mean >= abs(values.mean()) - 1e-12 for mean in means])
    assert sign_flip_p_value(values) == pytest.approx(expected)


def test_p_values_of_many_values_are_drawn_always_the_same():
    values = np.random.default_rng(0).normal(0.5, 1, 17)
    assert sign_flip_p_value(values) == sign_flip_p_value(values)
    exact = sign_flip_p_value(values[:16])
    assert 0 < sign_flip_p_value(values) < 5 * exact + 0.1
    assert sign_flip_p_value(np.full(20, 1.0)) == pytest.approx(1 / 10_000)
    assert np.isnan(sign_flip_p_value(np.array([])))


@pytest.mark.parametrize(("seeds", "shown"), [(5, False), (6, True)])
def test_a_difference_of_one_sign_is_shown_from_six_seeds_on(seeds, shown):
    b = [1.0 + 0.01 * seed for seed in range(seeds)]
    for values, sign in ((b, 1), ([-each for each in b], -1)):
        difference = summary_of([0.0] * seeds, values).difference("shift")
        assert np.sign(difference.low) == np.sign(difference.high) == sign
        assert difference.p == 2 / 2**seeds
        assert difference.shown is shown
        assert difference.record()["shown"] is shown


def test_an_interval_that_excludes_zero_is_not_enough():
    b = [-0.3, 3.0, 2.5, 1.0, 0.4, -0.2, 1.5]
    difference = summary_of([0.0] * 7, b).difference("shift")
    assert difference.low > 0
    assert difference.p > 0.05
    assert not difference.shown


def test_all_comparisons_of_an_experiment_count():
    """One of 2 / 64 among seven that say nothing is shown no more: q is 7 times as large."""
    measures = tuple(Measure(f"m{number}", f"m{number}") for number in range(7))
    comparisons = tuple(Comparison(each.key, each.key, ("a", each.key), ("b", each.key)) for each in measures)
    many = replace(PLAIN, measures=measures, comparisons=comparisons)
    noise = [1.0, -1.0, 1.0, -1.0, 1.0, -1.0]
    runs = [
        {
            "condition": condition,
            "seed": seed,
            "numbers": {
                each.key: 0.0 if condition == "a" else (1.0 if each.key == "m0" else noise[seed]) for each in measures
            },
        }
        for seed in range(6)
        for condition in "ab"
    ]
    first = summarise(many, runs, Settings()).difference("m0")
    assert first.p == 2 / 64
    assert first.q == pytest.approx(7 * 2 / 64)
    assert not first.shown


def told(b: list[float], **options):
    wording = {"higher": "b is higher", "lower": "b is lower", "none": "none is shown"}
    return compare(summary_of([0.0] * len(b), b).difference("shift"), **wording, **options)


def test_a_finding_has_words_for_every_outcome():
    up = [0.3 + 0.01 * seed for seed in range(8)]
    assert told(up).kind == told([-each for each in up]).kind == FOUND
    assert told(up).text.startswith("b is higher: +0.335 (")
    assert told(up).text.endswith("), higher in 8 of 8 seeds")
    assert told([-each for each in up]).text.startswith("b is lower: −0.335 (−0.")
    mixed = [0.3, -0.3, 0.2, -0.2, 0.1, -0.1, 0.3]
    assert told(mixed).kind == NOT_SHOWN
    assert told(mixed).text.startswith("none is shown: +0.043 (")


def test_within_a_margin_a_difference_is_none_even_if_it_is_shown():
    up = [0.01 + 0.0001 * seed for seed in range(8)]
    assert told(up).text.startswith("b is higher")
    same = told(up, same="both are alike", margin=0.02)
    assert same.text.startswith("both are alike: +0.010")
    assert same.kind == FOUND
    assert told([-each for each in up], same="both are alike", margin=0.02).text.startswith("both are alike")
    assert told([2 * each for each in up], same="both are alike", margin=0.02).text.startswith("b is higher")


def test_rows_are_written_with_a_true_minus_and_zero_without_a_sign():
    assert difference_text(summary_of([1e-5] * 2, [0.0] * 2).difference("shift")) == (
        "0.000 (0.000 to 0.000), lower in 2 of 2 seeds"
    )
    assert row_text(summary_of([-1.0, -1.0], [0.0, 0.0]).row("a", "loss")) == "−1.000 (−1.000 to −1.000)"
