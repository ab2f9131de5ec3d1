"""The sentences at the top say what the tables hold, in plain words, and no more than that."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from headwise.report import summary
from headwise.report.folder import read_study
from headwise.report.words import SCORES
from tests.report.made_study import Made, make_study


@pytest.fixture(scope="module")
def study(made):
    return read_study(made())


def text_of(study):
    return " ".join(summary.sentences(study))


def with_effects(study, **columns):
    return dataclasses.replace(study, effects=study.effects.assign(**columns))


def test_counts_are_those_of_the_table(study):
    findings = study.scores[study.scores["finding"]]
    counts = findings.groupby("score").size()
    some = len(findings[["layer", "head"]].drop_duplicates())
    first = summary.sentences(study)[0]
    assert first.startswith(f"{some} of 270 heads do something beyond chance: ")
    assert f"{counts['induction']} induction heads" in first
    assert f"and {counts['delimiter']} delimiter heads" in first
    assert "Some heads do more than one of these." in first


def test_the_clearest_head_stands_furthest_above_its_null(study):
    rows = study.scores[(study.scores["score"] == "induction") & study.scores["primary"]]
    best = rows.loc[(rows["value"] - rows["null"]).idxmax()]
    expected = (
        f"The clearest induction head is L{best['layer']}.H{best['head']}: {best['value']:.2f} of its attention, "
        f"where chance gives {best['null']:.3f}. Beyond chance isn't yet much: "
    )
    strong = (rows[rows["finding"]]["value"] > 0.5).sum()
    expected += f"{summary.count_word(strong)} of the {rows['finding'].sum()} put more than half there."
    assert expected in summary.sentences(study)


def test_effects_of_the_largest_set_zeroed_and_by_the_mean(study):
    rows = study.effects[(study.effects["role"] == "leader") & (study.effects["task"] == "repeated")]
    rows = rows[(rows["score"] == "induction") & (rows["heads"].map(len) == 6)].set_index("mode")
    zeroed, mean = [text for text in summary.sentences(study) if text.startswith(("Zeroing", "Replacing"))]
    assert zeroed == (
        "Zeroing the six leading induction heads lifts the loss on the second copy of repeated random tokens from 3.02 "
        f"to {rows.loc['zero', 'loss']:.1f} nats; with six random heads of the same layers it is "
        f"{3.02 + rows.loc['zero', 'control_delta']:.2f}."
    )
    assert mean.startswith("Replacing the same heads by their mean output instead lifts the loss from 3.02 to ")


def test_heads_that_matter_no_more_than_random_ones_are_called_so(study):
    text = text_of(with_effects(study, excess_low=-0.1))
    assert text.count("so these heads can't be told from random ones") == 2


def test_leaders_of_other_scores_without_an_effect_are_named(study):
    effects = study.effects
    quiet = effects["score"].isin(["previous", "duplicate"])
    told = summary.sentences(with_effects(study, excess_low=effects["excess_low"].where(~quiet, -0.1)))[-1]
    assert told == (
        "Without the six leading previous-token heads or the six leading duplicate-token heads the loss rises no more "
        "than without random heads of the same layers."
    )
    sure = with_effects(study, excess_low=effects["excess_low"].where(effects["role"] == "control", 0.1))
    assert "rises no more than" not in text_of(sure)


def test_a_loss_that_falls_is_not_called_a_rise(study):
    text = text_of(with_effects(study, loss=study.effects["baseline"] - 0.5))
    assert "lowers the loss on" in text
    assert "lifts" not in text


def test_missing_controls_are_said(study):
    text = text_of(with_effects(study, control_delta=np.nan, excess_low=np.nan))
    assert "no random heads of the same layers were measured beside them" in text


def test_nothing_found(tmp_path):
    layers = [{"num_heads": 4, "num_kv_heads": 4, "head_dim": 8, "window": None}] * 2
    study = read_study(make_study(tmp_path / "none", Made(layers=layers, findings=False)))
    texts = summary.sentences(study)
    assert texts[0] == "None of the 8 heads does any of the five things tested here more than chance explains."
    assert texts[1].startswith("The closest is L")
    assert "where chance gives" in texts[1]
    assert texts[2:] == ["What breaks without these heads was not measured."]


def test_one_head_and_one_score_are_counted_as_one(study):
    rows = study.scores[(study.scores["score"] == "previous") & study.scores["primary"]].copy()
    rows["finding"] = False
    rows.loc[rows["value"].idxmax(), "finding"] = True
    one = dataclasses.replace(study, scores=rows, effects=study.effects.iloc[:0])
    assert summary.sentences(one)[0] == "1 of 270 heads do something beyond chance: 1 previous-token head."


def test_scores_without_findings_are_named(study):
    quiet = study.scores.assign(finding=study.scores["finding"] & (study.scores["score"] == "first"))
    text = text_of(dataclasses.replace(study, scores=quiet))
    assert "No induction heads, previous-token heads, duplicate-token heads or delimiter heads survive" in text


def test_nothing_tested(study):
    untested = dataclasses.replace(study, scores=study.scores.assign(q_value=np.nan))
    assert "no score was tested against chance" in text_of(untested)


def test_resting_heads_lead_only_when_they_stand_alone(study):
    without = dataclasses.replace(study, effects=study.effects.iloc[:0])
    assert summary.lead_score(without) != "first"
    alone = study.scores.assign(finding=study.scores["finding"] & (study.scores["score"] == "first"))
    assert summary.lead_score(dataclasses.replace(without, scores=alone)) == "first"


def test_failed_checks_come_before_notes(study):
    checks = [{"name": "logits", "passed": False, "detail": "off by 0.3"}, {"name": "loss", "passed": True}]
    manifest = study.manifest | {"checks": checks, "notes": ["a note"]}
    told = summary.alerts(dataclasses.replace(study, manifest=manifest))
    assert told == ["1 of 2 checks failed. logits: off by 0.3", "a note"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.9, "0.90"), (0.0213, "0.021"), (0.00051, "0.00051"), (11.46, "11.5"), (312.4, "312"), (0.0, "0.00")]
    + [(-0.25, "−0.25"), (math.nan, "–"), (None, "–"), (0.00004, "4e−05")],
)  # fmt: skip
def test_numbers(value, expected):
    assert summary.number(value) == expected


def test_every_score_of_a_study_has_words():
    from headwise.study.scores import DESCRIPTIVE, SCORE_NAMES

    assert {*SCORE_NAMES, *DESCRIPTIVE} <= set(SCORES)
