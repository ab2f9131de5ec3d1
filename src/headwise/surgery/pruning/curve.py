"""How the loss grows with the heads removed, and how far that is from the sum of what each head does alone.

Heads stand in for each other: the second of a pair matters only once the first is gone. Scores of single heads can't
see that; the curve does. Heads are zeroed here, not compensated for.

Symbols: D documents, U units of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headwise.errors import UserError
from headwise.intervals import bootstrap_interval
from headwise.models.checkpoint import Checkpoint
from headwise.models.corpus import Rows
from headwise.models.questions import check_objective
from headwise.progress import Progress, Silent
from headwise.surgery.pruning.scores import UnitScores, ablated_losses, ablation_cost, check_score, score_units
from headwise.surgery.pruning.units import Unit, check_unit, choose, possible_counts, units_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ORDERS", "Curve", "prune_curve"]

ORDERS = ("fixed", "greedy", "random")
# The heads gone at each point of an order: layer -> heads.
_Gone = dict[int, list[int]]
_Heads = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Curve:
    """Losses against heads removed, on documents.

    Attributes:
        score: what orders the heads.
        unit: ``head`` or ``group``.
        baseline: mean loss of the intact model in nats.
        table: a row for each order and point: ``order``, ``removed`` (query heads), ``loss``, ``delta`` (rise of the
            loss, with ``low`` and ``high``), ``singles`` (sum of the rises when each removed unit goes alone) and
            ``interaction`` (delta less singles, with ``interaction_low`` and ``interaction_high``). Losses are means
            over documents in nats; the 95 % intervals are paired, document by document. Singles of random heads are not
            measured: NaN.
        documents: fingerprints of the documents.
        heads: what was removed at the last point, by order, as pairs (layer, head).
    """

    score: str
    unit: Unit
    baseline: float
    table: pd.DataFrame
    documents: tuple[str, ...]
    heads: dict[str, _Heads]

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain numbers for JSON; NaN becomes None."""
        rows = self.table.to_dict(orient="records")
        return {
            "score": self.score,
            "unit": self.unit,
            "baseline": self.baseline,
            "points": [{key: None if value != value else value for key, value in row.items()} for row in rows],
            "documents": list(self.documents),
            "heads": {order: [list(head) for head in heads] for order, heads in self.heads.items()},
        }


