"""When induction heads form, what they do, and what one layer makes of the same task.

A row is a few tokens, then a block of tokens that are all different, again and again until the row is full. What
follows a token of the block can only be told by looking up what followed it before: blocks and their length are drawn
anew for each row, so position tells nothing and no two rows share a block.

Symbols: B rows, L length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headwise.bench.experiments.experiment import Comparison, Curve, Dots, Experiment, Lines, Measure, Numbers
from headwise.bench.experiments.induction_findings import TAKEN, findings
from headwise.bench.experiments.induction_model import build, head_scores, without_heads
from headwise.bench.experiments.induction_task import ONE, TWO, Rows, Settings, draw_rows
from headwise.bench.experiments.training import TEST, TRAINING, VALIDATION, Decoder, generator_of, train_decayed

__all__ = ["EXPERIMENT", "run"]


def run(name: str, seed: int, settings: Settings) -> Numbers:
    """The numbers of one condition and seed."""
    layers = 2 if name == TWO else 1
    rows = {
        split: draw_rows(settings.rows, splits, generator_of(seed, split), settings)
        for split, splits in (("validation", VALIDATION), ("test", TEST))
    }
    model = build(layers, seed, settings)
    curves = _train(model, seed, rows["validation"], settings)
    numbers: dict[str, Any] = {**curves, **_results(model, rows["test"])}
    numbers["untrained"] = curves["induction_curve"][0]
    for kind in ("previous", "induction"):
        numbers[f"{kind}_at"] = _first_above(curves["step"], curves[f"{kind}_curve"], settings.threshold)
    if layers == 2:
        numbers |= _effects(model, rows["validation"], rows["test"], settings)
        each = [numbers[f"without_{kind}"] - numbers["loss"] for kind in ("previous", "induction")]
        numbers["sum_of_both"] = numbers["loss"] + sum(each)
    return numbers


def _first_above(steps: Sequence[float], scores: Sequence[float], threshold: float) -> float | None:
    """The first step that was measured with a score of the threshold or more."""
    return next((step for step, score in zip(steps, scores, strict=True) if score >= threshold), None)


def _train(model: Decoder, seed: int, validation: Rows, settings: Settings) -> dict[str, Any]:
    """Train in place; curves on validation rows."""
    generator = generator_of(seed, "training")
    every = max(1, settings.steps // settings.points)
    curves: dict[str, Any] = {"step": [], "loss_curve": [], "previous_curve": [], "induction_curve": []}

    def measure(step: int) -> None:
        if step % every:
            return
        previous, induction = head_scores(model, validation)
        told = (step, _losses(model, validation)[0].item(), previous.max().item(), induction.max().item())
        for values, value in zip(curves.values(), told, strict=True):
            values.append(value)

    def loss_of(step: int) -> Tensor:
        return _losses(model, draw_rows(settings.batch, TRAINING, generator, settings))[0]

    train_decayed(model, loss_of, steps=settings.steps, rate=settings.rate, on_step=measure)
    return curves


def _losses(model: Decoder, rows: Rows) -> tuple[Tensor, Tensor, float]:
    """The loss by row where what follows is known and where it is not, and the share of right answers where it is."""
    logits, wanted = model(rows.tokens[:, :-1]), rows.tokens[:, 1:]
    losses = functional.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")  # [B, L - 1]
    known = rows.known[:, :-1]
    right = (logits.argmax(-1) == wanted)[known].float().mean().item()
    return _mean(losses, known), _mean(losses, ~known), right


def _mean(losses: Tensor, where: Tensor) -> Tensor:
    return (losses * where).sum() / where.sum()


def _results(model: Decoder, rows: Rows) -> dict[str, float]:
    """Loss and the best scores on test rows."""
    with torch.no_grad():
        loss, first, right = _losses(model, rows)
    previous, induction = head_scores(model, rows)
    return {
        "loss": loss.item(),
        "first_loss": first.item(),
        "accuracy": right,
        "previous": previous.max().item(),
        "induction": induction.max().item(),
    }


def _effects(model: Decoder, validation: Rows, rows: Rows, settings: Settings) -> dict[str, float]:
    """The loss on test rows without heads, which are chosen on validation rows."""
    previous, induction = head_scores(model, validation)
    kinds = {
        "previous": [(0, head) for head in _ranked(previous[0])],
        "induction": [(1, head) for head in _ranked(induction[1])],
    }
    counts = {
        "previous": int((previous[0] >= settings.threshold).sum()),
        "induction": int((induction[1] >= settings.threshold).sum()),
    }
    all_of = {kind: heads[: max(1, counts[kind])] for kind, heads in kinds.items()}
    sets = {
        "without_best_previous": kinds["previous"][:1],
        "without_best_induction": kinds["induction"][:1],
        "without_best_both": kinds["previous"][:1] + kinds["induction"][:1],
        "without_last_both": kinds["previous"][-1:] + kinds["induction"][-1:],
        "without_previous": all_of["previous"],
        "without_induction": all_of["induction"],
        "without_both": all_of["previous"] + all_of["induction"],
    }
    numbers: dict[str, float] = {f"{kind}_heads": count for kind, count in counts.items()}
    for name, heads in sets.items():
        numbers[name] = _loss_without(model, heads, rows, mean=True)
    numbers["zeroed_both"] = _loss_without(model, sets["without_both"], rows, mean=False)
    return numbers


def _ranked(scores: Tensor) -> list[int]:
    """Heads, the highest score first."""
    return [int(head) for head in scores.argsort(descending=True)]


def _loss_without(model: Decoder, heads: Sequence[tuple[int, int]], rows: Rows, *, mean: bool) -> float:
    with torch.no_grad(), without_heads(model, heads, mean=mean):
        return _losses(model, rows)[0].item()


_MEASURES = {
    "loss": "loss where what follows is known (nats)",
    "first_loss": "loss elsewhere (nats)",
    "previous": "best previous-token score",
    "induction": "best induction score",
    "untrained": "best induction score, untrained",
    "sum_of_both": "loss if both kinds' effects added up",
    "zeroed_both": "loss without both kinds, by zeros",
    "without_last_both": "loss without each layer's least head",
} | {key: f"loss without {heads}" for key, heads in TAKEN.items()}

EXPERIMENT = Experiment(
    name="induction",
    question="When do induction heads form, what do they do, and does one layer have them?",
    task="Models of attention layers only, with rotary positions. A row is a few tokens, then a block of different "
    "tokens again and again; blocks, their length and their start are drawn anew. The loss is taken where the token "
    "has stood in the row before, so that what follows is known. Heads are read by the study's relations Offset(1) and "
    "Match(1); a head is taken out by putting its mean over all test rows and positions in its place.",
    held_out="rows with one eighth of all blocks are kept for curves and for choosing heads, rows with another eighth "
    "for losses, scores and effects.",
    settings=Settings(),
    conditions=(TWO, ONE),
    run=run,
    measures=(
        *(Measure(key, title) for key, title in _MEASURES.items()),
        Measure("accuracy", "right where what follows is known", ".1%"),
        Measure("previous_heads", "previous-token heads of layer 0", ".1f"),
        Measure("induction_heads", "induction heads of layer 1", ".1f"),
        Measure("previous_at", "step: previous-token score passes", ".0f"),
        Measure("induction_at", "step: induction score passes", ".0f"),
    ),
    findings=findings,
    curves=(
        Curve("loss_curve", "loss where what follows is known (nats)", "step", "step"),
        Curve("previous_curve", "best previous-token score", "step", "step"),
        Curve("induction_curve", "best induction score", "step", "step"),
    ),
    comparisons=(
        Comparison("layers", "loss, one layer − two", (TWO, "loss"), (ONE, "loss")),
        Comparison(
            "order", "steps from previous-token to induction", (TWO, "previous_at"), (TWO, "induction_at"), ".1f"
        ),
        *(Comparison(key, f"without {heads}", (TWO, "loss"), (TWO, key)) for key, heads in TAKEN.items()),
        Comparison("control", "best of both − least of both", (TWO, "without_last_both"), (TWO, "without_best_both")),
        Comparison("joint", "both kinds − sum of each", (TWO, "sum_of_both"), (TWO, "without_both")),
    ),
    panels=(
        Lines("Loss over training", ("loss_curve",)),
        Lines("Scores over training, two layers", ("previous_curve", "induction_curve"), (TWO,)),
        Dots(
            "Two layers: loss without heads",
            ("loss", "without_last_both", *TAKEN),
            (TWO,),
        ),
        Lines("Induction score over training", ("induction_curve",)),
    ),
    cost=lambda name: 1.0 if name == TWO else 0.5,
)
