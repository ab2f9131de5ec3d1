"""An experiment that is made of a few draws, for what the framework does with any."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headwise.bench.experiments.experiment import (
    Comparison,
    Curve,
    Dots,
    Experiment,
    Finding,
    Lines,
    Measure,
    Numbers,
    Plane,
)
from headwise.bench.experiments.findings import compare
from headwise.bench.experiments.summary import Summary
from headwise.bench.experiments.training import seed_of

CALLS: list[tuple[str, int]] = []


@dataclass(frozen=True)
class Settings:
    shift: float = 1.0


def run(condition: str, seed: int, settings: Settings) -> Numbers:
    CALLS.append((condition, seed))
    draw = float(np.random.default_rng(seed_of(seed, "shared")).normal())
    own = float(np.random.default_rng(seed_of(seed, condition)).normal())
    loss = draw + 0.1 * own + (settings.shift if condition == "b" else 0.0)
    numbers: Numbers = {"loss": loss, "step": [0.0, 3.0], "curve": [loss, loss / 2]}
    if condition == "b":
        numbers["bytes"] = float("nan") if seed == 1 else 64.0
    return numbers


def findings(summary: Summary) -> list[Finding]:
    return [compare(summary.difference("shift"), higher="b is higher", lower="b is lower", none="none is shown")]


TOY = Experiment(
    name="toy",
    question="Is b higher than a?",
    task="Two draws.",
    held_out="nothing.",
    settings=Settings(),
    conditions=("a", "b"),
    run=run,
    measures=(Measure("loss", "loss (nats)"), Measure("bytes", "cache [bytes]", ".0f")),
    findings=findings,
    curves=(Curve("curve", "loss (nats)", "step", "step"),),
    comparisons=(Comparison("shift", "b − a", ("a", "loss"), ("b", "loss")),),
    panels=(Dots("Loss", ("loss",)), Lines("Training", ("curve",)), Plane("Both", "bytes", "loss", log_x=True)),
    inputs=lambda: {"corpus": "digest"},
)