def prune_curve(
    checkpoint: Checkpoint,
    rows: Rows,
    *,
    calibration: Rows | None = None,
    score: str = "first-order",
    unit: Unit = "group",
    points: int = 8,
    most: float = 1 / 3,
    orders: Sequence[str] = ORDERS,
    scores: UnitScores | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Curve:
    """Remove more and more heads and measure the loss.

    ``fixed`` goes by the scores of the intact model; ``greedy`` scores anew after every point what is left; ``random``
    is what both have to beat. Each point costs a pass over ``rows`` and each unit alone about half of one; greedy costs
    a scoring for every point: with ``ablation`` that is dear (half a pass over ``calibration`` for every unit).

    Args:
        checkpoint: the model; it stays as it is.
        rows: held-out text to measure losses on.
        calibration: other text, for scores that need it.
        score: what orders the heads.
        unit: what goes at once.
        points: how many numbers of heads, evenly spaced as far as units allow.
        most: the share of all heads that is gone at the last one.
        orders: some of :data:`ORDERS`.
        scores: those of the intact model, if they are known already, in the place of ``score`` and ``unit``.
        seed: of random orders, of masked tokens and of the resampling for intervals.
        progress: is told what goes on.

    Raises:
        UserError: no loss to measure, no calibration for a score that needs it, or nothing that can be removed.
    """
    score, unit = (score, unit) if scores is None else (scores.score, scores.unit)
    check_unit(unit)
    check_objective(checkpoint)
    check_score(checkpoint, score, calibration)
    if unknown := set(orders) - set(ORDERS):
        raise UserError(f"prune_curve: expected orders out of {', '.join(ORDERS)}, got {', '.join(sorted(unknown))}")
    progress = progress or Silent()
    counts = _counts(checkpoint, unit, points, most)
    if scores is None:
        scores = score_units(checkpoint, calibration, score=score, unit=unit, seed=seed, progress=progress)
    paths: dict[str, list[_Gone]] = {}
    for order in orders:
        if order == "greedy":
            paths[order] = _greedy(checkpoint, scores, counts, calibration, seed, progress)
        else:
            own = scores if order == "fixed" else score_units(checkpoint, score="random", unit=unit, seed=seed)
            paths[order] = [choose(checkpoint.layouts, own.values, unit, count, uniform=False) for count in counts]
    return _measure(checkpoint, rows, scores, paths, seed, progress)


def _counts(checkpoint: Checkpoint, unit: Unit, points: int, most: float) -> list[int]:
    """Numbers of heads to remove, ascending."""
    step, limit = possible_counts(checkpoint.layouts, unit, uniform=False)
    limit = min(limit, int(most * sum(layout.num_heads for layout in checkpoint.layouts) + 1e-9)) // step
    if points < 1 or limit < 1:
        raise UserError(
            f"prune_curve: expected at least a point with {step} heads removed, got {points} points up to a share of "
            f"{most:g}"
        )
    return [step * times for times in sorted({max(1, round(limit * place / points)) for place in range(1, points + 1)})]


def _greedy(
    checkpoint: Checkpoint,
    scores: UnitScores,
    counts: Sequence[int],
    calibration: Rows | None,
    seed: int,
    progress: Progress,
) -> list[_Gone]:
    """What is gone at every count if what is left is scored anew each time."""
    gone: _Gone = {}
    path, before, values = [], 0, scores.values
    for count in counts:
        if gone:
            with checkpoint.ablate(_pairs(gone)):
                values = score_units(
                    checkpoint, calibration, score=scores.score, unit=scores.unit, seed=seed, progress=progress
                ).values
        taken = choose(checkpoint.layouts, values, scores.unit, count - before, uniform=False, gone=gone)
        layers = sorted({*gone, *taken})
        gone = {layer: sorted([*gone.get(layer, []), *taken.get(layer, [])]) for layer in layers}
        path.append(gone)
        before = count
    return path


def _pairs(gone: Mapping[int, Sequence[int]]) -> _Heads:
    return tuple((layer, head) for layer, heads in sorted(gone.items()) for head in heads)


def _units_in(checkpoint: Checkpoint, unit: Unit, heads: _Heads) -> list[_Heads]:
    """The units that a set of heads is made of."""
    chosen = set(heads)
    every = [
        tuple((layer, head) for head in members)
        for layer, layout in enumerate(checkpoint.layouts)
        for members in units_of(layout, unit)
    ]
    return [members for members in every if chosen.issuperset(members)]


def _measure(
    checkpoint: Checkpoint,
    rows: Rows,
    scores: UnitScores,
    paths: Mapping[str, Sequence[_Gone]],
    seed: int,
    progress: Progress,
) -> Curve:
    import pandas as pd

    sets = {order: [_pairs(gone) for gone in path] for order, path in paths.items()}
    conditions: dict[_Heads, None] = {(): None}  # a set with an order
    for order, path in sets.items():
        singles = _units_in(checkpoint, scores.unit, path[-1]) if order != "random" else []
        conditions.update(dict.fromkeys([*path, *singles]))
    progress.plan(ablation_cost(checkpoint, rows, list(conditions)))
    progress.stage(f"loss without {len(conditions) - 1} sets of heads")
    losses = dict(
        zip(conditions, ablated_losses(checkpoint, rows, list(conditions), seed=seed, progress=progress), strict=True)
    )
    table = []
    for order, path in sets.items():
        for heads in path:
            units = None if order == "random" else _units_in(checkpoint, scores.unit, heads)
            table.append({"order": order, "removed": len(heads), **_point(losses, heads, units, seed)})
    ends = {order: path[-1] for order, path in sets.items()}
    return Curve(scores.score, scores.unit, float(losses[()].mean()), pd.DataFrame(table), rows.documents, ends)


def _point(
    losses: Mapping[_Heads, np.ndarray], heads: _Heads, units: Sequence[_Heads] | None, seed: int
) -> dict[str, float]:
    delta = losses[heads] - losses[()]  # [D]
    known = units is not None and all(unit in losses for unit in units)
    singles = (
        sum((losses[unit] - losses[()] for unit in units or ()), np.zeros_like(delta)) if known else delta * np.nan
    )
    bounds = [*bootstrap_interval(delta, seed), *bootstrap_interval(delta - singles, seed)]
    low, high, interaction_low, interaction_high = map(float, bounds)
    return {
        "loss": float(losses[heads].mean()),
        "delta": float(delta.mean()),
        "low": low,
        "high": high,
        "singles": float(singles.mean()),
        "interaction": float((delta - singles).mean()),
        "interaction_low": interaction_low,
        "interaction_high": interaction_high,
    }
