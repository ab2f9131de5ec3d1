"""What `headwise prune` does, between reading its options and showing what came out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from headwise.cli.documents import read_told
from headwise.cli.progress import Bar
from headwise.cli.reshaping import cache_bytes, dtype_name, paired_loss
from headwise.errors import UserError
from headwise.folders import check_free, written_beside
from headwise.layout import HeadLayout
from headwise.models import Checkpoint, load
from headwise.models.corpus import Corpus, Rows, cut_rows
from headwise.models.documents import Text
from headwise.models.history import MANIFEST
from headwise.models.questions import check_objective
from headwise.models.weights import kind_of, round_weights
from headwise.surgery.export import check_exportable, export
from headwise.surgery.formats import NotHeldError, best_format, config_for
from headwise.surgery.prune import prune
from headwise.surgery.pruning.compensate import check_rows
from headwise.surgery.pruning.curve import Curve, prune_curve
from headwise.surgery.pruning.scores import SCORES, UnitScores, check_score, score_units
from headwise.surgery.pruning.units import (
    Unit,
    check_amount,
    check_unit,
    count_to_remove,
    example_after,
    possible_counts,
)

__all__ = ["Request", "Result", "run_pruning"]

_CURVE_TOKENS = 2_048


@dataclass(frozen=True)
class Request:
    """The options of the command, see there."""

    model: str
    out: Path
    heads: int | None
    share: float | None
    unit: str
    score: str
    uniform: bool
    compensate: bool
    curve: bool
    format: str | None
    documents: Path | None
    tokens: int
    length: int
    seed: int
    overwrite: bool


@dataclass(frozen=True)
class Result:
    """What came out.

    Attributes:
        checkpoint: the smaller model.
        record: what ``--json`` prints, but for the time.
    """

    checkpoint: Checkpoint
    record: dict[str, Any]


def run_pruning(request: Request) -> Result:
    """Refuse what can be refused, prune, measure, write.

    Raises:
        UserError: it is impossible; nothing is written then.
    """
    # Everything that can be refused without the model is refused before it is loaded.
    check_unit(request.unit)
    if request.score not in SCORES:
        raise UserError(f"prune: expected a score out of {', '.join(SCORES)}, got {request.score!r}")
    check_amount(request.heads, request.share)
    check_free(request.out, request.overwrite, kind="model", marker=MANIFEST)
    corpus = read_told(request.documents)
    with Bar() as bar:
        bar.stage(f"loading {request.model}")
        checkpoint = load(request.model)
        count = _check(checkpoint, request)
        calibration, held_out = _rows(checkpoint, corpus, request)
        unit = cast(Unit, request.unit)
        scores = score_units(checkpoint, calibration, score=request.score, unit=unit, seed=request.seed, progress=bar)
        pruned = prune(
            checkpoint, calibration, heads=count, scores=scores, uniform=request.uniform, compensate=request.compensate,
            seed=request.seed, progress=bar,
        )  # fmt: skip
        round_weights(pruned)
        curve = _curve(checkpoint, corpus, scores, request, bar) if request.curve else None
        loss = paired_loss(checkpoint, pruned, held_out, request.seed, bar) if checkpoint.objective else None
        bar.stage(f"writing {request.out}")
        _write(pruned, curve, request, checkpoint.name)
    return Result(pruned, _record(checkpoint, pruned, request, loss, corpus))


def _check(checkpoint: Checkpoint, request: Request) -> int:
    """How many heads go, once it is sure that this many can, and that a format holds what stays."""
    kind_of(checkpoint)  # refuses architectures that can't be reshaped
    layouts, unit = checkpoint.layouts, cast(Unit, request.unit)
    count = count_to_remove(layouts, unit, heads=request.heads, share=request.share, uniform=request.uniform)
    check_exportable(checkpoint, example_after(layouts, unit, count, uniform=request.uniform), request.format)
    if request.curve or checkpoint.objective is not None:
        check_objective(checkpoint)
    return count


def _rows(checkpoint: Checkpoint, corpus: Corpus, request: Request) -> tuple[Rows, Rows]:
    """Calibration and held-out rows; documents that are too short are refused before anything is measured."""
    calibration = _cut(checkpoint, corpus.working, request, request.tokens, "calibration")
    held_out = _cut(checkpoint, corpus.held_out, request, max(1, request.tokens // 2), "held-out loss")
    check_score(checkpoint, request.score, calibration)
    if request.compensate:
        layers = {layer: range(layout.num_heads) for layer, layout in enumerate(checkpoint.layouts)}
        check_rows(checkpoint, layers, calibration)
    return calibration, held_out


def _cut(checkpoint: Checkpoint, texts: Sequence[Text], request: Request, tokens: int, what: str) -> Rows:
    length = request.length
    return cut_rows(texts, checkpoint.tokenizer, tokens=tokens, length=length, seed=request.seed, what=what)


def _curve(checkpoint: Checkpoint, corpus: Corpus, scores: UnitScores, request: Request, bar: Bar) -> Curve:
    tokens = min(_CURVE_TOKENS, max(1, request.tokens // 2))
    rows = _cut(checkpoint, corpus.held_out, request, tokens, "the curve")
    # Greedy orders score anew for every point.
    again = _cut(checkpoint, corpus.working, request, min(_CURVE_TOKENS, request.tokens), "calibration")
    return prune_curve(checkpoint, rows, calibration=again, scores=scores, seed=request.seed, progress=bar)


def _write(pruned: Checkpoint, curve: Curve | None, request: Request, name: str) -> None:
    """The model, and the curve beside it before the folder takes its place, so that it is whole or not there."""
    options: dict[str, Any] = {"format": request.format, "dtype": pruned.stored_dtype}
    if curve is None:
        export(pruned, request.out, overwrite=request.overwrite, **options)
        return
    from headwise.report.prune_figure import draw_curve

    with written_beside(request.out) as beside:
        export(pruned, beside, overwrite=True, **options)
        (beside / "curve.json").write_text(json.dumps(curve.as_dict(), indent=2, allow_nan=False), encoding="utf-8")
        draw_curve(curve, beside / "curve.png", name=name)


def _record(
    checkpoint: Checkpoint, pruned: Checkpoint, request: Request, loss: dict[str, Any] | None, corpus: Corpus
) -> dict[str, Any]:
    entry = pruned.history[-1]
    both = (checkpoint, pruned)
    return {
        "model": checkpoint.name,
        "folder": str(request.out),
        "format": json.loads((request.out / MANIFEST).read_bytes())["format"],
        "score": request.score,
        "unit": request.unit,
        "uniform": request.uniform,
        "compensated": request.compensate,
        "seed": request.seed,
        "heads": [len(model.heads) for model in both],
        "kv_heads": [sum(layout.num_kv_heads for layout in model.layouts) for model in both],
        "parameters": [model.parameters for model in both],
        "cache_bytes_per_token": [cache_bytes(model) for model in both] if checkpoint.causal else None,
        "cache_dtype": dtype_name(checkpoint) if checkpoint.causal else None,
        "loss": loss,
        "layers": [_layer(layer, old, new, entry) for layer, (old, new) in enumerate(_pairs(checkpoint, pruned))],
        "calibration": {"tokens": entry["tokens"], "length": entry["length"], "documents": len(entry["documents"])},
        "identical_left_out": corpus.identical_left_out,
        "paragraphs_left_out": corpus.paragraphs_left_out,
        "notes": [*_uniform_notes(checkpoint, pruned, request), *corpus.notes],
    }


def _uniform_notes(checkpoint: Checkpoint, pruned: Checkpoint, request: Request) -> list[str]:
    """What ``--uniform`` does not bring: a curve of its own, and stock tools where none holds the heads."""
    if not request.uniform:
        return []
    notes = ["the curve is of free removal, from any layer, not of uniform removal"] if request.curve else []
    layouts, config, unit = checkpoint.layouts, checkpoint.model.config, cast(Unit, request.unit)
    left = [(layout.num_heads, layout.num_kv_heads) for layout in pruned.layouts]
    if best_format(config, left) != "headwise":
        return notes
    step, most = possible_counts(layouts, unit, True)
    counts = range(step, most + 1, step)
    held = [n for n in counts if best_format(config, example_after(layouts, unit, n, uniform=True)) != "headwise"]
    others = f"--heads {' or '.join(map(str, held))} would fit" if held else "no other number of heads would fit"
    return [*notes, f"stock tools will not open it: {_why_not(config, left)}; with --uniform, {others}"]


def _why_not(config: Any, layers: list[tuple[int, int]]) -> str:
    try:
        config_for(config, layers, "stock")
    except NotHeldError as error:
        return str(error)
    raise AssertionError("unreachable: the stock class holds it")


def _pairs(checkpoint: Checkpoint, pruned: Checkpoint) -> list[tuple[HeadLayout, HeadLayout]]:
    return list(zip(checkpoint.layouts, pruned.layouts, strict=True))


def _layer(layer: int, old: HeadLayout, new: HeadLayout, entry: dict[str, Any]) -> dict[str, Any]:
    recovered = entry["recovered"].get(str(layer))
    return {
        "layer": layer,
        "heads": [old.num_heads, new.num_heads],
        "kv_heads": [old.num_kv_heads, new.num_kv_heads],
        "removed": entry["removed"].get(str(layer), []),
        "recovered": None if recovered is None else recovered["share"],
    }
