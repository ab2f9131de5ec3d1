"""The whole study: score every head, hold it against its nulls, take the leaders away, write it all down."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headwise.errors import UserError
from headwise.folders import write_atomically
from headwise.intervals import bootstrap_interval
from headwise.models import Checkpoint
from headwise.models.documents import Piece, Text, cut_pieces
from headwise.progress import Progress, Silent
from headwise.study.effects import plan_conditions
from headwise.study.examples import find_examples
from headwise.study.measure import Measurements, Meter
from headwise.study.scores import SCORES
from headwise.study.settings import Settings
from headwise.study.store import Store
from headwise.study.tables import (
    document_table,
    effect_table,
    importance_table,
    score_table,
    too_few_to_count,
)

if TYPE_CHECKING:
    import pandas as pd

_FINDING_KEYS = ("layer", "head", "score", "value", "low", "high", "null", "q_value")
_EFFECT_KEYS = (
    *("heads", "mode", "task", "delta", "low", "high", "score", "role", "kind", "baseline", "loss"),
    *("control_delta", "excess_low", "excess_high"),
)


@dataclass(frozen=True)
class Study:
    """A finished study.

    Attributes:
        folder: where it lies.
        manifest: what was read, how, with what.
        scores: one row per score, kind of sample and head.
        effects: one row per ablation.
    """

    folder: Path
    manifest: dict[str, Any]
    scores: pd.DataFrame
    effects: pd.DataFrame

    @property
    def findings(self) -> pd.DataFrame:
        """The rows that survived, strongest first within each score."""
        found = self.scores[self.scores["finding"]]
        return found.sort_values(["score", "value"], ascending=[True, False], ignore_index=True)

    def summary(self) -> dict[str, Any]:
        """What ``headwise study --json`` prints: findings and effects as plain numbers."""
        return {
            "model": self.manifest["model"]["name"],
            "seconds": self.manifest["seconds"],
            "peak_bytes": self.manifest["peak_bytes"],
            "findings": _records(self.findings[list(_FINDING_KEYS)]),
            "effects": _records(self.effects[list(_EFFECT_KEYS)]),
            "notes": self.manifest["notes"],
            "folder": str(self.folder),
        }


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as dictionaries that JSON can hold: NaN becomes None."""
    rows = table.to_dict(orient="records")
    return [{key: None if value != value else value for key, value in row.items()} for row in rows]


def study(
    checkpoint: Checkpoint,
    texts: Sequence[Text],
    folder: str | Path,
    *,
    settings: Settings | None = None,
    documents_source: str = "",
    overwrite: bool = False,
    progress: Progress | None = None,
    command: Sequence[str] = (),
) -> Study:
    """Read all heads of a model and write the study into a folder.

    Args:
        checkpoint: from :func:`headwise.models.load`.
        texts: from :func:`headwise.study.read_documents`.
        folder: where the study goes; while it runs, ``<folder>.partial`` keeps what is done, and the same call goes on
            from there.
        settings: how much is read; defaults suit a small model.
        documents_source: what to call the documents in the manifest.
        overwrite: replace a finished study of that name.
        progress: is told what goes on.
        command: the command line, for the manifest.

    Returns:
        Study, also written as Parquet, safetensors and JSON.

    Raises:
        UserError: the folder cannot be used, or the documents are too short.
    """
    started = time.monotonic()
    settings = settings or Settings()
    pieces, effect_pieces, notes = _choose(list(texts), checkpoint, settings)
    request = _request(checkpoint, pieces, effect_pieces, settings)
    store = Store(Path(folder), request, overwrite)
    meter = Meter(checkpoint, pieces, effect_pieces, settings, store, progress or Silent())
    if store.resumed:
        notes.append("continued after an interruption; seconds count the last run only")
    tasks = meter.tasks()
    meter.expect_effects(tasks)
    measured = meter.scores()
    scores = score_table(measured, checkpoint, settings)
    random_heads = settings.draws_for(len(checkpoint.heads)) * len(checkpoint.heads)
    if (note := too_few_to_count(scores, random_heads, settings)) is not None:
        notes.append(note)
    leaders = leading_heads(scores, settings.leaders)
    if not tasks:
        notes.append("no language head, so there is no loss and effects were not measured")
    elif not any(leaders.values()):
        notes.append("no head survived, so no head was ablated")
    importances = meter.importances(tasks)
    conditions = plan_conditions(leaders, checkpoint, settings) if tasks else []
    losses = meter.losses(conditions, tasks, measured.means) if tasks else {}
    effects, effect_documents = effect_table(conditions, losses, settings.seed)
    tables = {
        "scores": scores,
        "documents": document_table(measured, checkpoint),
        "importance": importance_table(importances, checkpoint, settings.seed),
        "effects": effects,
        "effect_documents": effect_documents,
    }
    examples = find_examples(checkpoint, effect_pieces, leaders, meter.delimiters)
    manifest = _manifest(checkpoint, pieces, settings, documents_source, command, notes, losses, started)
    _write(store, tables, _arrays(measured, importances), examples, manifest)
    return Study(store.finish(), manifest, scores, effects)


