"""A mean over documents with its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headwise.intervals import bootstrap_interval

__all__ = ["Estimate", "estimate"]


@dataclass(frozen=True)
class Estimate:
    """A mean over documents and its 95 % bootstrap interval, NaN where there is only one document."""

    value: float
    low: float
    high: float

    def record(self) -> dict[str, float | None]:
        """As JSON holds it: None for NaN."""
        return {name: None if math.isnan(number) else number for name, number in vars(self).items()}


def estimate(values: np.ndarray, seed: int) -> Estimate:
    """Mean and interval of ``values [D]``, one per document."""
    low, high = bootstrap_interval(values, seed)
    return Estimate(float(values.mean()), float(low), float(high))
