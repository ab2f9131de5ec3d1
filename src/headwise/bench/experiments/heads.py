"""One head against four of the same total width, from the same initial values and on the same data in the same order.

Three tasks. ``sequence``: the bounded next-token task of two rows 0 1 2 3 4 0 1 ..., which any of the models learns by
heart. ``several``: each query of a row asks for the values of several keys, one for each slot, and all have to be told
apart. ``single``: the same rows, but a query asks for the value of one key. Rows of the last two are drawn anew at
every step; whole assignments of values to keys are held out.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from headwise.bench.experiments.experiment import Comparison, Dots, Experiment, Measure, Numbers
from headwise.bench.experiments.heads_findings import findings
from headwise.bench.experiments.heads_models import Retriever, TinyLM
from headwise.bench.experiments.heads_tasks import (
    HEADS,
    OTHER_STARTS,
    SEQUENCE,
    SEVERAL,
    SINGLE,
    TASKS,
    TRAINED_STARTS,
    Rows,
    Settings,
    condition,
    count_up,
    draw_rows,
)
from headwise.bench.experiments.retrieval import retrieval_loss
from headwise.bench.experiments.training import (
    TEST,
    TRAINING,
    VALIDATION,
    generator_of,
    parameter_count,
    seeded,
    train,
    train_decayed,
)

__all__ = ["EXPERIMENT", "run"]


def run(name: str, seed: int, settings: Settings) -> Numbers:
    """The numbers of one condition and seed."""
    task, heads = next((task, heads) for task in TASKS for heads in HEADS if condition(task, heads) == name)
    if task == SEQUENCE:
        return _run_sequence(heads, seed, settings)
    return _run_retrieval(heads, settings.slots if task == SEVERAL else 1, seed, settings)


def _run_sequence(heads: int, seed: int, settings: Settings) -> Numbers:
    """Two rows by heart, then the starts that were left out."""
    with seeded(seed, "sequence"):
        model = TinyLM(heads, settings.sequence_width)
    trained, others = count_up(TRAINED_STARTS), count_up(OTHER_STARTS)

    def loss_on(rows: Tensor) -> Tensor:
        return functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    losses = train(model, lambda step: loss_on(trained), steps=settings.sequence_steps, rate=settings.sequence_rate)
    with torch.no_grad():
        correct = (model(others[:, :-1]).argmax(-1) == others[:, 1:]).float().mean()
        return {
            "first_loss": losses[0],
            "train_loss": loss_on(trained).item(),
            "loss": loss_on(others).item(),
            "accuracy": correct.item(),
            "parameters": parameter_count(model),
        }


def _run_retrieval(heads: int, slots: int, seed: int, settings: Settings) -> Numbers:
    """Every learning rate once, each from the same initial values on the same rows; the best one is judged."""
    validation = draw_rows(settings.rows, VALIDATION, slots, generator_of(seed, slots, "validation"), settings)
    tried = []
    for rate in settings.rates:
        model, train_loss = _train_retriever(heads, slots, rate, seed, settings)
        tried.append((_judge(model, validation)[0], rate, train_loss, model))
    validation_loss, rate, train_loss, model = min(tried, key=lambda each: each[:2])
    test = draw_rows(settings.rows, TEST, slots, generator_of(seed, slots, "test"), settings)
    loss, accuracy = _judge(model, test)
    return {
        "train_loss": train_loss,
        "validation_loss": validation_loss,
        "loss": loss,
        "accuracy": accuracy,
        "rate": rate,
        "parameters": parameter_count(model),
    }


def _train_retriever(heads: int, slots: int, rate: float, seed: int, settings: Settings) -> tuple[Retriever, float]:
    """A trained model, and its loss over the last tenth of the steps."""
    with seeded(seed, slots, "weights"):  # the same shapes for any number of heads, so the same values
        model = Retriever(heads, slots, settings)
    generator = generator_of(seed, slots, "training")

    def loss_of(step: int) -> Tensor:
        return _loss(model, draw_rows(settings.batch, TRAINING, slots, generator, settings))

    return model, train_decayed(model, loss_of, steps=settings.steps, rate=rate)


def _loss(model: Retriever, rows: Rows) -> Tensor:
    return retrieval_loss(model(rows), rows.answers)


def _judge(model: Retriever, rows: Rows) -> tuple[float, float]:
    """Loss and share of right answers."""
    with torch.no_grad():
        correct = (model(rows).argmax(-1) == rows.answers).float().mean()
        return _loss(model, rows).item(), correct.item()


EXPERIMENT = Experiment(
    name="heads",
    question="What do four heads do that one head of the same width does not?",
    task="One attention layer with a linear readout, one head against four that split the same width: as many "
    "parameters, the same initial values, data in the same order, the same learning rates tried. sequence: two rows of "
    "a counting cycle are learnt by heart. several: each query asks for the values of four keys of the row, one for "
    "each slot. single: it asks for one.",
    held_out="several and single: one eighth of all assignments of values to keys is kept for choosing the learning "
    "rate and another one for the test. sequence: it memorises; the other three starts of the cycle are held out.",
    settings=Settings(),
    conditions=tuple(condition(task, heads) for task in TASKS for heads in HEADS),
    run=run,
    measures=(
        Measure("loss", "held-out loss (nats)"),
        Measure("accuracy", "held-out answers right", ".1%"),
        Measure("train_loss", "training loss (nats)"),
        Measure("first_loss", "loss before training (nats)"),
        Measure("rate", "learning rate chosen", ".3g"),
        Measure("parameters", "parameters", ",.0f"),
    ),
    findings=findings,
    comparisons=(
        Comparison(
            "sequence",
            "sequence: training loss, 4 − 1",
            (condition(SEQUENCE, 1), "train_loss"),
            (condition(SEQUENCE, 4), "train_loss"),
        ),
        *(
            Comparison(
                task, f"{task}: held-out loss, 4 − 1", (condition(task, 1), "loss"), (condition(task, 4), "loss")
            )
            for task in (SEVERAL, SINGLE)
        ),
    ),
    panels=(
        Dots(
            "Held-out loss", ("loss",), tuple(condition(task, heads) for task in (SEVERAL, SINGLE) for heads in HEADS)
        ),
        Dots("Two rows learnt by heart: training loss", ("train_loss",), tuple(condition(SEQUENCE, h) for h in HEADS)),
    ),
    cost=lambda name: 0.05 if name.startswith(SEQUENCE) else 1.0,
)
