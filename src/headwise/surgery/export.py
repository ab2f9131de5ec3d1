"""Saving a checkpoint as a folder that other tools load, with what was done to it beside the weights.

The folder is written beside and renamed when whole. Before the weights are written they are put, strictly, into a model
that transformers makes from the config on disk: what a stock loader would find missing, unexpected or of another size
fails here.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from headwise.errors import UserError
from headwise.folders import check_free, written_beside
from headwise.models.checkpoint import Checkpoint, fingerprint
from headwise.models.history import MANIFEST
from headwise.models.packing import PACKINGS
from headwise.models.refusal import one_line
from headwise.models.reshaped import reshaped
from headwise.surgery.bigcode import gpt_bigcode_of, repeats_one_kv_head
from headwise.surgery.formats import FORMATS, Format, NotHeldError, best_format, class_name, config_for
from headwise.surgery.mla.model import LatentCheckpoint

__all__ = ["check_exportable", "export"]

Layers = Sequence[tuple[int, int]]


def export(
    checkpoint: Checkpoint,
    folder: str | Path,
    *,
    overwrite: bool = False,
    format: str | None = None,  # noqa: A002
    dtype: torch.dtype | None = None,
) -> Path:
    """Write a checkpoint: safetensors, config, tokenizer, generation config, and ``headwise.json``.

    Args:
        checkpoint: stays as it is.
        folder: to be written.
        overwrite: replace a folder that this function wrote before.
        format: ``stock`` (the class of transformers that the model has), ``mistral`` (for Llama), ``gpt_bigcode`` (for
            a GPT-2 with one KV head), ``headwise`` (opened by :func:`headwise.models.load` alone); without it the
            first of them that holds the layers.
        dtype: in which weights are written; without it the one that they have.

    Returns:
        The folder.

    Raises:
        UserError: the folder exists, or can't be written; or the format can't hold the layers.
    """
    folder = Path(folder)
    if isinstance(checkpoint, LatentCheckpoint):
        raise UserError(f"{checkpoint.name}: its attention is latent, which no format of export holds; use save_latent")
    check_free(folder, overwrite, kind="model", marker=MANIFEST)
    layers = _layers(checkpoint, format)
    form = check_exportable(checkpoint, layers, format)
    try:
        with written_beside(folder) as beside:
            _write(checkpoint, beside, form, layers, dtype or checkpoint.model.dtype)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{folder}: cannot be written ({one_line(error)}); give another folder, or make room on its disk"
        ) from error
    return folder


def check_exportable(
    checkpoint: Checkpoint,
    layers: Layers,
    format: str | None = None,  # noqa: A002
) -> Format:
    """The format in which layers can be saved; for callers who have not done the work yet.

    Args:
        checkpoint: the model as it is now.
        layers: (query heads, KV heads) that each layer will have.
        format: the one that is wanted; without it the first one that holds them.

    Returns:
        The format.

    Raises:
        UserError: none holds them, or the one that is wanted does not.
    """
    if format is not None and format not in FORMATS:
        raise UserError(f"format: expected one of {', '.join(FORMATS)}, got {format!r}")
    _check_layers(checkpoint, layers)
    model = checkpoint.model
    wanted: Format | None = next((form for form in FORMATS if form == format), None)
    try:
        if model.config.model_type not in PACKINGS:
            return _untouched(checkpoint, layers, wanted)
        form = wanted or best_format(model.config, layers)
        config_for(model.config, layers, form)
        class_name(type(model).__name__, form)
    except NotHeldError as error:
        kind = f"the format {format}" if format else "any format"
        raise UserError(
            f"{checkpoint.name}: expected layers that {kind} can hold, got {_told(layers)}: {error}; headwise inspect "
            "shows what each format holds"
        ) from error
    return form


def _untouched(checkpoint: Checkpoint, layers: Layers, wanted: Format | None) -> Format:
    """Of an architecture that can't be reshaped: it can be saved as it is."""
    if wanted not in (None, "stock") or list(layers) != _own(checkpoint):
        raise NotHeldError(f"headwise does not know where {checkpoint.model.config.model_type} keeps its heads")
    return "stock"


