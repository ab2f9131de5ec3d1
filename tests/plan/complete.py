"""A config of every family, made of the defaults of its class: as a rule nothing is missing from it."""

from __future__ import annotations

from typing import Any

from headwise.plan.architectures.registry import FAMILIES
from headwise.plan.defaults import CLASS_DEFAULTS, REMOTE_DEFAULTS

__all__ = ["COMPLETE"]

# For families without a class in transformers, whose defaults are few or none.
USUAL = {"hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 6, "max_position_embeddings": 64}


def complete(model_type: str) -> dict[str, Any]:
    """A config of that type in which as a rule nothing is missing: the defaults of its class."""
    if model_type in CLASS_DEFAULTS:
        return {"model_type": model_type, **CLASS_DEFAULTS[model_type][1]}
    _, fields = REMOTE_DEFAULTS.get(model_type, ("", {}))
    return {"model_type": model_type, **USUAL, **fields}


COMPLETE = {model_type: complete(model_type) for model_type in FAMILIES}
