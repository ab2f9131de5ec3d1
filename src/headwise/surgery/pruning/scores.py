"""How much each head, or KV group, of a model matters: five answers, from the cheapest to the dearest.

Symbols: D documents, N rows, B batch, L length, H query heads, U units of a layer (heads or groups), Dv value head dim,
E model width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from headwise.errors import UserError
from headwise.intervals import bootstrap_interval
from headwise.models.checkpoint import Checkpoint
from headwise.models.corpus import Rows
from headwise.models.importance import gate_gradients
from headwise.models.losses import row_losses
from headwise.models.prefix import Prefix
from headwise.models.probes import HeadCall
from headwise.models.questions import ask_rows, by_document, check_length, check_objective
from headwise.models.weights import heads_of
from headwise.progress import Progress, Silent
from headwise.surgery.pruning.units import Unit, check_unit, units_of

__all__ = ["SCORES", "UnitScores", "ablated_losses", "ablation_cost", "check_score", "score_units"]

SCORES = ("contribution", "first-order", "ablation", "magnitude", "random")
_MEASURED = ("contribution", "first-order", "ablation")
_BATCH = 4


@dataclass(frozen=True)
class UnitScores:
    """What each unit of each layer is worth; the least is removed first.

    Attributes:
        score: one of :data:`SCORES`.
        unit: ``head`` or ``group``.
        values: float64 ``[layers, U]``; NaN where a layer has fewer units.
        low: lower bound of the 95 % interval over documents; None where the score is no mean over documents.
        high: its upper bound.
    """

    score: str
    unit: Unit
    values: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def check_score(checkpoint: Checkpoint, score: str, rows: Rows | None) -> None:
    """Refuse what can't be scored, before any work.

    Raises:
        UserError: an unknown score, no rows or no loss for one that needs them, or rows too long for the model.
    """
    if score not in SCORES:
        raise UserError(f"prune: expected a score out of {', '.join(SCORES)}, got {score!r}")
    if score in _MEASURED and rows is None:
        raise UserError(f"prune: expected rows of text for the score {score}, got none; give some, or take magnitude")
    if rows is not None:
        check_length(checkpoint, rows.tokens.shape[1])
    if score in ("first-order", "ablation"):
        if checkpoint.objective is None:
            raise UserError(
                f"{checkpoint.name}: has no language head, so there is no loss for the score {score}; take "
                "contribution or magnitude"
            )
        check_objective(checkpoint)


def score_units(
    checkpoint: Checkpoint,
    rows: Rows | None = None,
    *,
    score: str = "first-order",
    unit: Unit = "group",
    seed: int = 0,
    progress: Progress | None = None,
) -> UnitScores:
    """Score every head or KV group.

    ``contribution``: mean over positions of ‖what the unit adds to its layer's output‖² (a group: its heads' sum).
    ``first-order``: |∂loss/∂gate| of a gate on the unit, per row (Michel et al. 2019); nats.
    ``ablation``: the loss with the unit's outputs zeroed less the loss without that; nats, exact, dear.
    ``magnitude``: ‖W_O W_V‖_F, over a group's heads the root of the sum of squares. Unlike the norms of the two factors
    it doesn't depend on the basis of the head, which is free. Biases and queries and keys stay out.
    ``random``: uniform numbers drawn by ``seed``: what a score has to beat.

    Args:
        checkpoint: the model.
        rows: calibration text, for the first three.
        score: which.
        unit: ``head`` or ``group``.
        seed: of the draw, of masked tokens and of the resampling for intervals.
        progress: is told what goes on.

    Raises:
        UserError: see :func:`check_score`.
    """
    check_unit(unit)
    check_score(checkpoint, score, rows)
    if rows is None or score not in _MEASURED:
        values = _magnitude(checkpoint, unit) if score == "magnitude" else _random(checkpoint, unit, seed)
        return UnitScores(score, unit, values)
    progress = progress or Silent()
    if score == "ablation":
        documents = _ablation(checkpoint, rows, unit, seed, progress)
    else:
        progress.plan(rows.tokens.numel() * (1 if score == "contribution" else 3))
        progress.stage(f"scoring {unit}s by {score}")
        measure = _contribution if score == "contribution" else _first_order
        documents = by_document(measure(checkpoint, rows, unit, seed, progress), rows.units)
    low, high = bootstrap_interval(documents, seed)
    return UnitScores(score, unit, documents.mean(0), low, high)


def _table(checkpoint: Checkpoint, unit: Unit, rows: int | None = None) -> np.ndarray:
    """NaN, ``[layers, U]`` or ``[N, layers, U]``."""
    size = (checkpoint.num_layers, max(len(units_of(layout, unit)) for layout in checkpoint.layouts))
    return np.full(size if rows is None else (rows, *size), np.nan)


def _contribution(checkpoint: Checkpoint, rows: Rows, unit: Unit, _: int, progress: Progress) -> np.ndarray:
    result = _table(checkpoint, unit, len(rows))
    outputs = [heads_of(checkpoint, layer).output for layer in range(checkpoint.num_layers)]
    for start in range(0, len(rows), _BATCH):
        stop = min(start + _BATCH, len(rows))

        def add(call: HeadCall, start: int = start, stop: int = stop) -> None:
            for place, heads in enumerate(units_of(checkpoint.layouts[call.layer], unit)):
                added = torch.einsum("bhld,hed->ble", call.output[:, heads], outputs[call.layer][heads])
                result[start:stop, call.layer, place] = added.float().square().sum(-1).mean(1).cpu().numpy()

        tokens = rows.tokens[start:stop]
        with torch.inference_mode(), checkpoint.observe(add):
            checkpoint.body(tokens)
        progress.advance(tokens.numel())
    return result


def _first_order(checkpoint: Checkpoint, rows: Rows, unit: Unit, seed: int, progress: Progress) -> np.ndarray:
    parts = []
    for question in ask_rows(checkpoint, rows, batch=_BATCH, seed=seed):
        parts.append(gate_gradients(checkpoint, [replace(question, units=tuple(range(len(question.units))))]))
        progress.advance(3 * question.inputs.numel())
    gradients = np.concatenate(parts)  # [N, layers, H]
    result = _table(checkpoint, unit, len(rows))
    for layer, layout in enumerate(checkpoint.layouts):
        for place, heads in enumerate(units_of(layout, unit)):
            result[:, layer, place] = np.abs(gradients[:, layer, heads].sum(-1))
    return result


def _ablation(checkpoint: Checkpoint, rows: Rows, unit: Unit, seed: int, progress: Progress) -> np.ndarray:
    places = [
        (layer, place, heads)
        for layer, layout in enumerate(checkpoint.layouts)
        for place, heads in enumerate(units_of(layout, unit))
    ]
    conditions = [[(layer, head) for head in heads] for layer, _, heads in places]
    progress.plan(ablation_cost(checkpoint, rows, [[], *conditions]))
    progress.stage(f"taking away {len(conditions)} {unit}s one by one")
    losses = ablated_losses(checkpoint, rows, [[], *conditions], seed=seed, progress=progress)
    result = _table(checkpoint, unit, losses.shape[1])
    for (layer, place, _), loss in zip(places, losses[1:], strict=True):
        result[:, layer, place] = loss - losses[0]
    return result


def _magnitude(checkpoint: Checkpoint, unit: Unit) -> np.ndarray:
    result = _table(checkpoint, unit)
    for layer, layout in enumerate(checkpoint.layouts):
        weights = heads_of(checkpoint, layer).to(torch.float64)
        value = weights.value.repeat_interleave(weights.group_size, 0)
        # ‖A B‖² = tr(AᵀA BBᵀ): two squares of the head's width, and no [E, E].
        grams = weights.output.transpose(1, 2) @ weights.output, value @ value.transpose(1, 2)
        squares = (grams[0] * grams[1]).sum((1, 2)).clamp(min=0)
        for place, heads in enumerate(units_of(layout, unit)):
            result[layer, place] = float(squares[heads].sum().sqrt())
    return result


def _random(checkpoint: Checkpoint, unit: Unit, seed: int) -> np.ndarray:
    result = _table(checkpoint, unit)
    generator = np.random.default_rng(seed)
    for layer, layout in enumerate(checkpoint.layouts):
        count = len(units_of(layout, unit))
        result[layer, :count] = generator.random(count)
    return result


Condition = Sequence[tuple[int, int]]


def ablation_cost(checkpoint: Checkpoint, rows: Rows, conditions: Sequence[Condition]) -> float:
    """What :func:`ablated_losses` costs, in tokens of one forward pass."""
    shares = [1 - min((layer for layer, _ in heads), default=0) / checkpoint.num_layers for heads in conditions]
    return rows.tokens.numel() * (1 + sum(shares))


def ablated_losses(
    checkpoint: Checkpoint,
    rows: Rows,
    conditions: Sequence[Condition],
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> np.ndarray:
    """Losses with sets of heads zeroed, each from its first changed layer on.

    Args:
        checkpoint: the model.
        rows: what it is asked.
        conditions: sets of (layer, head); the empty set is the intact model.
        seed: which tokens are masked in a masked language model.
        progress: is told what is done, in the tokens of :func:`ablation_cost`.

    Returns:
        Mean loss in nats by condition and document, float64 ``[conditions, D]``.
    """
    advance: Callable[[float], None] = (progress or Silent()).advance
    firsts = [min((layer for layer, _ in heads), default=0) for heads in conditions]
    result = np.full((len(rows), len(conditions)), np.nan)
    for question in ask_rows(checkpoint, rows, batch=_BATCH, seed=seed):
        prefix = Prefix(checkpoint, question.inputs)
        advance(question.inputs.numel())
        for index, (heads, first) in enumerate(zip(conditions, firsts, strict=True)):
            with torch.inference_mode(), prefix.before(first), checkpoint.ablate(heads):
                result[list(question.units), index] = row_losses(checkpoint, question).double().cpu().numpy()
            advance(question.inputs.numel() * (1 - first / checkpoint.num_layers))
    return by_document(result, rows.units).T
