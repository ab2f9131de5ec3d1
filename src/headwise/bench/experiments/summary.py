"""Numbers over seeds: means with intervals, paired differences, curves.

An interval is a 95 % bootstrap over seeds. With ten values or fewer such intervals cover somewhat less than they say,
so a difference is called shown only where a second judge agrees: an exact sign-flip test over the paired differences,
two-sided, whose p-values are adjusted for all comparisons of the experiment (Benjamini and Hochberg). With fewer than
six seeds no p-value can reach 5 %, and nothing is called shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from headwise.bench.experiments.experiment import Comparison, Curve, Experiment, Measure
from headwise.intervals import bootstrap_interval
from headwise.study.nulls import benjamini_hochberg

__all__ = ["LEVEL", "CurveRow", "Difference", "Row", "Summary", "sign_flip_p_value", "summarise"]

LEVEL = 0.05
_ALL_FLIPS = 16  # with more seeds than this flips are drawn
_DRAWN = 9_999


@dataclass(frozen=True)
class Row:
    """One measure of one condition.

    Attributes:
        condition: its name.
        measure: key of the measure.
        title: of the measure.
        mean: over the seeds that have a value; NaN where none has.
        low: lower bound of the 95 % interval; NaN with fewer than two.
        high: upper bound.
        n: seeds that have a value.
        values: by seed, NaN where there is none.
        form: how the measure is written.
    """

    condition: str
    measure: str
    title: str
    mean: float
    low: float
    high: float
    n: int
    values: tuple[float, ...]
    form: str

    def record(self) -> dict[str, Any]:
        """As JSON holds it: None for NaN."""
        return _record(self)


@dataclass(frozen=True)
class Difference:
    """A paired difference, second − first.

    Attributes:
        key: name of the comparison.
        title: for tables.
        mean: over the seeds that have both values; NaN where none has.
        low: lower bound of the 95 % interval; NaN with fewer than two.
        high: upper bound.
        n: seeds that have both.
        higher: in how many of them the second is higher.
        lower: in how many it is lower.
        p: two-sided, of the sign-flip test.
        q: adjusted for all comparisons of the experiment.
        values: by seed, NaN where there is none.
        form: how it is written.
    """

    key: str
    title: str
    mean: float
    low: float
    high: float
    n: int
    higher: int
    lower: int
    p: float
    q: float
    values: tuple[float, ...]
    form: str

    @property
    def shown(self) -> bool:
        """Whether the interval excludes 0 and the test agrees; never where there is no interval."""
        return bool(self.q <= LEVEL and (self.low > 0 or self.high < 0))

    def record(self) -> dict[str, Any]:
        """As JSON holds it: None for NaN."""
        return _record(self) | {"shown": self.shown}


@dataclass(frozen=True)
class CurveRow:
    """One curve of one condition, place by place, over the seeds.

    Attributes:
        condition: its name.
        curve: key of the curve.
        title: of the curve.
        x_title: of its places.
        x: places.
        mean: ``[places]``.
        low: lower bounds.
        high: upper bounds.
        n: seeds.
    """

    condition: str
    curve: str
    title: str
    x_title: str
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    n: int

    def record(self) -> dict[str, Any]:
        """As JSON holds it: None for NaN."""
        return _record(self)


@dataclass(frozen=True)
class Summary:
    """All that is computed from the runs.

    Attributes:
        seeds: in the order of the values.
        rows: by condition, then measure; only those that a run has.
        differences: in the order in which the experiment declares them.
        curves: by condition, then curve.
        settings: of the experiment.
    """

    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    curves: tuple[CurveRow, ...]
    settings: Any

    def row(self, condition: str, measure: str) -> Row:
        """One line of the table."""
        return next(each for each in self.rows if (each.condition, each.measure) == (condition, measure))

    def mean(self, condition: str, measure: str) -> float:
        """Over the seeds."""
        return self.row(condition, measure).mean

    def values(self, condition: str, measure: str) -> np.ndarray:
        """``[seeds]``, NaN where a seed has none."""
        return np.array(self.row(condition, measure).values)

    def difference(self, key: str) -> Difference:
        """The comparison of that name."""
        return next(each for each in self.differences if each.key == key)

    def record(self) -> dict[str, Any]:
        """As JSON holds it: None for NaN."""
        return {
            "seeds": list(self.seeds),
            "rows": [each.record() for each in self.rows],
            "differences": [each.record() for each in self.differences],
            "curves": [each.record() for each in self.curves],
        }


def summarise(experiment: Experiment, runs: Sequence[Mapping[str, Any]], settings: Any) -> Summary:
    """Rows, differences and curves from runs, each ``{"condition", "seed", "numbers"}``, in any order."""
    seeds = tuple(sorted({int(run["seed"]) for run in runs}))
    by_place = {(run["condition"], run["seed"]): run["numbers"] for run in runs}
    found = {
        (condition, measure.key): values
        for condition in experiment.conditions
        for measure in experiment.measures
        if (values := _values(by_place, condition, measure.key, seeds)) is not None
    }
    rows = tuple(_row(condition, experiment.measure(key), values) for (condition, key), values in found.items())
    curves = [
        _curve_row(condition, curve, lists)
        for condition in experiment.conditions
        for curve in experiment.curves
        if (lists := _lists(by_place, condition, curve, seeds))
    ]
    return Summary(seeds, rows, _differences(experiment.comparisons, found), tuple(curves), settings)


def sign_flip_p_value(differences: np.ndarray) -> float:
    """Two-sided sign-flip test of a mean of 0: the share of sign patterns with a mean as far from 0 as that observed.

    Exact for up to 16 values; beyond, 9,999 patterns are drawn (always the same) and p = (c + 1) / (n + 1). NaN without
    values.
    """
    count = len(differences)
    if not count:
        return float("nan")
    if count <= _ALL_FLIPS:
        signs = np.array(list(product((-1.0, 1.0), repeat=count)))
    else:
        signs = np.random.default_rng(0).choice((-1.0, 1.0), size=(_DRAWN, count))
    rounding = 1e-12 * np.abs(differences).sum()  # the same sum in another order must count as a tie
    as_far = int((np.abs(signs @ differences) >= abs(differences.sum()) - rounding).sum())
    return as_far / len(signs) if count <= _ALL_FLIPS else (as_far + 1) / (_DRAWN + 1)


def _values(
    runs: Mapping[tuple[str, int], Mapping[str, Any]], condition: str, key: str, seeds: Sequence[int]
) -> np.ndarray | None:
    """``[seeds]``, NaN where a run has None; None where no run of the condition knows the measure."""
    told = [runs.get((condition, seed), {}) for seed in seeds]
    if not any(key in numbers for numbers in told):
        return None
    return np.array([float("nan") if numbers.get(key) is None else float(numbers[key]) for numbers in told])


def _lists(
    runs: Mapping[tuple[str, int], Mapping[str, Any]], condition: str, curve: Curve, seeds: Sequence[int]
) -> tuple[list[float], np.ndarray] | None:
    """Places, and ``[seeds, places]``."""
    told = [numbers for seed in seeds if curve.key in (numbers := runs.get((condition, seed), {}))]
    if not told:
        return None
    return list(told[0][curve.x]), np.array([numbers[curve.key] for numbers in told], dtype=np.float64)


def _row(condition: str, measure: Measure, values: np.ndarray) -> Row:
    told = _told(values)
    return Row(condition, measure.key, measure.title, **told, values=tuple(values.tolist()), form=measure.form)


def _curve_row(condition: str, curve: Curve, lists: tuple[list[float], np.ndarray]) -> CurveRow:
    x, values = lists
    low, high = bootstrap_interval(values, 0)
    mean = [_told(column)["mean"] for column in values.T]
    return CurveRow(
        condition, curve.key, curve.title, curve.x_title, tuple(x), tuple(mean), tuple(low.tolist()),
        tuple(high.tolist()), len(values),
    )  # fmt: skip


def _differences(
    comparisons: Sequence[Comparison], found: Mapping[tuple[str, str], np.ndarray]
) -> tuple[Difference, ...]:
    paired = [found[each.second] - found[each.first] for each in comparisons]
    p_values = np.array([sign_flip_p_value(values[np.isfinite(values)]) for values in paired])
    q_values = benjamini_hochberg(p_values)
    return tuple(
        Difference(
            each.key, each.title, **_told(values), higher=int((values > 0).sum()), lower=int((values < 0).sum()),
            p=float(p), q=float(q), values=tuple(values.tolist()), form=each.form,
        )
        for each, values, p, q in zip(comparisons, paired, p_values, q_values, strict=True)
    )  # fmt: skip


def _told(values: np.ndarray) -> dict[str, Any]:
    """Mean, interval and number of the values that there are."""
    known = values[np.isfinite(values)]
    low, high = bootstrap_interval(values, 0)
    mean = float(known.mean()) if len(known) else float("nan")
    return {"mean": mean, "low": float(low), "high": float(high), "n": len(known)}


def _record(row: Any) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(each) for each in value]
        return None if isinstance(value, float) and not np.isfinite(value) else value

    return {name: plain(value) for name, value in vars(row).items()}
