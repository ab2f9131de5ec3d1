"""Sentences from differences: one wording for each way in which it can turn out."""

from __future__ import annotations

from headwise.bench.experiments.experiment import FOUND, NOT_SHOWN, Finding
from headwise.bench.experiments.summary import Difference, Row

__all__ = ["compare", "difference_text", "interval_text", "row_text"]


def compare(
    difference: Difference, *, higher: str, lower: str, none: str, same: str = "", margin: float = 0.0
) -> Finding:
    """What a difference says.

    Args:
        difference: second − first.
        higher: the sentence if the second is shown to be higher.
        lower: if it is shown to be lower.
        none: if neither is shown.
        same: if the whole interval lies within the margin, whether or not the difference is shown.
        margin: a difference that makes none; 0 for no such rule.

    Returns:
        The sentence, with the difference in numbers behind it.
    """
    if difference.n > 1 and -margin < difference.low and difference.high < margin:
        kind, text = FOUND, same
    elif difference.shown:
        kind, text = FOUND, higher if difference.mean > 0 else lower
    else:
        kind, text = NOT_SHOWN, none
    return Finding(kind, f"{text}: {difference_text(difference)}")


def difference_text(difference: Difference) -> str:
    """``+0.310 (0.250 to 0.370), higher in 10 of 10 seeds``."""
    if not difference.n:
        return "no seed has both values"
    side, count = ("higher", difference.higher) if difference.mean >= 0 else ("lower", difference.lower)
    told = _number(difference.mean, f"+{difference.form}")
    return f"{told}{_in_brackets(difference)}, {side} in {count} of {difference.n} seeds"


def row_text(row: Row) -> str:
    """``0.310 (0.250 to 0.370)``."""
    return f"{_number(row.mean, row.form)}{_in_brackets(row)}"


def interval_text(told: Difference | Row) -> str:
    """``0.250 to 0.370``; empty with fewer than two seeds."""
    return "" if told.n < 2 else f"{_number(told.low, told.form)} to {_number(told.high, told.form)}"


def _in_brackets(told: Difference | Row) -> str:
    return f" ({text})" if (text := interval_text(told)) else ""


def _number(value: float, form: str) -> str:
    """With a true minus, and without a sign where all that is shown is zero."""
    text = format(value, form)
    return text.replace("-", "−") if text.strip("+-0.%") else text.lstrip("+-")
