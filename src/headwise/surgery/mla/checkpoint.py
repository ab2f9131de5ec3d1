"""Models with latent attention as folders: ``model.safetensors``, the tokenizer, and ``latent.json``.

That is no format of any other tool, and looks like none: there is no ``config.json``, so that nothing opens the folder
as the architecture that the model once was. ``latent.json`` holds that config, the layers' sizes, the numbers of their
rotary pairs, and what was done to the model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_file
from torch import Tensor

from headwise import __version__
from headwise.errors import UserError
from headwise.folders import check_free, written_beside
from headwise.models.interface import NAME, register
from headwise.models.refusal import one_line
from headwise.nn import LatentAttention, RotaryEmbedding
from headwise.nn.rope_selected import SelectedRotaryEmbedding
from headwise.surgery.mla.model import LatentAdapter, LatentCheckpoint, put_layer, window_of

__all__ = ["LATENT", "load_latent", "save_latent"]

LATENT = "latent.json"
_WEIGHTS = "model.safetensors"
_FORMAT = "headwise latent 1"


def save_latent(
    checkpoint: LatentCheckpoint,
    folder: str | Path,
    *,
    overwrite: bool = False,
    dtype: torch.dtype | None = None,
) -> Path:
    """Write a converted model, to be opened by :func:`load_latent` and nothing else.

    Args:
        checkpoint: stays as it is.
        folder: to be written.
        overwrite: replace a folder that this function wrote before.
        dtype: in which weights are written; without it the one that they have.

    Returns:
        The folder.

    Raises:
        UserError: the folder exists, or can't be written.
    """
    folder = Path(folder)
    check_free(folder, overwrite, kind="model with latent attention", marker=LATENT)
    try:
        with written_beside(folder) as beside:
            written = dtype or checkpoint.model.dtype
            save_file(_weights(checkpoint.model, written), str(beside / _WEIGHTS))
            if checkpoint.tokenizer is not None:
                checkpoint.tokenizer.save_pretrained(beside)
            text = json.dumps(_told(checkpoint, written), indent=1, allow_nan=False)
            (beside / LATENT).write_text(text + "\n", encoding="utf-8")
            (beside / _WEIGHTS).chmod((beside / LATENT).stat().st_mode)  # safetensors makes files for its user alone
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder}: cannot be written ({one_line(error)}); give another --out") from error
    return folder


def load_latent(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: str | torch.device = "cpu"
) -> LatentCheckpoint:
    """Open a folder that :func:`save_latent` wrote.

    Args:
        folder: to be opened.
        dtype: of the weights; float32 by default, whatever they were written in, as :func:`headwise.models.load` has
            it.
        device: where to put the model.

    Raises:
        UserError: there is none, or a part of it is missing, broken or of another format.
    """
    folder = Path(folder)
    if not (folder / LATENT).is_file():
        raise UserError(
            f"{folder}: expected a folder that holds {LATENT}, as headwise writes it for latent attention, got none; "
            "other models are opened by headwise.models.load"
        )
    try:
        told = json.loads((folder / LATENT).read_text(encoding="utf-8"))
        if told["format"] != _FORMAT:
            raise ValueError(f"its format is {told['format']!r}, where this version knows {_FORMAT!r}")
        checkpoint = _built(told, folder, dtype or torch.float32)
        load_model(checkpoint.model, str(folder / _WEIGHTS))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"{folder}: cannot be opened as a model with latent attention ({one_line(error)}); copy it again"
        ) from error
    for name, parameter in checkpoint.model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise UserError(f"{folder}: the weight {name} holds NaN or infinity; copy the folder again")
    checkpoint.model.to(device).eval().requires_grad_(False)
    return checkpoint


def _weights(model: torch.nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """As they are written: those that two names share once, and numbers without a point as they are."""
    kept = model.state_dict().keys()  # without buffers that are computed
    named = [*model.named_parameters(), *model.named_buffers()]
    cast = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in named if name in kept}
    return {name: tensor.detach().contiguous() for name, tensor in cast.items()}


def _told(checkpoint: LatentCheckpoint, dtype: torch.dtype) -> dict[str, Any]:
    model = checkpoint.model
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, LatentAdapter)]
    return {
        "format": _FORMAT,
        "headwise": __version__,
        "name": checkpoint.name,
        "objective": checkpoint.objective,
        "rank": model.config.kv_lora_rank,
        "rope": model.config.qk_rope_head_dim,
        "dtype": str(dtype).removeprefix("torch."),
        "config": json.loads(model.config.to_json_string(use_diff=False)),
        "layers": [_told_layer(name, module.attention) for name, module in layers],
        "history": list(checkpoint.history),
    }


def _told_layer(name: str, layer: LatentAttention) -> dict[str, Any]:
    rope = layer.rope
    assert isinstance(rope, SelectedRotaryEmbedding)
    sizes = "embed_dim num_heads latent_dim nope_head_dim rope_head_dim value_head_dim scale softcap"
    scaling = {"rope_type": rope.scaling.kind} | rope.scaling.numbers
    turns = {"base": rope.base, "dims": rope.source_dim, "pairs": list(rope.pairs), "scaling": scaling}
    told = {size: getattr(layer, size) for size in sizes.split()}
    return {"module": name, **told, "window": window_of(layer), "rotary": turns}


def _built(told: dict[str, Any], folder: Path, dtype: torch.dtype) -> LatentCheckpoint:
    """The model with fresh weights."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

    register()
    config = AutoConfig.for_model(**told["config"])
    make = AutoModel if told["objective"] is None else AutoModelForCausalLM
    model = make.from_config(config, attn_implementation=NAME, dtype=dtype)
    adapters = []
    for number, layer in enumerate(told["layers"]):
        place = model.get_submodule(layer["module"])
        adapters.append(put_layer(model, place, _layer(layer, dtype), number))
    tokenizer = None
    if (folder / "tokenizer_config.json").is_file():
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    kept = {name: told[name] for name in ("rank", "rope", "name", "objective")}
    kept["stored_dtype"] = getattr(torch, told["dtype"])
    history = tuple(told["history"])
    return LatentCheckpoint.of(model, adapters, tokenizer=tokenizer, source=str(folder), history=history, **kept)


def _layer(told: dict[str, Any], dtype: torch.dtype) -> LatentAttention:
    sizes = {name: given for name, given in told.items() if name not in ("module", "rotary", "window")}
    turns = told["rotary"]
    source = RotaryEmbedding(turns["dims"], turns["base"], scaling=turns["scaling"])
    rope = SelectedRotaryEmbedding(source, turns["pairs"])
    window = None if told["window"] is None else tuple(told["window"])
    return LatentAttention(**sizes, window=window, rope=rope, latent_norm=False, dtype=dtype)
