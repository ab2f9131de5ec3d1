"""The learning rate over the steps."""

from __future__ import annotations

import math

__all__ = ["learning_rate"]


def learning_rate(step: int, steps: int, peak: float, warmup: float) -> float:
    """A straight rise to the peak, then half a cosine down to zero (Loshchilov and Hutter 2017).

    The first step already learns, and so does the last: zero would be reached one step after it.

    Args:
        step: which step, from 0.
        steps: how many there are.
        peak: the highest rate.
        warmup: share of the steps that rise, rounded up to whole ones.
    """
    rising = math.ceil(warmup * steps)
    if step < rising:
        return peak * (step + 1) / rising
    return peak * 0.5 * (1 + math.cos(math.pi * (step - rising) / (steps - rising)))
