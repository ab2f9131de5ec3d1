"""Local and global heads mixed in one layer: what they recall from near and from far, and what they cost.

A row holds pairs of a key and a value in two zones, fillers between and among them, and queries at its end. Each query
asks for the values of several keys at once, half of them from the near zone, which every window reaches from every
query, half from the far one, which none does. Which pairs there are and where they stand in their zones is drawn anew.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.bench.experiments.experiment import Comparison, Dots, Experiment, Measure, Numbers, Plane
from headwise.bench.experiments.retrieval import retrieval_loss
from headwise.bench.experiments.training import TEST, TRAINING, generator_of, seeded, train_decayed
from headwise.bench.experiments.windows_findings import findings
from headwise.bench.experiments.windows_model import Recaller, cache_bytes, visible_pairs
from headwise.bench.experiments.windows_task import LOCALS, Rows, Settings, condition, draw_rows

__all__ = ["EXPERIMENT", "run"]


def run(name: str, seed: int, settings: Settings) -> Numbers:
    """The numbers of one condition and seed."""
    local = next(local for local in LOCALS if condition(local) == name)
    model = _train(local, seed, settings)
    test = draw_rows(settings.rows, TEST, generator_of(seed, "test"), settings)
    with torch.no_grad():
        loss = _loss(model, test).item()
        near, far = ((model(test).argmax(-1) == test.answers).float().mean((0, 1)).view(2, -1).mean(1)).tolist()
    held, allocated = cache_bytes(model, test)
    return {
        "near": near,
        "far": far,
        "loss": loss,
        "held": held,
        "allocated": allocated,
        "pairs": visible_pairs(model.attention, settings.length),
    }


def _train(local: int, seed: int, settings: Settings) -> Recaller:
    with seeded(seed, "weights"):  # the same shapes for any number of local heads, so the same values
        model = Recaller(local, settings)
    generator = generator_of(seed, "training")

    def loss_of(step: int) -> Tensor:
        return _loss(model, draw_rows(settings.batch, TRAINING, generator, settings))

    train_decayed(model, loss_of, steps=settings.steps, rate=settings.rate)
    return model


def _loss(model: Recaller, rows: Rows) -> Tensor:
    return retrieval_loss(model(rows), rows.answers)


EXPERIMENT = Experiment(
    name="windows",
    question="How many heads of a layer may be local, and what does it save?",
    task="One attention layer of four heads with a linear readout; none to all of its heads see a window of 12 keys "
    "only, from the same initial values, on the same rows, at the same learning rate. A row of 32 holds eight "
    "pairs of a key and a value, half of them 1 to 11 places before the queries, half of them at least 17 places; each "
    "query asks for two of either at once.",
    held_out="one eighth of all assignments of values to keys is kept for the test. Nothing is chosen.",
    settings=Settings(),
    conditions=tuple(condition(local) for local in LOCALS),
    run=run,
    measures=(
        Measure("near", "near answers right", ".1%"),
        Measure("far", "far answers right", ".1%"),
        Measure("loss", "held-out loss (nats)"),
        Measure("held", "cache in use (bytes a row)", ",.0f"),
        Measure("allocated", "cache allocated (bytes a row)", ",.0f"),
        Measure("pairs", "visible pairs of a row", ",.0f"),
    ),
    findings=findings,
    comparisons=tuple(
        Comparison(
            f"{zone} {local}",
            f"{zone}: {condition(local)} − all global",
            (condition(0), zone),
            (condition(local), zone),
            ".1%",
        )
        for local in LOCALS[1:]
        for zone in ("near", "far")
    ),
    panels=(
        Dots("Right answers", ("near", "far")),
        Plane("Far, against the cache", "held", "far"),
        Plane("Far, against the pairs", "pairs", "far"),
        Plane("Near, against the cache", "held", "near"),
    ),
)
