"""A model without its weights: what its config alone says of its layers.

The model is built on torch's meta device and run once there, with an attention function that only notes the shapes it
is given. That takes a fraction of a second and no memory, whatever the size of the model.
"""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headwise.layout import HeadLayout
from headwise.models.checkpoint import Checkpoint
from headwise.models.history import read_history
from headwise.models.load import auto_class_of, config_of
from headwise.models.probes import body_of
from headwise.models.refusal import refusing
from headwise.models.reshaped import listed_layers, reshaped
from headwise.models.source import find

__all__ = ["outline"]

_NAME = "headwise_outline"
_SEEN: ContextVar[list[tuple[nn.Module, HeadLayout]]] = ContextVar("headwise_outline")


def outline(source: str | Path) -> Checkpoint:
    """A checkpoint without weights and tokenizer, to look at its layouts and modules; it can't be run.

    Args:
        source: as for :func:`headwise.models.load`; of a folder or a hub id only config and manifest are read, a GGUF
            file is converted if it was not before.

    Raises:
        UserError: nothing readable at ``source``, or an architecture whose layers depend on the numbers that run
            through it (some mixtures of experts), so that it must be loaded.
    """
    found = find(source)
    config, history = config_of(found), read_history(found)
    auto_class, objective = auto_class_of(config, found.name)
    layers = listed_layers(config, found.name)
    with refusing(found.name, "config"):
        model_class = auto_class._model_mapping[type(config)]
        model = _built(model_class if layers is None else reshaped(model_class, layers), config)
    with refusing(found.name, "heads"):
        seen = _traced(model)
    modules: dict[nn.Module, tuple[int, ...]] = {}
    for layer, (module, _) in enumerate(seen):
        modules[module] = (*modules.get(module, ()), layer)
    return Checkpoint(
        model, None, name=found.name, source=str(source), objective=objective, history=history,
        layouts=tuple(layout for _, layout in seen),
        causal=objective != "masked" and all(_is_causal(module) for module in modules),
        attention_layers=modules,
    )  # fmt: skip


def _built(model_class: Any, config: Any) -> Any:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(_NAME, _note)
    AttentionMaskInterface.register(_NAME, lambda *_, **__: None)
    with torch.device("meta"):
        # In bfloat16, since the kernel for experts takes nothing else.
        return model_class._from_config(config, attn_implementation=_NAME, dtype=torch.bfloat16).eval()


def _traced(model: Any) -> list[tuple[nn.Module, HeadLayout]]:
    tokens = torch.ones(1, 3, dtype=torch.long, device="meta")
    seen: list[tuple[nn.Module, HeadLayout]] = []
    token = _SEEN.set(seen)
    try:
        with torch.no_grad():
            body_of(model)(input_ids=tokens, attention_mask=torch.ones_like(tokens))
    finally:
        _SEEN.reset(token)
    if not seen:
        raise ValueError("no attention layer that goes through transformers' attention registry")
    return seen


def _note(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Stands in for attention: query ``[B, H, L, D]``, key ``[B, G, S, D]``, value ``[B, G, S, Dv]``."""
    window = options.get("sliding_window")
    layout = HeadLayout(
        num_heads=query.shape[1],
        num_kv_heads=key.shape[1],
        head_dim=query.shape[-1],
        value_head_dim=value.shape[-1],
        window=(window - 1, 0) if window is not None and _is_causal(module) else None,
    )
    _SEEN.get().append((module, layout))
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None


def _is_causal(module: nn.Module) -> bool:
    return bool(getattr(module, "is_causal", True))
