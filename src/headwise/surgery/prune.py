"""Removing heads for real: rows and columns go, and what they did may be given to those that stay.

Symbols: H query heads, G KV heads, R = H / G.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwise import __version__
from headwise.errors import UserError
from headwise.layout import HeadLayout
from headwise.models.checkpoint import Checkpoint
from headwise.models.corpus import Rows
from headwise.models.weights import copy_of, kind_of, replace_heads
from headwise.progress import Progress
from headwise.surgery.pruning.compensate import Recovery, check_rows, remove_in_sequence, select_heads
from headwise.surgery.pruning.scores import UnitScores, check_score, score_units
from headwise.surgery.pruning.units import Keep, Unit, check_keep, choose, count_to_remove

__all__ = ["prune"]


def prune(
    checkpoint: Checkpoint,
    rows: Rows | None = None,
    *,
    keep: Keep | None = None,
    heads: int | None = None,
    share: float | None = None,
    score: str = "first-order",
    unit: Unit = "group",
    uniform: bool = False,
    scores: UnitScores | None = None,
    compensate: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> Checkpoint:
    """Remove query heads, or KV groups with their query heads, from a copy of a model.

    Say which heads stay, or how many go: then those that score least go. Every layer keeps at least one unit, since
    no attention layer can be held without heads. Where query heads share KV heads, each KV head keeps the same number
    of them: with ``unit="head"`` one goes from every group of a layer at a time.

    Args:
        checkpoint: the model; it stays as it is.
        rows: calibration text, for scores that need it and for compensation.
        keep: query heads that stay, by layer; layers that are not named stay whole.
        heads: how many query heads go, in all layers together; must be possible exactly.
        share: or which share of them, rounded down to a multiple of what can go at once.
        score: what decides, see :func:`headwise.surgery.pruning.scores.score_units`.
        unit: ``group`` or ``head``.
        uniform: the same number from every layer, which stock formats need.
        scores: scores that are known already, in the place of ``score`` and ``unit``.
        compensate: fit the output projections of the heads that stay to what the removed ones did
            (:mod:`headwise.surgery.pruning.compensate`).
        seed: of what a score draws.
        progress: is told what goes on.

    Returns:
        A new checkpoint. Its history ends with what was removed and, if compensated, the share of the removed part that
        was recovered, by layer.

    Raises:
        UserError: it is impossible; the text says what is possible. Nothing has been measured then.
    """
    kind_of(checkpoint)
    if scores is not None:
        score, unit = scores.score, scores.unit
    if keep is not None and (heads is not None or share is not None):
        raise UserError("prune: expected the heads to keep, or how many to remove, got both")
    if compensate and rows is None:
        raise UserError("prune: expected rows of text for compensation, got none; give some, or compensate=False")
    if keep is None:
        count = count_to_remove(checkpoint.layouts, unit, heads=heads, share=share, uniform=uniform)
        if scores is None:
            check_score(checkpoint, score, rows)
            if compensate and rows is not None:
                check_rows(
                    checkpoint, {layer: range(one.num_heads) for layer, one in enumerate(checkpoint.layouts)}, rows
                )
            scores = score_units(checkpoint, rows, score=score, unit=unit, seed=seed, progress=progress)
        removed = choose(checkpoint.layouts, scores.values, unit, count, uniform=uniform)
        keep = _others(checkpoint.layouts, removed)
    settings = {} if scores is None else {"score": score, "unit": unit, "uniform": uniform, "seed": seed}
    return _without(checkpoint, check_keep(checkpoint.layouts, keep), rows, compensate, settings, progress)


def _others(layouts: Sequence[HeadLayout], removed: Keep) -> dict[int, list[int]]:
    """The heads that are not removed, of the layers that lose some."""
    return {
        layer: [head for head in range(layout.num_heads) if head not in removed.get(layer, ())]
        for layer, layout in enumerate(layouts)
        if removed.get(layer)
    }


def _without(
    checkpoint: Checkpoint,
    keep: dict[int, list[int]],
    rows: Rows | None,
    compensate: bool,
    settings: dict[str, object],
    progress: Progress | None,
) -> Checkpoint:
    keep = {layer: heads for layer, heads in keep.items() if len(heads) < checkpoint.layouts[layer].num_heads}
    if not keep:
        raise UserError("prune: expected heads to remove, got all of them to keep")
    pruned = copy_of(checkpoint)
    recovered: dict[int, Recovery] = {}
    if compensate and rows is not None:
        recovered = remove_in_sequence(pruned, keep, rows, progress)
    else:
        replace_heads(pruned, {layer: select_heads(pruned, layer, heads) for layer, heads in keep.items()})
    pruned.history = (*checkpoint.history, _entry(checkpoint, keep, rows, recovered, settings))
    return pruned


def _entry(
    checkpoint: Checkpoint,
    keep: dict[int, list[int]],
    rows: Rows | None,
    recovered: dict[int, Recovery],
    settings: dict[str, object],
) -> dict[str, object]:
    """What was done, as a plain object; heads and layers are counted as they were before."""
    removed = {
        str(layer): [head for head in range(checkpoint.layouts[layer].num_heads) if head not in heads]
        for layer, heads in keep.items()
    }
    read = recovered or settings.get("score") not in (None, "magnitude", "random")
    used = rows if read else None
    return {
        "operation": "prune",
        **settings,
        "heads": sum(map(len, removed.values())),
        "removed": removed,
        "compensated": bool(recovered),
        "recovered": {
            str(layer): {"share": one.share, "ridge": one.strength} for layer, one in sorted(recovered.items())
        },
        "tokens": 0 if used is None else used.tokens.numel(),
        "length": None if used is None else used.tokens.shape[1],
        "documents": [] if used is None else list(used.documents),
        "headwise": __version__,
    }
