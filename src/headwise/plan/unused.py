"""What was asked for and would change nothing: refused by name, since whoever asked expects that it did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headwise.plan.allocation import Runtime
from headwise.plan.errors import PlanError
from headwise.plan.layers import Architecture
from headwise.plan.request import Request
from headwise.plan.runtimes.base import STATE_ROLES
from headwise.plan.states import Encoder

__all__ = ["check_used"]


def check_used(architecture: Architecture, request: Request, runtime: Runtime, options: Mapping[str, Any]) -> None:
    """Make sure that the model has what parts of the request are about.

    Args:
        architecture: the model.
        request: what was asked.
        runtime: whose allocation.
        options: those of its options that were given.

    Raises:
        PlanError: a part of the request is about nothing in this model.
    """
    kind = architecture.model_type
    if request.encoder_length is not None and not _has_encoder(architecture):
        raise _unused("--encoder-length", "an encoder", kind)
    if request.state_storage is not None and not _has_role(architecture, lambda role: role in STATE_ROLES):
        raise _unused("--state-dtype", "convolution or recurrent states", kind)
    if request.value_storage is not None and not _has_role(architecture, lambda role: role == "value"):
        raise _unused("--value-dtype", "values beside its keys", kind)
    if runtime.name == "vllm" and options.get("flashmla_fp8"):
        _check_flashmla(architecture, request)


def _check_flashmla(architecture: Architecture, request: Request) -> None:
    if not _has_role(architecture, lambda role: role == "latent"):
        raise _unused("vllm: flashmla_fp8=true", "latents", architecture.model_type)
    if request.storage.name != "fp8":
        raise PlanError(f"vllm: flashmla_fp8=true: expected --kv-dtype fp8 with it, got {request.storage.name}")


def _has_encoder(architecture: Architecture) -> bool:
    seen = (attention.extent for layer in architecture.layers for attention in layer.attentions)
    return any(isinstance(extent, Encoder) for extent in (*seen, *(state.extent for state in architecture.states)))


def _has_role(architecture: Architecture, fits: Callable[[str], bool]) -> bool:
    return any(fits(plane.role) for states in architecture.alike for plane in states[0].planes)


def _unused(option: str, missing: str, model_type: str) -> PlanError:
    return PlanError(f"{option}: expected a model with {missing}, {model_type} has none; leave it out")
