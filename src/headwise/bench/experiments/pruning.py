"""How many heads go before the loss moves: each alone against all together, trained against random weights.

A head is removed by putting zeros in the place of what it writes. Heads are ranked by what each alone costs on
validation text and go in that order; the losses are those of test text. Beside it stand three other counts: how many
heads each alone cost less than the limit, how many may go if single costs are added up, and how many go if the heads
that stay are ranked anew after each removal.

Zeros save no work. So half the heads of each layer are also cut out of the weights, which must give the same outputs,
and both are timed in turns. These times are the only numbers that don't come from the seed: a run that is kept keeps
its own, and a run that is repeated has others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headwise.bench.experiments import sharing
from headwise.bench.experiments.characters import draw_stretches, loss_of, read_characters
from headwise.bench.experiments.experiment import Comparison, Curve, Dots, Experiment, Lines, Measure, Numbers
from headwise.bench.experiments.pruning_findings import findings
from headwise.bench.experiments.pruning_order import Rise, rank, rank_anew, rises_of, within_limit
from headwise.bench.experiments.pruning_removal import Head, removal_times, zeroed
from headwise.bench.experiments.pruning_task import RANDOM, TRAINED, Settings
from headwise.bench.experiments.training import Decoder, generator_of

__all__ = ["EXPERIMENT", "run"]


def run(name: str, seed: int, settings: Settings) -> Numbers:
    """The numbers of one condition and seed."""
    model = sharing.build(sharing.MHA, seed, settings)
    if name == TRAINED:
        sharing.train_on_text(model, seed, settings)
    ranking, test = (
        draw_stretches(text, count, settings.length, generator_of(seed, split))
        for split, text, count in (
            ("ranking", read_characters().validation, settings.ranking),
            ("test", read_characters().test, settings.rows),
        )
    )
    rise_in_ranking, rise = (partial(_rise, model, rows, _loss(model, rows)) for rows in (ranking, test))
    order = rank(model, rise_in_ranking)
    numbers = {"loss": _loss(model, test), **_effects(order, rise, settings)}
    if name == TRAINED:
        drawn = torch.randperm(len(order), generator=generator_of(seed, "order")).tolist()
        orders = {"ranked_anew": rank_anew(order, rise_in_ranking), "at_random": [order[place] for place in drawn]}
        for key, other in orders.items():
            rises = rises_of(other, rise)
            numbers |= {key: within_limit(rises, settings.limit), f"{key}_curve": rises}
        numbers |= removal_times(model, _lesser_half(order, settings), test, settings.rounds)
    return numbers


def _effects(order: Sequence[Head], rise: Rise, settings: Settings) -> dict[str, Any]:
    """Each head alone, and all in their order."""
    alone = [rise([head]) for head in order]
    summed = [sum(alone[:count]) for count in range(len(alone) + 1)]
    joint = rises_of(order, rise)
    half = len(order) // 2
    return {
        "largest": max(alone),
        "sum_half": summed[half],
        "joint_half": joint[half],
        "sum_all": summed[-1],
        "joint_all": joint[-1],
        "each_alone": sum(each <= settings.limit for each in alone),
        "by_sum": within_limit(summed, settings.limit),
        "jointly": within_limit(joint, settings.limit),
        "removed": list(range(len(joint))),
        "joint_curve": joint,
        "sum_curve": summed,
    }


def _lesser_half(order: Sequence[Head], settings: Settings) -> list[Head]:
    """Half the heads of each layer, those that go first."""
    by_layer = ([head for head in order if head[0] == layer] for layer in range(settings.layers))
    return [head for heads in by_layer for head in heads[: settings.heads // 2]]


def _loss(model: Decoder, rows: Tensor) -> float:
    with torch.no_grad():
        return loss_of(model, rows).item()


def _rise(model: Decoder, rows: Tensor, whole: float, heads: Sequence[Head]) -> float:
    with zeroed(model, heads):
        return _loss(model, rows) - whole


_COUNTS = {
    "jointly": "heads removed within the limit, ranked once",
    "ranked_anew": "heads removed within the limit, ranked anew",
    "at_random": "heads removed within the limit, at random",
    "by_sum": "heads within the limit by the sum of single costs",
    "each_alone": "heads that cost less than the limit alone",
}
_LOSSES = {
    "loss": "held-out loss (nats per character)",
    "largest": "largest rise by one head (nats)",
    "sum_half": "lesser half: sum of single rises (nats)",
    "joint_half": "lesser half together: rise (nats)",
    "sum_all": "all heads: sum of single rises (nats)",
    "joint_all": "all heads together: rise (nats)",
}

EXPERIMENT = Experiment(
    name="pruning",
    question="How many heads go before the loss moves, and what does removing them save?",
    task="Two layers of eight heads with MLPs that predict the next character of Python's help topics, trained, and "
    "the same with its random initial weights. Heads are ranked by what zeroing each alone costs. They are zeroed in "
    "that order, in an order that is ranked anew after each, and in a random one, until the loss has risen by more "
    "than 0.05 nats. Half the heads of each layer are also cut out of the weights, which gives the same outputs, and "
    "timed in turns.",
    held_out="a quarter of all topics, chosen by a hash of their text: half of them rank heads, half give the losses.",
    settings=Settings(),
    conditions=(TRAINED, RANDOM),
    run=run,
    measures=(
        *(Measure(key, title) for key, title in _LOSSES.items()),
        *(Measure(key, title, ".1f") for key, title in _COUNTS.items()),
        Measure("whole_ms", "time of the whole model (ms)", ".2f"),
        Measure("zeroed_ms", "time, half the heads zeroed (ms)", ".2f"),
        Measure("removed_ms", "time, half the heads removed (ms)", ".2f"),
        Measure("zeroed_time", "time, half zeroed / whole"),
        Measure("removed_time", "time, half removed / whole"),
        Measure("apart", "largest difference of outputs, removed − zeroed", ".1e"),
    ),
    findings=findings,
    curves=(
        Curve("joint_curve", "rise of the loss (nats)", "removed", "heads removed, ranked once"),
        Curve("sum_curve", "sum of single rises (nats)", "removed", "heads removed, ranked once"),
        Curve("ranked_anew_curve", "rise of the loss, ranked anew (nats)", "removed", "heads removed"),
        Curve("at_random_curve", "rise of the loss, at random (nats)", "removed", "heads removed"),
    ),
    comparisons=(
        Comparison("alone", "trained: together − alone", (TRAINED, "each_alone"), (TRAINED, "jointly"), ".1f"),
        Comparison("by_sum", "trained: by the sum − ranked once", (TRAINED, "jointly"), (TRAINED, "by_sum"), ".1f"),
        Comparison("again", "trained: ranked anew − once", (TRAINED, "jointly"), (TRAINED, "ranked_anew"), ".1f"),
        Comparison("chance", "trained: at random − ranked once", (TRAINED, "jointly"), (TRAINED, "at_random"), ".1f"),
        Comparison("sum_half", "trained, lesser half: together − sum", (TRAINED, "sum_half"), (TRAINED, "joint_half")),
        Comparison("sum_all", "trained, all heads: together − sum", (TRAINED, "sum_all"), (TRAINED, "joint_all")),
        Comparison("weights", "heads removed: random − trained", (TRAINED, "jointly"), (RANDOM, "jointly"), ".1f"),
    ),
    panels=(
        Lines("Heads ranked once: together, and the sum of each", ("joint_curve", "sum_curve")),
        Lines("Trained: ranked anew, and at random", ("ranked_anew_curve", "at_random_curve"), (TRAINED,)),
        Dots("Heads removed within the limit", tuple(_COUNTS)),
        Dots("Time against the whole model", ("zeroed_time", "removed_time"), (TRAINED,)),
    ),
    inputs=lambda: {"corpus": read_characters().digest},
    cost=lambda name: 2.0 if name == TRAINED else 1.0,
)
