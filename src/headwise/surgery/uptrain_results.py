"""What a training has brought, with intervals over held-out documents.

Symbols: D documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headwise.intervals import bootstrap_interval
from headwise.surgery.uptrain_loop import Log

__all__ = ["curve_of", "difference", "share_closed", "spread"]

Values = Sequence[float]
_RESAMPLES, _TAIL = 2_000, 0.025


def spread(values: Values, seed: int) -> dict[str, float | None]:
    """Mean over documents ``[D]`` with its 95 % interval, as JSON can hold it."""
    low, high = bootstrap_interval(np.asarray(values), seed)
    return {"value": float(np.mean(values)), "low": _number(low), "high": _number(high)}


def difference(before: Values, after: Values, seed: int) -> dict[str, float | None]:
    """By how much the loss fell, paired by document."""
    return spread((np.asarray(before) - np.asarray(after)).tolist(), seed)


def share_closed(start: Values, end: Values, teacher: Values, seed: int) -> dict[str, float | None]:
    """Share of the gap between student and teacher that training has closed.

    (start − end) / (start − teacher), of means over documents; the interval draws documents anew and takes numerator
    and denominator from the same draw.

    Args:
        start, end: the student's losses before and after, ``[D]``.
        teacher: the teacher's, ``[D]``.
        seed: of the draws.

    Returns:
        ``value``, ``low``, ``high``; None where there is no gap to close, in the means or in more than one draw in
        forty, or fewer than two documents.
    """
    gained = np.asarray(start) - np.asarray(end)
    gap = np.asarray(start) - np.asarray(teacher)
    if gap.mean() <= 0:
        return {"value": None, "low": None, "high": None}
    count = len(gap)
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
    gaps = draws @ gap
    told: dict[str, float | None] = {"value": float(gained.mean() / gap.mean()), "low": None, "high": None}
    if count > 1 and (gaps <= 0).mean() <= _TAIL:
        shares = ((draws @ gained) / gaps)[gaps > 0]
        low, high = np.quantile(shares, (_TAIL, 1 - _TAIL))
        told |= {"low": float(low), "high": float(high)}
    return told


def curve_of(log: Log, seed: int) -> list[dict[str, Any]]:
    """The curve's points with means and intervals beside the losses of the documents."""
    points = []
    for point in log.curve:
        told = point | {"loss": spread(point["losses"], seed)}
        if point["divergences"]:
            told["divergence"] = spread(point["divergences"], seed)
        points.append(told)
    return points


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