def _choose(
    texts: list[Text], checkpoint: Checkpoint, settings: Settings
) -> tuple[list[Piece], list[Piece], list[str]]:
    """Pieces for scoring and for effects: different documents where there are enough, else the same ones, noted."""
    wanted = settings.documents + settings.effect_documents
    pieces, notes = cut_pieces(texts, checkpoint.tokenizer, wanted, settings.length, settings.seed)
    if len(pieces) < 2:
        raise UserError(
            f"documents: only one piece of text (about {len(pieces[0].tokens)} tokens); intervals need at least two, "
            f"so give more text, or a smaller --length than {settings.length}"
        )
    if len(pieces) < 8:
        notes.append("too few documents to keep some apart: effects are measured on the documents used for scoring")
        return pieces, pieces, notes
    for_effects = settings.effect_documents if len(pieces) == wanted else max(2, len(pieces) // 4)
    return pieces[for_effects:], pieces[:for_effects], notes


def leading_heads(scores: pd.DataFrame, count: int) -> dict[str, list[tuple[int, int]]]:
    """For every score the heads with the largest values among its findings, at most ``count``."""
    found = scores[scores["finding"]]
    leaders = {}
    for score in SCORES:
        rows = found[found["score"] == score.name].nlargest(count, "value")
        leaders[score.name] = [(int(row.layer), int(row.head)) for row in rows.itertuples()]
    return {name: heads for name, heads in leaders.items() if heads}


def _request(
    checkpoint: Checkpoint, pieces: Sequence[Piece], effect_pieces: Sequence[Piece], settings: Settings
) -> dict[str, Any]:
    """All that decides the numbers; a half-finished study is continued only for the same."""
    text = json.dumps([piece.tokens for piece in (*pieces, *effect_pieces)])
    return {
        "headwise": metadata.version("headwise"),
        "weights": checkpoint.weights_sha256,
        "documents": hashlib.sha256(text.encode()).hexdigest(),
        **{f"setting {name}": value for name, value in settings.as_dict().items()},
    }


def _manifest(
    checkpoint: Checkpoint,
    pieces: Sequence[Piece],
    settings: Settings,
    documents_source: str,
    command: Sequence[str],
    notes: list[str],
    losses: dict[str, np.ndarray],
    started: float,
) -> dict[str, Any]:
    return {
        "headwise": metadata.version("headwise"),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": list(command),
        "seed": settings.seed,
        "threads": torch.get_num_threads(),
        "model": {
            "name": checkpoint.name,
            "source": checkpoint.source,
            "model_type": checkpoint.model.config.model_type,
            "weights_sha256": checkpoint.weights_sha256,
            "parameters": checkpoint.parameters,
            "causal": checkpoint.causal,
        },
        "layers": [
            {
                "num_heads": layout.num_heads,
                "num_kv_heads": layout.num_kv_heads,
                "head_dim": layout.head_dim,
                "window": layout.window,
            }
            for layout in checkpoint.layouts
        ],
        "documents": {
            "source": documents_source or "texts given in Python",
            "count": len({piece.document for piece in pieces}),
            "tokens": sum(len(piece.tokens) for piece in pieces),
        },
        "settings": settings.as_dict() | {"null_draws": settings.draws_for(len(checkpoint.heads))},
        "versions": {name: metadata.version(name) for name in ("torch", "transformers", "numpy", "headwise")}
        | {"python": platform.python_version()},
        "machine": {"processor": platform.machine(), "system": platform.system()},
        "checks": [asdict(check) for check in checkpoint.checks],
        "baselines": {
            key.removesuffix("-intact"): _baseline(loss, settings.seed)
            for key, loss in losses.items()
            if key.endswith("-intact")
        },
        "notes": notes,
        "seconds": round(time.monotonic() - started, 1),
        "peak_bytes": peak_bytes(),
    }


def _baseline(loss: np.ndarray, seed: int) -> dict[str, float]:
    low, high = bootstrap_interval(loss, seed)
    return {"value": float(loss.mean()), "low": float(low), "high": float(high)}


def peak_bytes() -> int:
    """The most memory that this process has held at once, in bytes."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _arrays(measured: Measurements, importances: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Raw arrays ``[D, layers, H]`` (and random heads ``[N, layers, H]``, mean outputs ``[layers, H, Dv]``)."""
    arrays = {f"text/{name}": values for name, values in measured.text.items()}
    arrays |= {f"repeated/{name}": values for name, values in measured.repeated.items()}
    arrays |= {f"random/{kind}/{name}": values for (kind, name), values in measured.random.items()}
    arrays |= {f"mean output/{kind}": values for kind, values in measured.means.items()}
    arrays |= {f"importance/{task}": values for task, values in importances.items()}
    return {name: np.ascontiguousarray(values) for name, values in arrays.items()}


def _write(
    store: Store,
    tables: dict[str, pd.DataFrame],
    arrays: dict[str, np.ndarray],
    examples: list[dict[str, Any]],
    manifest: dict[str, Any],
) -> None:
    from safetensors.numpy import save

    for name, table in tables.items():
        buffer = io.BytesIO()
        table.to_parquet(buffer, index=False)
        write_atomically(store.partial / f"{name}.parquet", buffer.getvalue())
    write_atomically(store.partial / "arrays.safetensors", save(arrays))
    write_atomically(store.partial / "examples.json", json.dumps(examples, ensure_ascii=False).encode())
    # The manifest last: a folder that has one is whole.
    write_atomically(store.partial / "manifest.json", json.dumps(manifest, indent=2, ensure_ascii=False).encode())
