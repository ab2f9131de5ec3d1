"""What an experiment is made of. Nothing here runs anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwise.bench.experiments.summary import Summary

__all__ = [
    "FOUND",
    "NOT_SHOWN",
    "NO_CONCLUSION",
    "Cell",
    "Comparison",
    "Curve",
    "Dots",
    "Experiment",
    "Finding",
    "Lines",
    "Measure",
    "Numbers",
    "Panel",
    "Plane",
]

# (condition, measure): one number of each seed.
Cell = tuple[str, str]
# What a run returns: a number by the name of its measure, a list by the name of its curve or of the curve's axis.
Numbers = dict[str, float | list[float] | None]

FOUND, NOT_SHOWN, NO_CONCLUSION = "found", "not shown", "does not follow"


@dataclass(frozen=True)
class Measure:
    """A number that runs return.

    Attributes:
        key: its name in what a run returns.
        title: for tables and axes, with the unit.
        form: how it is written, as ``format`` takes it.
    """

    key: str
    title: str
    form: str = ".3f"


@dataclass(frozen=True)
class Curve:
    """A list of numbers that runs return, as long in every run of a condition.

    Attributes:
        key: its name in what a run returns.
        title: for the axis, with the unit.
        x: the name of the list of places, the same in every run of a condition.
        x_title: for the other axis.
    """

    key: str
    title: str
    x: str
    x_title: str


@dataclass(frozen=True)
class Comparison:
    """A paired difference, second − first, over the seeds.

    Attributes:
        key: its name.
        title: for the table, for instance "several retrievals: four heads − one".
        first: (condition, measure).
        second: likewise; another condition, another measure, or both.
        form: how it is written, as ``format`` takes it; a sign is added.
    """

    key: str
    title: str
    first: Cell
    second: Cell
    form: str = ".3f"


@dataclass(frozen=True)
class Dots:
    """A panel with a line for each condition and measure that has a number: seeds as points, the mean and its interval.

    Attributes:
        title: above the panel.
        measures: keys; more than one go on lines of their own.
        conditions: which, in this order; None: all that have the measure.
    """

    title: str
    measures: tuple[str, ...]
    conditions: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Lines:
    """A panel with a curve for each condition and key: the mean with its interval as a band.

    Attributes:
        title: above the panel.
        curves: keys; all with the same axes.
        conditions: which; None: all that have the curve.
    """

    title: str
    curves: tuple[str, ...]
    conditions: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Plane:
    """A panel with one measure against another: a point with its intervals for each condition.

    Attributes:
        title: above the panel.
        x: key of a measure, for instance the bytes of a cache.
        y: key of another, for instance a loss.
        conditions: which; None: all that have both.
        log_x: whether the first axis is logarithmic, in powers of two.
    """

    title: str
    x: str
    y: str
    conditions: tuple[str, ...] | None = None
    log_x: bool = False


Panel = Dots | Lines | Plane


@dataclass(frozen=True)
class Finding:
    """A sentence that the numbers allow.

    Attributes:
        kind: ``FOUND``, ``NOT_SHOWN`` or ``NO_CONCLUSION``.
        text: the sentence.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Experiment:
    """A question, and the runs that answer it.

    Attributes:
        name: as it is typed.
        question: one sentence.
        task: what is trained on what, in a few sentences.
        held_out: what is held out from what, in a sentence.
        settings: a frozen dataclass that holds all sizes.
        conditions: names, in the order of tables and figures.
        run: numbers from (condition, seed, settings), and from nothing else.
        measures: what tables show.
        findings: sentences from the summary, by rule.
        curves: lists that runs return.
        comparisons: paired differences.
        panels: of the figure.
        inputs: what decides the numbers beside settings and seed, such as the digest of a corpus.
        cost: how long a run of a condition takes beside the others, for the time left.
    """

    name: str
    question: str
    task: str
    held_out: str
    settings: Any
    conditions: tuple[str, ...]
    run: Callable[[str, int, Any], Numbers]
    measures: tuple[Measure, ...]
    findings: Callable[[Summary], list[Finding]]
    curves: tuple[Curve, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    panels: tuple[Panel, ...] = ()
    inputs: Callable[[], Mapping[str, Any]] = dict
    cost: Callable[[str], float] = lambda condition: 1.0

    def measure(self, key: str) -> Measure:
        """The measure of that name."""
        return next(each for each in self.measures if each.key == key)

    def curve(self, key: str) -> Curve:
        """The curve of that name."""
        return next(each for each in self.curves if each.key == key)
