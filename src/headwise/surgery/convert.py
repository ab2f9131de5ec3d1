"""Converting a decoder to fewer KV heads, layer after layer.

Each layer is merged on the inputs that the layers converted before it give, and aims at what the original layer gives
on its own inputs: so each also answers for the errors of those before it.

Symbols: N rows, L length, E model width, H query heads, Dv value head dim.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headwise import __version__
from headwise.errors import UserError
from headwise.models.checkpoint import Checkpoint
from headwise.models.corpus import Rows
from headwise.models.head_weights import HeadWeights
from headwise.models.probes import HeadCall
from headwise.models.questions import check_length
from headwise.models.weights import copy_of, heads_of, kind_of, replace_heads, rotary_of
from headwise.progress import Progress, Silent
from headwise.surgery.fit import fit_layer, output_error
from headwise.surgery.grouping import adjacent, choose_groups
from headwise.surgery.methods import METHODS
from headwise.surgery.ridge import Sums, corrected_output, fit_ridge
from headwise.surgery.share import covariance, merge_groups
from headwise.surgery.walk import Walk

__all__ = ["Recipe", "check_convertible", "check_text", "convert"]

_FOLDS = 4
_JUDGES = 8  # one document in so many judges and is not fitted
_TOKENS_PER_UNKNOWN = 4  # fewer tell more about the text than about the model


@dataclass(frozen=True)
class Recipe:
    """How heads are merged.

    Attributes:
        method: ``pca`` (default), ``aligned``, ``mean`` or ``first``, see :mod:`headwise.surgery.methods`.
        grouping: ``chosen`` (those that lose least together) or ``adjacent``; None: chosen where there is calibration
            text and the method is none of the baselines ``mean`` and ``first``.
        refit: whether the output projection is fitted to the original's outputs by least squares; None: as above.
        steps: of the fit of all four projections of a layer, 0 for none; None: 100 for ``pca``, else 0.
        rate: of that fit, as a share of a projection's root mean square.
        seed: of the order of rows in it.
    """

    method: str = "pca"
    grouping: str | None = None
    refit: bool | None = None
    steps: int | None = None
    rate: float = 0.02
    seed: int = 0

    def settled(self) -> Recipe:
        """The recipe with nothing left open.

        Raises:
            UserError: an unknown name, or a number that makes no sense.
        """
        if self.method not in METHODS:
            raise UserError(f"convert: expected method to be one of {', '.join(METHODS)}, got {self.method!r}")
        if self.grouping not in (None, "chosen", "adjacent"):
            raise UserError(f"convert: expected grouping to be chosen or adjacent, got {self.grouping!r}")
        if (self.steps or 0) < 0 or not self.rate > 0:
            raise UserError(f"convert: expected steps from 0 and a rate above 0, got {self.steps} and {self.rate}")
        careful = self.method in ("pca", "aligned")
        return replace(
            self,
            grouping=self.grouping or ("chosen" if careful else "adjacent"),
            refit=careful if self.refit is None else self.refit,
            steps=(100 if self.method == "pca" else 0) if self.steps is None else self.steps,
        )

    @property
    def needs_text(self) -> bool:
        """Whether there is anything to calibrate. The recipe is settled."""
        return self.method in ("pca", "aligned") or self.grouping == "chosen" or bool(self.refit) or bool(self.steps)


def check_convertible(checkpoint: Checkpoint, num_kv_heads: int, recipe: Recipe) -> None:
    """Refuse what can't be converted, before any work.

    Raises:
        UserError: it can't, for the reason that the text gives.
    """
    packing, name = kind_of(checkpoint), checkpoint.name
    if all(layout.num_kv_heads == num_kv_heads for layout in checkpoint.layouts):
        raise UserError(
            f"{name}: expected fewer KV heads than it has, got {num_kv_heads}, which every layer has already"
        )
    if not checkpoint.causal:
        raise UserError(f"{name}: expected a decoder, got an encoder, which keeps no keys and values between tokens")
    for layer, layout in enumerate(checkpoint.layouts):
        if not 0 < num_kv_heads <= layout.num_kv_heads or layout.num_kv_heads % num_kv_heads:
            fitting = [str(count) for count in range(1, layout.num_kv_heads + 1) if layout.num_kv_heads % count == 0]
            raise UserError(
                f"{name}: expected a number of KV heads that divides the {layout.num_kv_heads} of layer {layer} "
                f"({', '.join(fitting)}), got {num_kv_heads}"
            )
        if rotary_of(checkpoint, layer).norms and recipe.method != "first":
            raise UserError(
                f"{name}: expected keys without norms for the method {recipe.method}, got {_kind(checkpoint)}, whose "
                "keys are normalised after the projection, so that no mix of heads keeps what they compute; "
                "only --method first is offered"
            )
    if not packing.shares and not (_kind(checkpoint) == "gpt2" and num_kv_heads == 1):
        more = "; one KV head for all can be saved as gpt_bigcode" if _kind(checkpoint) == "gpt2" else ""
        raise UserError(
            f"{name}: expected an architecture that can share KV heads, got {_kind(checkpoint)}, which keeps "
            f"{packing.name}{more}"
        )


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


def _kind(checkpoint: Checkpoint) -> str:
    return str(checkpoint.model.config.model_type)


def check_text(checkpoint: Checkpoint, rows: Rows | None, recipe: Recipe) -> None:
    """Refuse calibration text that can't determine what is fitted to it.

    Raises:
        UserError: it is missing, or too short; the text says how much is needed.
    """
    if not recipe.needs_text:
        return
    width = checkpoint.model.config.hidden_size
    unknowns = max(width, *(layout.num_heads * layout.value_dim for layout in checkpoint.layouts))
    needed, got = _TOKENS_PER_UNKNOWN * unknowns, 0 if rows is None else rows.tokens.numel()
    if rows is not None and got >= needed and len(rows) < 3:
        raise UserError(
            f"{checkpoint.name}: expected 3 rows of calibration or more, one to judge by and two to fit, got "
            f"{len(rows)} of {rows.tokens.shape[1]} tokens; ask for shorter rows, or more tokens"
        )
    if rows is None or got < needed:
        raise UserError(
            f"{checkpoint.name}: expected at least {needed:,} tokens of calibration, "
            f"{_TOKENS_PER_UNKNOWN} for each of the {unknowns} inputs of a projection, got {got:,}; give more text, or "
            "use the method mean or first, which need none"
        )
    check_length(checkpoint, rows.tokens.shape[1])


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
