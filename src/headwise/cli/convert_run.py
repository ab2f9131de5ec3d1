"""What `headwise convert` does, between reading its options and showing what came out."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headwise.cli.documents import read_told
from headwise.cli.progress import Bar
from headwise.cli.reshaping import cache_bytes, dtype_name, paired_loss
from headwise.errors import UserError
from headwise.folders import check_free
from headwise.models import Checkpoint, load
from headwise.models.copies import is_copies, mixed_with_copies
from headwise.models.corpus import Corpus, Rows, cut_rows
from headwise.models.history import MANIFEST
from headwise.models.outline import outline
from headwise.models.weights import round_weights
from headwise.surgery.convert import Recipe, check_convertible, check_text, convert
from headwise.surgery.export import check_exportable, export
from headwise.surgery.mla.checkpoint import LATENT, save_latent
from headwise.surgery.mla.convert import check_latent, convert_to_latent

__all__ = ["Request", "run_conversion"]

_LATENT_ONLY = (
    "no stock format: only headwise.surgery.mla.checkpoint.load_latent opens it, in Python; inspect, prune, uptrain "
    "and verify don't read it"
)


@dataclass(frozen=True)
class Request:
    """The options of the command, see there."""

    model: str
    out: Path
    kv_heads: int | None
    mla: str | None
    method: str
    grouping: str | None
    refit: bool | None
    steps: int | None
    format: str | None
    documents: Path | None
    tokens: int
    copies: float
    length: int
    seed: int
    overwrite: bool

    @property
    def recipe(self) -> Recipe:
        """How heads are merged.

        Raises:
            UserError: an option makes no sense.
        """
        return Recipe(self.method, self.grouping, self.refit, self.steps, seed=self.seed).settled()


def run_conversion(request: Request) -> dict[str, Any]:
    """Refuse what can be refused, convert, measure, write.

    Returns:
        What ``--json`` prints, but for the time.

    Raises:
        UserError: it is impossible; nothing is written then.
    """
    # Everything that can be refused without the model is refused before it is loaded.
    if (request.kv_heads is None) == (request.mla is None):
        raise UserError("convert: expected --kv-heads or --mla, got both or neither")
    if request.kv_heads is not None:
        return _to_fewer_heads(request, request.kv_heads)
    return _to_latents(request, *_sizes(request))


def _to_fewer_heads(request: Request, kv_heads: int) -> dict[str, Any]:
    recipe = request.recipe
    check_free(request.out, request.overwrite, kind="model", marker=MANIFEST)
    corpus = read_told(request.documents)
    with Bar() as bar:
        bar.stage(f"loading {request.model}")
        checkpoint = load(request.model)
        check_convertible(checkpoint, kv_heads, recipe)
        layers = [(layout.num_heads, kv_heads) for layout in checkpoint.layouts]
        check_exportable(checkpoint, layers, request.format)
        rows = _calibration(checkpoint, corpus, request) if recipe.needs_text else None
        check_text(checkpoint, rows, recipe)
        held_out = _held_out(checkpoint, corpus, request)
        converted = convert(checkpoint, kv_heads, rows=rows, recipe=recipe, progress=bar)
        round_weights(converted)
        loss = paired_loss(checkpoint, converted, held_out, request.seed, bar) if checkpoint.objective else None
        bar.stage(f"writing {request.out}")
        dtype = checkpoint.stored_dtype
        export(converted, request.out, overwrite=request.overwrite, format=request.format, dtype=dtype)
    # As it was written: a GPT-2 with one KV head holds it once for each query head until then.
    entry, both = converted.history[-1], (checkpoint, outline(request.out))
    return {
        "model": checkpoint.name,
        "folder": str(request.out),
        "format": json.loads((request.out / MANIFEST).read_bytes())["format"],
        **{name: entry[name] for name in ("method", "grouping", "refit", "steps", "rate", "seed", "layers")},
        "kv_heads": [sum(layout.num_kv_heads for layout in model.layouts) for model in both],
        "parameters": [model.parameters for model in both],
        "cache_bytes_per_token": [_cache_bytes(model, checkpoint) for model in both],
        "cache_dtype": dtype_name(checkpoint),
        "loss": loss,
        "calibration": _calibrated(request, entry),
        "identical_left_out": corpus.identical_left_out,
        "paragraphs_left_out": corpus.paragraphs_left_out,
        "notes": list(corpus.notes),
    }


def _sizes(request: Request) -> tuple[int, int]:
    """Rank and rotary dimensions out of RANK+ROPE."""
    rank, plus, rope = str(request.mla).partition("+")
    if not (plus and rank.isdecimal() and rope.isdecimal()):
        raise UserError(f"--mla: expected RANK+ROPE, such as 192+64, got {request.mla!r}")
    if request.format is not None:
        raise UserError(f"--mla: expected no --format, since only headwise opens latent models, got {request.format}")
    heads_only = {"method": request.method != "pca", "grouping": request.grouping, "steps": request.steps}
    given = [f"--{name}" for name, one in heads_only.items() if one not in (None, False)]
    if given or request.refit is not None:
        raise UserError(f"--mla: expected no {', '.join(given or ['--no-refit'])}, which say how KV heads are merged")
    return int(rank), int(rope)


def _to_latents(request: Request, rank: int, rope: int) -> dict[str, Any]:
    check_free(request.out, request.overwrite, kind="model with latent attention", marker=LATENT)
    corpus = read_told(request.documents)
    with Bar() as bar:
        bar.stage(f"loading {request.model}")
        checkpoint = load(request.model)
        check_latent(checkpoint, rank, rope)
        rows, held_out = _calibration(checkpoint, corpus, request), _held_out(checkpoint, corpus, request)
        converted = convert_to_latent(checkpoint, rank=rank, rope=rope, rows=rows, seed=request.seed, progress=bar)
        round_weights(converted)
        loss = paired_loss(checkpoint, converted, held_out, request.seed, bar)
        bar.stage(f"writing {request.out}")
        save_latent(converted, request.out, overwrite=request.overwrite, dtype=checkpoint.stored_dtype)
    entry = converted.history[-1]
    return {
        "model": checkpoint.name,
        "folder": str(request.out),
        "format": "latent",
        **{name: entry[name] for name in ("rank", "rope", "seed")},
        "layers": [],
        "parameters": [model.parameters for model in (checkpoint, converted)],
        "cache_bytes_per_token": [
            cache_bytes(checkpoint),
            converted.cache_bytes_in(converted.stored_dtype or converted.model.dtype),
        ],
        "cache_dtype": dtype_name(checkpoint),
        "loss": loss,
        "calibration": _calibrated(request, entry),
        "identical_left_out": corpus.identical_left_out,
        "paragraphs_left_out": corpus.paragraphs_left_out,
        "notes": [_LATENT_ONLY, *corpus.notes],
    }


def _calibration(checkpoint: Checkpoint, corpus: Corpus, request: Request) -> Rows:
    """Text, and random tokens that repeat: on text alone a model may lose copying unnoticed."""
    text = _cut(checkpoint, corpus.working, request, request.tokens, "calibration")
    config = checkpoint.model.config
    return mixed_with_copies(text, checkpoint.tokenizer, config, share=request.copies, seed=request.seed)


def _held_out(checkpoint: Checkpoint, corpus: Corpus, request: Request) -> Rows:
    return _cut(checkpoint, corpus.held_out, request, max(1, request.tokens // 4), "held-out loss")


def _cut(checkpoint: Checkpoint, texts: Any, request: Request, tokens: int, what: str) -> Rows:
    length = request.length
    return cut_rows(texts, checkpoint.tokenizer, tokens=tokens, length=length, seed=request.seed, what=what)


def _cache_bytes(model: Checkpoint, original: Checkpoint) -> int:
    return cache_bytes(replace(model, stored_dtype=original.stored_dtype))


def _calibrated(request: Request, entry: dict[str, Any]) -> dict[str, Any]:
    """What was calibrated on; rows of random tokens are no documents."""
    random_rows = sum(is_copies(document) for document in entry["documents"])
    return {
        "tokens": entry["tokens"],
        "length": entry["length"],
        "documents": len(entry["documents"]) - random_rows,
        "random_rows": random_rows,
        "copies": request.copies if entry["tokens"] else 0,
    }
