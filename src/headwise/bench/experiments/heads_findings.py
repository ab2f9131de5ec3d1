"""What the numbers of `heads` allow to say."""

from __future__ import annotations

from headwise.bench.experiments.experiment import FOUND, NO_CONCLUSION, NOT_SHOWN, Finding
from headwise.bench.experiments.findings import compare, row_text
from headwise.bench.experiments.heads_tasks import HEADS, SEQUENCE, SEVERAL, SINGLE, condition, unordered_loss
from headwise.bench.experiments.summary import Summary

__all__ = ["findings"]


def findings(summary: Summary) -> list[Finding]:
    """What follows and what does not."""
    return [*_about_sequence(summary), *_about_retrieval(summary), *_limits(summary)]


def _about_sequence(summary: Summary) -> list[Finding]:
    one, four = (condition(SEQUENCE, heads) for heads in HEADS)
    learnt = all(summary.mean(each, "train_loss") < summary.mean(each, "first_loss") / 2 for each in (one, four))
    losses = " and ".join(
        f"{summary.mean(each, 'first_loss'):.3f} to {row_text(summary.row(each, 'train_loss'))}" for each in (one, four)
    )
    told = "both learn the two rows by heart" if learnt else "the two rows are not learnt by heart in so few steps"
    return [
        Finding(FOUND if learnt else NOT_SHOWN, f"sequence: {told}: training loss {losses} (one head, four heads)"),
        compare(
            summary.difference("sequence"),
            higher="sequence: four heads memorise more slowly (training loss after the last step, four − one)",
            lower="sequence: four heads memorise faster (training loss after the last step, four − one)",
            none="sequence: that either memorises faster is not shown (training loss after the last step, four − one)",
            same="sequence: both memorise alike (training loss after the last step, four − one)",
            margin=summary.settings.margin,
        ),
    ]


def _about_retrieval(summary: Summary) -> list[Finding]:
    told = [
        compare(
            summary.difference(task),
            higher=f"{task}: four heads have the higher held-out loss (four − one)",
            lower=f"{task}: four heads have the lower held-out loss (four − one)",
            none=f"{task}: no difference of held-out losses is shown (four − one)",
            same=f"{task}: held-out losses differ by less than {summary.settings.margin} nats (four − one)",
            margin=summary.settings.margin,
        )
        for task in (SEVERAL, SINGLE)
    ]
    floor, row = unordered_loss(summary.settings), summary.row(condition(SEVERAL, 1), "loss")
    beats = row.high < floor
    text = (
        "one head tells more than which values are asked for"
        if beats
        else "one head is not shown to tell more than which values are asked for, without their slots"
    )
    reason = f"several: {text}: its loss is {row_text(row)}, and such a reader's is {floor:.3f}"
    return [told[0], Finding(FOUND if beats else NOT_SHOWN, reason), told[1]]


def _limits(summary: Summary) -> list[Finding]:
    several, single = summary.difference(SEVERAL), summary.difference(SINGLE)
    margin = summary.settings.margin
    told = [
        "from the sequence nothing about heads in general: two rows are memorised, with no independent data to judge"
    ]
    if several.shown and several.mean < 0:
        if single.shown and single.mean < -margin:
            told.append("that several retrievals are the reason: four heads are ahead on a single one as well")
        else:
            told.append(
                "that four heads are better in general: with a single retrieval they are not shown to be ahead by more "
                f"than {margin} nats"
            )
    else:
        told.append("that more heads help where several things are retrieved: four are not shown to be ahead")
    told.append(
        "anything about deeper models: here is one layer with a linear readout, and a second layer or an MLP may make "
        "up for a missing head"
    )
    told.append("that a head has a role: no head was read or taken out")
    return [Finding(NO_CONCLUSION, text) for text in told]
