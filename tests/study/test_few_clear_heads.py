"""Heads that are as far above chance as the draws can tell, and too few to count: the study must say so."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from headwise.study.nulls import benjamini_hochberg
from headwise.study.settings import Settings
from headwise.study.tables import too_few_to_count

HEADS, SCORES, RANDOM = 270, 5, 1_620
SETTINGS = Settings()


def table(clear: int, p_value: float = 1 / (RANDOM + 1), above: float = 0.5) -> pd.DataFrame:
    """As many rows as a study of that many heads and scores; the first ones lie ``above`` their null."""
    rows = HEADS * SCORES
    first = np.arange(rows) < clear
    made = pd.DataFrame(
        {"layer": np.arange(rows) % HEADS // 9, "head": np.arange(rows) % 9, "primary": True, "null": 0.1}
    )
    made["value"] = np.where(first, 0.1 + above, 0.1)
    made["low"] = made["value"] - 0.01
    made["p_value"] = np.where(first, p_value, 0.5)
    made["finding"] = first & (benjamini_hochberg(made["p_value"].to_numpy()) <= SETTINGS.level)
    return made


def test_one_head_fewer_than_needed_is_told():
    note = too_few_to_count(table(16), RANDOM, SETTINGS)
    assert note == (
        "16 scores are as far above chance as 1,620 random heads can tell, and are no findings: after the correction "
        "for 1,350 tests 17 of them are needed; with --null-draws 38 it takes 3"
    )


def test_as_many_as_needed_are_findings_and_need_no_note():
    found = table(17)
    assert found["finding"].sum() == 17
    assert too_few_to_count(found, RANDOM, SETTINGS) is None


def test_what_the_note_advises_helps():
    """With that many random models the least p is that of the signs, and three heads are enough."""
    least = 1 / 10_000
    assert 38 * HEADS >= 9_999 > 37 * HEADS
    assert not table(2, least)["finding"].any()
    assert table(3, least)["finding"].sum() == 3
    assert too_few_to_count(table(2, least), 38 * HEADS, SETTINGS) == (
        "2 scores are as far above chance as 10,260 random heads can tell, and are no findings: after the correction "
        "for 1,350 tests 3 of them are needed"
    )


@pytest.mark.parametrize(("p_value", "above"), [(2 / (RANDOM + 1), 0.5), (1 / (RANDOM + 1), 0.04)])
def test_heads_that_are_not_clear_need_no_note(p_value, above):
    assert too_few_to_count(table(5, p_value, above), RANDOM, SETTINGS) is None
