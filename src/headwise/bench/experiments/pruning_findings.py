"""What the numbers of `pruning` allow to say."""

from __future__ import annotations

from headwise.bench.experiments.experiment import FOUND, NO_CONCLUSION, NOT_SHOWN, Finding
from headwise.bench.experiments.findings import compare, difference_text, row_text
from headwise.bench.experiments.pruning_task import RANDOM, TRAINED
from headwise.bench.experiments.summary import Summary

__all__ = ["findings"]


def findings(summary: Summary) -> list[Finding]:
    """What follows and what does not."""
    return [
        _about_learning(summary),
        *_about_counts(summary),
        *_about_sums(summary),
        _about_weights(summary),
        _about_times(summary),
        *_limits(summary),
    ]


def _about_learning(summary: Summary) -> Finding:
    trained, random = (summary.row(name, "loss") for name in (TRAINED, RANDOM))
    learnt = trained.high < random.low
    text = f"held-out loss {row_text(trained)} with trained weights, {row_text(random)} with random ones"
    return Finding(FOUND if learnt else NOT_SHOWN, text if learnt else f"that anything was learnt: {text}")


def _about_counts(summary: Summary) -> list[Finding]:
    limit = summary.settings.limit
    trained = {key: summary.row(TRAINED, key) for key in ("jointly", "each_alone")}
    counts = f"{row_text(trained['jointly'])} together, {row_text(trained['each_alone'])} alone"
    return [
        compare(
            summary.difference("alone"),
            higher=f"trained: more heads go together than cost less than {limit} nats alone ({counts})",
            lower=f"trained: fewer heads go together than cost less than {limit} nats alone ({counts})",
            none=f"trained: that more or fewer heads go together than cost less than {limit} nats alone is not shown "
            f"({counts})",
        ),
        *(
            compare(
                summary.difference(key),
                higher=f"trained: {what} lets more heads go than ranking them once",
                lower=f"trained: {what} lets fewer heads go than ranking them once",
                none=f"trained: that {what} lets more or fewer heads go than ranking them once is not shown",
            )
            for key, what in (("by_sum", "adding up single costs"), ("again", "ranking anew"), ("chance", "chance"))
        ),
    ]


def _about_sums(summary: Summary) -> list[Finding]:
    return [
        compare(
            summary.difference(f"sum_{part}"),
            higher=f"trained: {told} heads together cost more than the sum of each alone",
            lower=f"trained: {told} heads together cost less than the sum of each alone",
            none=f"trained: that {told} heads together cost more or less than the sum of each alone is not shown",
        )
        for part, told in (("half", "the lesser half of all"), ("all", "all"))
    ]


def _about_weights(summary: Summary) -> Finding:
    random = f"of {summary.settings.layers * summary.settings.heads}"
    return compare(
        summary.difference("weights"),
        higher=f"more heads {random} go from random weights than from trained ones (random − trained)",
        lower=f"fewer heads {random} go from random weights than from trained ones (random − trained)",
        none=f"no difference in how many heads {random} go is shown between random and trained weights",
    )


def _about_times(summary: Summary) -> Finding:
    """By intervals: a comparison would let times, which no seed repeats, into the q-values of all others."""
    removed, masked = (summary.row(TRAINED, f"{name}_time") for name in ("removed", "zeroed"))
    if removed.high < masked.low:
        kind, text = FOUND, "half the heads of each layer take less time cut out than zeroed"
    elif removed.low > masked.high:
        kind, text = FOUND, "half the heads of each layer take more time cut out than zeroed"
    else:
        kind, text = NOT_SHOWN, "that half the heads of each layer take less time cut out than zeroed is not shown"
    return Finding(
        kind,
        f"{text}, with the same outputs: {row_text(removed)} against {row_text(masked)} of the whole model's time, on "
        "the machine that ran it",
    )


def _limits(summary: Summary) -> list[Finding]:
    told = []
    alone = summary.difference("alone")
    if alone.shown and alone.mean < 0:
        told.append(
            "how many heads can go, from what each costs alone: together fewer go within the same limit "
            f"({difference_text(alone)})"
        )
    weights = summary.difference("weights")
    if weights.shown and weights.mean > 0:
        told.append(
            "that heads which can go are heads which a model doesn't need: from random weights, which use nothing, "
            "more go"
        )
    told += [
        "how many heads of a language model can go: this one has few, is small, and was trained shortly",
        "that the loss stays where it is after more training or compensation: nothing was fitted again",
        "how long other sizes or machines take: the attention of so small a model is a small part of its time",
    ]
    return [Finding(NO_CONCLUSION, text) for text in told]
