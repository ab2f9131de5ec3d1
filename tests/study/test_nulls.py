"""The statistics that make a finding: known answers, and error rates under a true null."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from headwise.intervals import bootstrap_interval
from headwise.study.nulls import benjamini_hochberg, paired_p_values, population_p_values


def test_benjamini_hochberg_agrees_with_scipy_whatever_the_shape_and_order():
    generator = np.random.default_rng(1)
    p_values = generator.uniform(size=(7, 5)) ** 3
    q_values = benjamini_hochberg(p_values)
    assert q_values.shape == p_values.shape
    np.testing.assert_allclose(q_values.ravel(), stats.false_discovery_control(p_values.ravel()), rtol=1e-12)


def test_benjamini_hochberg_does_not_count_heads_without_a_value():
    p_values = np.array([0.01, np.nan, 0.03, 0.04, np.nan])
    q_values = benjamini_hochberg(p_values)
    np.testing.assert_allclose(q_values[[0, 2, 3]], stats.false_discovery_control(p_values[[0, 2, 3]]))
    assert np.isnan(q_values[[1, 4]]).all()
    assert benjamini_hochberg(np.full(3, np.nan)).shape == (3,)


def test_population_p_value_counts_random_heads_at_least_as_large():
    null_heads = np.array([[0.1, 0.2, np.nan], [0.3, 0.3, 0.4]])
    p_values = population_p_values(np.array([0.05, 0.3, 0.5, np.nan]), null_heads)
    np.testing.assert_allclose(p_values[:3], [6 / 6, 4 / 6, 1 / 6])
    assert np.isnan(p_values[3])


def test_sign_flip_p_values_agree_with_all_patterns_counted():
    generator = np.random.default_rng(2)
    values, nulls = generator.normal(0.4, 1, size=(9, 3)), generator.normal(size=(9, 3))
    differences = values - nulls
    patterns = np.array(np.meshgrid(*[[-1, 1]] * 9)).reshape(9, -1).T
    exact = (patterns @ differences >= differences.sum(0) - 1e-12).mean(0)
    got = paired_p_values(values, nulls, seed=3)
    # 9,999 draws: the standard error of a share is at most 0.005.
    np.testing.assert_allclose(got, exact, atol=5 * np.sqrt(exact.max() * 1 / 9_999) + 2e-4)


def test_sign_flip_p_values_see_no_difference_where_there_is_none():
    values = np.random.default_rng(4).normal(size=(11, 2))
    assert (paired_p_values(values, values, seed=0) == 1).all()
    clear = paired_p_values(values + 9, values, seed=0)
    assert (clear <= 2**-11 * 5 + 1e-3).all()
    assert (clear > 0).all()
    assert (paired_p_values(values - 9, values, seed=0) > 0.99).all()


def test_sign_flip_p_values_leave_out_documents_without_a_value():
    values = np.random.default_rng(5).normal(1, 1, size=(13, 2))
    holed = values.copy()
    holed[[2, 7], 0] = np.nan
    holed[:, 1] = np.nan
    p_values = paired_p_values(holed, np.zeros_like(values), seed=0)
    kept = np.delete(values[:, :1], [2, 7], axis=0)
    assert p_values[0] == pytest.approx(paired_p_values(kept, np.zeros_like(kept), seed=0)[0], abs=0.01)
    assert np.isnan(p_values[1])


def test_sign_flip_p_values_are_uniform_under_the_null():
    generator = np.random.default_rng(6)
    p_values = paired_p_values(generator.normal(size=(17, 500)), generator.normal(size=(17, 500)), seed=0)
    assert stats.kstest(p_values, "uniform").pvalue > 0.001


def test_bootstrap_interval_covers_the_mean_about_as_often_as_it_says():
    generator = np.random.default_rng(7)
    low, high = bootstrap_interval(generator.normal(0.5, 1, size=(29, 600)), seed=0)
    covered = ((low <= 0.5) & (high >= 0.5)).mean()
    # The percentile bootstrap of 29 values is known to fall a little short of its level.
    assert 0.90 < covered < 0.97
    assert (low < high).all()


def test_bootstrap_interval_widens_with_the_level_and_needs_two_documents():
    values = np.random.default_rng(8).normal(size=(19, 1))
    low, high = bootstrap_interval(values, seed=0)
    wider_low, wider_high = bootstrap_interval(values, seed=0, level=0.999)
    assert wider_low < low < values.mean() < high < wider_high
    holed = np.full((5, 2), np.nan)
    holed[0, 0] = 1.0
    holed[[1, 2], 1] = (0.0, 1.0)
    low, high = bootstrap_interval(holed, seed=0)
    assert np.isnan([low[0], high[0]]).all()
    assert low[1] == 0.0
    assert high[1] == 1.0