def _check_layers(checkpoint: Checkpoint, layers: Layers) -> None:
    right = len(layers) == checkpoint.num_layers
    if not right or any(kv_heads < 1 or heads < 1 or heads % kv_heads for heads, kv_heads in layers):
        raise UserError(
            f"{checkpoint.name}: expected (query heads, KV heads) for {checkpoint.num_layers} layers, the first a "
            f"multiple of the second, got {_told(layers)} for {len(layers)}"
        )


def _told(layers: Layers) -> str:
    kinds = list(dict.fromkeys(layers))
    shown = ", ".join(f"{heads}/{kv_heads}" for heads, kv_heads in kinds[:4])
    return f"{shown}{', ...' * (len(kinds) > 4)} (heads/KV heads)"


def _own(checkpoint: Checkpoint) -> list[tuple[int, int]]:
    return [(layout.num_heads, layout.num_kv_heads) for layout in checkpoint.layouts]


def _layers(checkpoint: Checkpoint, wanted: str | None) -> list[tuple[int, int]]:
    """What is to be saved. A GPT-2 with one KV head has it repeated, since its class knows no other way."""
    if wanted in (None, "gpt_bigcode") and repeats_one_kv_head(checkpoint):
        shared = [(heads, 1) for heads, _ in _own(checkpoint)]
        if wanted or _fits(checkpoint, shared):
            return shared
    return _own(checkpoint)


def _fits(checkpoint: Checkpoint, layers: Layers) -> bool:
    try:
        config_for(checkpoint.model.config, layers, "gpt_bigcode")
    except NotHeldError:
        return False
    return True


def _write(checkpoint: Checkpoint, beside: Path, form: Format, layers: Layers, dtype: torch.dtype) -> None:
    made = _saved_model(checkpoint, beside, form, layers).to(dtype)
    made.tie_weights()  # what two names share was one tensor before, and is to be written once
    manifest = json.dumps(_manifest(checkpoint, made, form, layers), indent=2, allow_nan=False, ensure_ascii=False)
    made.save_pretrained(beside)
    for file in beside.glob("*.safetensors"):
        file.chmod((beside / "config.json").stat().st_mode)  # safetensors makes files for its user alone
    settings = getattr(checkpoint.model, "generation_config", None)
    if settings is not None and made.can_generate():
        # Past transformers' own check, which refuses to save what many published models have.
        settings.to_json_file(beside / "generation_config.json", use_diff=True)
    if checkpoint.tokenizer is not None:
        checkpoint.tokenizer.save_pretrained(beside)
    (beside / MANIFEST).write_text(manifest + "\n", encoding="utf-8")


def _saved_model(checkpoint: Checkpoint, beside: Path, form: Format, layers: Layers) -> Any:
    """The weights in a model that transformers makes from the config as it will stand in the folder."""
    import transformers

    if form == "gpt_bigcode":
        source = gpt_bigcode_of(checkpoint)
        config = source.config
    else:
        source = checkpoint.model
        reshapable = source.config.model_type in PACKINGS
        config = config_for(source.config, layers, form) if reshapable else source.config
    config.save_pretrained(beside)
    reread = transformers.AutoConfig.from_pretrained(beside, trust_remote_code=False, local_files_only=True)
    model_class = getattr(transformers, class_name(type(checkpoint.model).__name__, form))
    if form == "headwise":
        model_class = reshaped(model_class, list(layers))
    with torch.device("meta"):
        made = model_class._from_config(reread, dtype=source.dtype)
    made.load_state_dict(source.state_dict(), strict=True, assign=True)
    made.generation_config = transformers.GenerationConfig() if made.can_generate() else None
    return made


def _manifest(checkpoint: Checkpoint, made: Any, form: Format, layers: Layers) -> dict[str, Any]:
    packages = ("headwise", "torch", "transformers", "safetensors")
    return {
        "name": checkpoint.name,
        "source": checkpoint.source,
        "format": form,
        "model_type": made.config.model_type,
        "dtype": str(made.dtype).removeprefix("torch."),
        "layouts": [list(layer) for layer in layers],
        "head_dim": checkpoint.layouts[0].head_dim,
        "weights_sha256": fingerprint(made),
        "history": list(checkpoint.history),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
    }
