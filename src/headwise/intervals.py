"""Intervals over documents, the unit that is drawn anew: positions inside one are far from independent."""

from __future__ import annotations

import numpy as np

__all__ = ["bootstrap_interval"]


def bootstrap_interval(
    values: np.ndarray, seed: int, *, level: float = 0.95, resamples: int = 2_000
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap of the mean over documents.

    Args:
        values: ``[D, ...]``; NaN where a document has no value (it is left out of the mean).
        seed: seed of the resampling.
        level: coverage of the interval.
        resamples: how many times documents are drawn with replacement.

    Returns:
        Lower and upper bound, each ``[...]``; NaN where fewer than two documents have a value.
    """
    flat = values.reshape(len(values), -1).astype(np.float64)
    counted = np.isfinite(flat)
    filled = np.where(counted, flat, 0.0)
    generator = np.random.default_rng(seed)
    draws = generator.multinomial(len(flat), np.full(len(flat), 1 / len(flat)), size=resamples).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (draws @ filled) / (draws @ counted.astype(np.float64))
        enough = counted.sum(0) >= 2
    bounds = np.full((2, flat.shape[1]), np.nan)
    tail = (1 - level) / 2
    if enough.any():
        bounds[:, enough] = np.nanquantile(means[:, enough], (tail, 1 - tail), axis=0)
    low, high = bounds.reshape(2, *values.shape[1:])
    return low, high
