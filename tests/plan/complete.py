"""A config of every family, made of the defaults of its class: as a rule nothing is missing from it."""

from __future__ import annotations

from typing import Any

from headwise.plan.architectures import architecture_of
from headwise.plan.architectures.registry import FAMILIES
from headwise.plan.config import Config
from headwise.plan.defaults import CLASS_DEFAULTS, REMOTE_DEFAULTS
from headwise.plan.errors import PlanError
from headwise.plan.states import Encoder

__all__ = ["COMPLETE", "ENCODER"]

# For families without a class in transformers, whose defaults are few or none.
USUAL = {"hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 6, "max_position_embeddings": 64}


def complete(model_type: str) -> dict[str, Any]:
    """A config of that type in which as a rule nothing is missing: the defaults of its class."""
    if model_type in CLASS_DEFAULTS:
        return {"model_type": model_type, **CLASS_DEFAULTS[model_type][1]}
    _, fields = REMOTE_DEFAULTS.get(model_type, ("", {}))
    return {"model_type": model_type, **USUAL, **fields}


def encoder_asked(model_type: str) -> dict[str, int]:
    """An encoder's length for ``plan``, where a model has an encoder."""
    try:
        layers = architecture_of(Config(COMPLETE[model_type])).layers
    except PlanError:
        return {}
    extents = [each.extent for layer in layers for each in (*layer.attentions, *layer.states)]
    return {"encoder_length": 7} if any(isinstance(extent, Encoder) for extent in extents) else {}


COMPLETE = {model_type: complete(model_type) for model_type in FAMILIES}
# What a plan of it says besides: how long the encoder's text is.
ENCODER = {model_type: encoder_asked(model_type) for model_type in FAMILIES}
