"""Converting a decoder to fewer KV heads, layer after layer.

Each layer is merged on the inputs that the layers converted before it give, and aims at what the original layer gives
on its own inputs: so each also answers for the errors of those before it.

Symbols: N rows, L length, E model width, H query heads, Dv value head dim.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headwise import __version__
from headwise.models.checkpoint import Checkpoint
from headwise.models.corpus import Rows
from headwise.models.head_weights import HeadWeights
from headwise.models.probes import HeadCall
from headwise.models.weights import copy_of, heads_of, kind_of, replace_heads, rotary_of
from headwise.progress import Progress, Silent
from headwise.surgery.ridge import Sums, corrected_output, fit_ridge
from headwise.surgery.sharing.checks import check_convertible, check_text
from headwise.surgery.sharing.fit import fit_layer, output_error
from headwise.surgery.sharing.grouping import adjacent, choose_groups
from headwise.surgery.sharing.merge import covariance, merge_groups
from headwise.surgery.sharing.methods import METHODS
from headwise.surgery.sharing.recipe import Recipe
from headwise.surgery.walk import Walk

__all__ = ["Recipe", "check_convertible", "check_text", "convert"]

_FOLDS = 4
_JUDGES = 8  # one document in so many judges and is not fitted


def convert(
    checkpoint: Checkpoint,
    num_kv_heads: int,
    *,
    rows: Rows | None = None,
    recipe: Recipe | None = None,
    progress: Progress | None = None,
) -> Checkpoint:
    """A copy of the model with fewer KV heads in every layer.

    Args:
        checkpoint: the original; stays as it is.
        num_kv_heads: of every layer, a divisor of what it has.
        rows: calibration text, in rows of one length; at least four tokens for each input of a layer. ``mean`` and
            ``first`` need none.
        recipe: how; the default is ``pca`` with everything that helps.
        progress: is told what goes on.

    Returns:
        The converted model, with what was done in its history.

    Raises:
        UserError: see :func:`check_convertible`; or the text is missing or too short.
    """
    recipe = (recipe or Recipe()).settled()
    check_convertible(checkpoint, num_kv_heads, recipe)
    if not kind_of(checkpoint).shares:  # the copies of the one head would be fitted apart
        recipe = replace(recipe, steps=0)
    check_text(checkpoint, rows, recipe)
    started, progress = time.monotonic(), progress or Silent()
    student = copy_of(checkpoint)
    if rows is None or not recipe.needs_text:
        told = [_merge_blindly(student, layer, num_kv_heads, recipe) for layer in range(student.num_layers)]
    else:
        told = _Conversion(checkpoint, student, rows, num_kv_heads, recipe, progress).run()
    student.history = (*checkpoint.history, _entry(checkpoint, num_kv_heads, rows, recipe, told, started))
    return student


def _merge_blindly(student: Checkpoint, layer: int, num_kv_heads: int, recipe: Recipe) -> dict[str, Any]:
    weights = heads_of(student, layer)
    groups = adjacent(weights.num_kv_heads, num_kv_heads)
    width = weights.query.shape[-1] + 1
    nothing = torch.zeros(width, width, dtype=torch.float64)
    _put(student, layer, merge_groups(weights, nothing, rotary_of(student, layer), groups, METHODS[recipe.method]))
    return {"groups": groups}


def _put(student: Checkpoint, layer: int, merged: HeadWeights) -> None:
    if not kind_of(student).shares:  # GPT-2: one KV head, written down once for each query head
        merged = merged.select(range(merged.num_heads), [0] * merged.num_heads)
    replace_heads(student, {layer: merged})


class _Conversion:
    """The walk of original and copy side by side."""

    def __init__(
        self,
        teacher: Checkpoint,
        student: Checkpoint,
        rows: Rows,
        num_kv_heads: int,
        recipe: Recipe,
        progress: Progress,
    ) -> None:
        self.teacher, self.student = Walk(teacher, rows.tokens), Walk(student, rows.tokens)
        self.rows, self.num_kv_heads, self.recipe, self.progress = rows, num_kv_heads, recipe, progress
        # Rows of one document are alike, so a whole document judges where there are several.
        units = rows.units if len(rows.documents) > 1 else tuple(range(len(rows)))
        self.units = torch.tensor(units)
        self.judges = self.units % _JUDGES == min(_JUDGES - 1, int(self.units.max()))

    def run(self) -> list[dict[str, Any]]:
        layers = self.student.checkpoint.num_layers
        # The walks of both models, in tokens of a forward pass as the loss afterwards is; fits go with their layers.
        tokens = 2 * self.rows.tokens.numel()
        self.progress.plan(tokens)
        told = []
        for layer in range(layers):
            self.progress.stage(f"layer {layer + 1} of {layers}")
            told.append(self._layer(layer))
            self.progress.advance(tokens / layers)
        return told

    def _layer(self, layer: int) -> dict[str, Any]:
        student, recipe = self.student.checkpoint, self.recipe
        weights, rotary = heads_of(student, layer).clone(), rotary_of(student, layer)
        target = self.teacher.attend(layer, self.teacher.inputs(layer))
        inputs = self.student.inputs(layer)
        moments = covariance(inputs[~self.judges])
        if recipe.grouping == "chosen":
            groups = choose_groups(weights, moments, rotary, self.num_kv_heads)
        else:
            groups = adjacent(weights.num_kv_heads, self.num_kv_heads)
        _put(student, layer, merge_groups(weights, moments, rotary, groups, METHODS[recipe.method]))
        told: dict[str, Any] = {"groups": groups, "merged": self._left(layer, inputs, target)}
        if recipe.refit:
            self._refit(layer, inputs, target)
            told["refitted"] = self._left(layer, inputs, target)
        if recipe.steps:
            fit = fit_layer(
                self.student.attention(layer), inputs, target, self.judges,
                steps=recipe.steps, rate=recipe.rate, seed=recipe.seed + layer,
            )  # fmt: skip
            told["fitted"] = fit.after
        self.teacher.advance(layer)
        self.student.advance(layer)
        return told

    def _left(self, layer: int, inputs: Tensor, target: Tensor) -> float:
        return output_error(self.student.attention(layer), inputs[self.judges], target[self.judges])

    def _refit(self, layer: int, inputs: Tensor, target: Tensor) -> None:
        """Correct the output projection by least squares; where there is no error nothing changes."""
        student = self.student.checkpoint
        weights = heads_of(student, layer)
        fit = fit_ridge(self._sums(layer, inputs, target), intercept=weights.output_bias is not None)
        if fit.recovered > 0:
            replace_heads(student, {layer: corrected_output(weights, fit)})

    def _sums(self, layer: int, inputs: Tensor, target: Tensor) -> list[Sums]:
        """By fold of documents: what the heads give against what is missing from the layer's output."""
        sums: dict[int, Sums] = {}
        calls: list[HeadCall] = []
        fitted = self.units[~self.judges].unique().tolist()
        fold_of = {unit: place % _FOLDS for place, unit in enumerate(fitted)}
        with self.student.checkpoint.observe(calls.append):
            for row in (~self.judges).nonzero().flatten().tolist():
                fold = fold_of[int(self.units[row])]
                given = self.student.attend(layer, inputs[row : row + 1])[0]
                part = Sums.of(calls.pop().output[0].transpose(0, 1).flatten(1), target[row] - given)
                sums[fold] = sums[fold] + part if fold in sums else part
        return list(sums.values())


def _entry(
    checkpoint: Checkpoint,
    num_kv_heads: int,
    rows: Rows | None,
    recipe: Recipe,
    layers: Sequence[dict[str, Any]],
    started: float,
) -> dict[str, Any]:
    text = recipe.needs_text and rows is not None
    return {
        "operation": "convert",
        "kv_heads": num_kv_heads,
        "kv_heads_before": [layout.num_kv_heads for layout in checkpoint.layouts],
        **vars(recipe),
        "tokens": rows.tokens.numel() if text and rows else 0,
        "length": rows.tokens.shape[1] if text and rows else 0,
        "documents": list(rows.documents) if text and rows else [],
        "layers": list(layers),
        "seconds": round(time.monotonic() - started, 1),
        "headwise": __version__,
    }
