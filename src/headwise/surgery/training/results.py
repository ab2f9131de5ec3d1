"""What a training has brought, with intervals over held-out documents.

Symbols: D documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headwise.intervals import bootstrap_interval
from headwise.surgery.training.loop import Log

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


def share_closed(start: Values, end: Values, teacher: Values, seed: int) -> dict[str, Any]:
    """Share of the gap between student and teacher that training has closed.

    (start − end) / (start − teacher), of means over documents; the interval draws documents anew and takes numerator
    and denominator from the same draw.

    Args:
        start, end: the student's losses before and after, ``[D]``.
        teacher: the teacher's, ``[D]``.
        seed: of the draws.

    Returns:
        ``value``, ``low``, ``high`` (both None for a single document) and ``reason``: why there is no value, where the
        interval of the gap includes zero, or the loss rose; None where there is one.
    """
    gained = np.asarray(start) - np.asarray(end)
    gap = np.asarray(start) - np.asarray(teacher)
    told: dict[str, Any] = {"value": None, "low": None, "high": None, "reason": None}
    rise_low, rise_high = map(float, bootstrap_interval(-gained, seed))
    rose = gained.mean() < 0
    worse = rose and not rise_low <= 0  # NaN, for a single document, leaves what there is
    if worse and np.mean(end) > np.mean(teacher):
        return told | {"reason": _rose(-gained, (rise_low, rise_high), worse)}
    low, high = bootstrap_interval(gap, seed)
    if gap.mean() <= 0 or low <= 0:
        interval = f" ({low:.3f} to {high:.3f})" if np.isfinite(low) else ""
        return told | {
            "reason": "no gap to close: the student's loss was not shown to be above the teacher's, the difference was "
            f"{gap.mean():.3f}{interval} nats"
        }
    if rose:
        return told | {"reason": _rose(-gained, (rise_low, rise_high), worse)}
    told["value"] = float(gained.mean() / gap.mean())
    if len(gap) > 1:
        draws = np.random.default_rng(seed).multinomial(len(gap), np.full(len(gap), 1 / len(gap)), size=_RESAMPLES)
        gaps = draws @ gap
        some = gaps > 0
        low, high = np.quantile((draws @ gained)[some] / gaps[some], (_TAIL, 1 - _TAIL))
        told |= {"low": float(low), "high": float(high)}
    return told


def _rose(rise: np.ndarray, bounds: tuple[float, float], worse: bool) -> str:
    """What to do about a loss that is higher by ``rise [D]``, whose mean has these bounds."""
    low, high = bounds
    interval = f" ({low:.3f} to {high:.3f})" if np.isfinite(low) else ""
    what = "training made it worse" if worse else "training was not shown to change the held-out loss"
    return f"{what}: it rose by {rise.mean():.3f}{interval} nats; train on more tokens, or with a lower --rate"


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
