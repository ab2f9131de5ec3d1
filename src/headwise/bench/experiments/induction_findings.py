"""What the numbers of `induction` allow to say."""

from __future__ import annotations

import math

from headwise.bench.experiments.experiment import FOUND, NO_CONCLUSION, NOT_SHOWN, Finding
from headwise.bench.experiments.findings import compare, difference_text, row_text
from headwise.bench.experiments.induction_task import ONE, TWO
from headwise.bench.experiments.summary import Summary

__all__ = ["TAKEN", "findings"]

# Measure of the loss without heads -> which.
TAKEN = {
    "without_best_previous": "the best previous-token head",
    "without_best_induction": "the best induction head",
    "without_best_both": "the best head of both kinds",
    "without_previous": "all previous-token heads",
    "without_induction": "all induction heads",
    "without_both": "all heads of both kinds",
}


def findings(summary: Summary) -> list[Finding]:
    """What follows and what does not."""
    return [_about_forming(summary), *_about_layers(summary), *_about_effects(summary), *_limits(summary)]


def _about_forming(summary: Summary) -> Finding:
    settings, count = summary.settings, len(summary.seeds)
    formed = {name: int((summary.values(name, "induction") >= settings.threshold).sum()) for name in (TWO, ONE)}
    two, one = (summary.row(name, "induction") for name in (TWO, ONE))
    text = (
        f"a head with an induction score of {settings.threshold} or more forms in {formed[TWO]} of {count} seeds with "
        f"two layers (best score {row_text(two)}, untrained {row_text(summary.row(TWO, 'untrained'))}) and in "
        f"{formed[ONE]} of {count} with one layer ({row_text(one)})"
    )
    return Finding(FOUND if formed[TWO] else NOT_SHOWN, text)


def _about_layers(summary: Summary) -> list[Finding]:
    settings = summary.settings
    position = math.log(settings.longest - settings.shortest + 1)
    return [
        compare(
            summary.difference("layers"),
            higher="one layer's loss where what follows is known is higher (one layer − two)",
            lower="one layer's loss where what follows is known is lower (one layer − two)",
            none="no difference between one layer and two is shown where what follows is known (one − two)",
        ),
        Finding(
            FOUND,
            f"one layer: the loss there is {row_text(summary.row(ONE, 'loss'))}; knowing how long blocks can be, "
            f"without any look at which tokens match, allows {position:.3f}; guessing costs "
            f"{math.log(settings.vocabulary):.3f}",
        ),
        compare(
            summary.difference("order"),
            higher="the previous-token score passes the threshold first, the induction score after it (steps between)",
            lower="the induction score passes the threshold before the previous-token score (steps between)",
            none="which of the two scores passes the threshold first is not shown (steps between)",
        ),
    ]


def _about_effects(summary: Summary) -> list[Finding]:
    return [
        compare(
            summary.difference(key),
            higher=f"without {heads} the loss there rises",
            lower=f"without {heads} the loss there falls",
            none=f"that the loss there changes without {heads} is not shown",
        )
        for key, heads in TAKEN.items()
    ] + [
        compare(
            summary.difference("control"),
            higher="the best head of both kinds matters more than the least of both layers (losses without them)",
            lower="the best head of both kinds matters less than the least of both layers (losses without them)",
            none="that the best head of both kinds matters more than the least of both layers is not shown",
        )
    ]


def _limits(summary: Summary) -> list[Finding]:
    joint, alone = summary.difference("joint"), summary.difference("without_best_induction")
    told = []
    if joint.shown:
        way = "less" if joint.mean < 0 else "more"
        told.append(
            f"that effects add up: taken out together, both kinds cost {way} than the sum of what each costs "
            f"({difference_text(joint)})"
        )
    else:
        told.append("whether effects of the two kinds add up: that they don't is not shown")
    if not alone.shown:
        told.append("that a head with a high score matters: the best induction head alone is not shown to")
    if summary.mean(TWO, "induction_heads") > summary.settings.heads - 0.5:
        told.append(
            "what some heads of layer 1 do that others don't: nearly all of them are induction heads, so without all "
            "of the kind the whole layer is out, and the least head of that layer, the control, is of the kind as well"
        )
    told.append(
        "when, or whether, induction heads form in language models: the rows are nothing but repetitions, and the loss "
        "is only taken where what follows is known"
    )
    told.append("that one layer fails for want of depth alone: it also has fewer weights, and one size was tried")
    return [Finding(NO_CONCLUSION, text) for text in told]
