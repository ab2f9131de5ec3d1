"""Giving the heads that stay the work of those that go: least squares on calibration inputs.

What the removed heads would have added to a layer's output is predicted from what the kept heads attend to, and the
prediction is added to the kept heads' output projections. Layers are done in sequence, each on the inputs that the
layers pruned before it give, which are those that it will have (as in Frantar & Alistarh 2023 for weights, here for
heads). What the layers before it got wrong is not made up for: the aim is what this layer's removed heads would add.

Symbols: N rows, B batch, L length, H query heads, K kept heads, Dv value head dim, E model width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import UserError
from headwise.models.checkpoint import Checkpoint
from headwise.models.corpus import Rows
from headwise.models.head_weights import HeadWeights
from headwise.models.probes import HeadCall
from headwise.models.questions import check_length
from headwise.models.weights import heads_of, replace_heads
from headwise.progress import Progress, Silent
from headwise.surgery.pruning.units import kept_groups
from headwise.surgery.ridge import Sums, corrected_output, fit_ridge
from headwise.surgery.walk import Walk

__all__ = ["Recovery", "check_rows", "remove_in_sequence", "select_heads"]

_FOLDS = 4


@dataclass(frozen=True)
class Recovery:
    """What compensation did in one layer.

    Attributes:
        share: of the squared norm of what the removed heads gave, how much the kept ones give now, on documents that
            were left out of the fit: 1 is all, 0 none.
        strength: of the ridge, in units of the mean square of the kept heads' outputs.
    """

    share: float
    strength: float


def select_heads(checkpoint: Checkpoint, layer: int, heads: Sequence[int]) -> HeadWeights:
    """A layer's weights with these query heads alone, and the KV heads that they read."""
    return heads_of(checkpoint, layer).select(heads, kept_groups(checkpoint.layouts[layer], heads))


def check_rows(checkpoint: Checkpoint, keep: Mapping[int, Sequence[int]], rows: Rows) -> None:
    """Refuse calibration rows that can't determine the fit.

    Raises:
        UserError: fewer than two documents, fewer positions in three quarters of them than there are unknowns, or rows
            that are too long for the model.
    """
    check_length(checkpoint, rows.tokens.shape[1])
    if len(rows.documents) < 2:
        raise UserError(
            f"prune: expected calibration rows of at least 2 documents, one to be left out of each fit, got "
            f"{len(rows.documents)} in {rows.tokens.numel():,} tokens; give more --tokens or documents, or "
            "--no-compensate"
        )
    width = max(len(heads) * checkpoint.layouts[layer].value_dim for layer, heads in keep.items())
    fold_of = _folds(rows)
    fewest = min(sum(fold != left_out for fold in fold_of) for left_out in set(fold_of)) * rows.tokens.shape[1]
    if fewest < width:
        needed = -(-width * rows.tokens.numel() // max(fewest, 1))
        raise UserError(
            f"prune: expected at least {needed:,} tokens of calibration for {width} dimensions of kept heads in a "
            f"layer, got {rows.tokens.numel():,}; give more --tokens, or --no-compensate"
        )


def remove_in_sequence(
    checkpoint: Checkpoint, keep: Mapping[int, Sequence[int]], rows: Rows, progress: Progress | None = None
) -> dict[int, Recovery]:
    """Remove heads layer after layer, and fit the output projections of those that stay.

    Args:
        checkpoint: is changed in place.
        keep: query heads that stay, ascending, by layer.
        rows: calibration inputs; their documents are what is left out to choose the ridge and to judge the fit.
        progress: is told what goes on.

    Returns:
        What was recovered, by layer.

    Raises:
        UserError: see :func:`check_rows`.
    """
    check_rows(checkpoint, keep, rows)
    progress = progress or Silent()
    tokens, share = rows.tokens.numel(), 1 / checkpoint.num_layers
    progress.plan(tokens * (1 + len(keep) * share))
    progress.stage("removing heads and fitting those that stay")
    walk = Walk(checkpoint, rows.tokens)
    recovered = {}
    for layer in range(checkpoint.num_layers):
        if layer in keep:
            recovered[layer] = _remove(checkpoint, layer, list(keep[layer]), walk, _folds(rows))
            progress.advance(tokens * share)
        if layer < max(keep):
            walk.advance(layer)
        progress.advance(tokens * share)
    return recovered


def _remove(checkpoint: Checkpoint, layer: int, heads: list[int], walk: Walk, folds: Sequence[int]) -> Recovery:
    weights = select_heads(checkpoint, layer, heads)
    fit = fit_ridge(_sums(checkpoint, layer, heads, walk, folds), intercept=weights.output_bias is not None)
    replace_heads(checkpoint, {layer: corrected_output(weights, fit)})
    return Recovery(fit.recovered, fit.strength)


def _sums(checkpoint: Checkpoint, layer: int, heads: list[int], walk: Walk, folds: Sequence[int]) -> list[Sums]:
    """By fold: what the kept heads attend to ``[K Dv]`` against what the others add to the layer's output ``[E]``."""
    output = heads_of(checkpoint, layer).output.double()
    others = [head for head in range(len(output)) if head not in heads]
    sums: dict[int, Sums] = {}
    rows = iter(folds)

    def add(call: HeadCall) -> None:
        for row in call.output.double():  # [H, L, Dv]
            part = Sums.of(_side_by_side(row[heads]), torch.einsum("hld,hed->le", row[others], output[others]))
            fold = next(rows)
            sums[fold] = sums[fold] + part if fold in sums else part

    with checkpoint.observe(add):
        walk.attend(layer, walk.inputs(layer))
    return list(sums.values())


def _side_by_side(row: Tensor) -> Tensor:
    """``[K, L, Dv]`` to ``[L, K Dv]``."""
    return row.transpose(0, 1).flatten(1)


def _folds(rows: Rows) -> list[int]:
    """The fold of every row: documents dealt out in turn."""
    return [unit % min(_FOLDS, len(rows.documents)) for unit in rows.units]
