"""A plan as plain values: the JSON of the command line. Its keys are documented in ``docs/plan.md`` and stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwise.plan.allocation import StateBytes
from headwise.plan.states import Chunk, Encoder, Extent, Fixed, State, Window

if TYPE_CHECKING:
    from headwise.plan.answers import Plan

__all__ = ["extent_record", "plan_record"]


def plan_record(plan: Plan) -> dict[str, Any]:
    """All of a plan by name; bytes, FLOPs and elements are whole numbers, seconds are not."""
    request, allocation = plan.request, plan.allocation
    return {
        "model": plan.model,
        "model_type": plan.architecture.model_type,
        "runtime": plan.runtime.name,
        "runtime_options": dict(plan.runtime.options),
        "context": request.context,
        "batch": request.batch,
        "tp": request.tp,
        "kv_dtype": request.storage.name,
        "value_dtype": None if request.value_storage is None else request.value_storage.name,
        "state_dtype": None if request.state_storage is None else request.state_storage.name,
        "encoder_length": plan.encoder_length,
        "speculative": request.speculative,
        "shared_prefix": request.shared_prefix,
        "overrides": dict(plan.overrides),
        "attention_parameters": plan.parameters.total,
        "attention_parameters_by_name": plan.parameters.by_name,
        "attention_biases": plan.parameters.biases,
        "kv_bytes_per_token": plan.per_token,
        "kv_growth_bytes_per_token": plan.growth,
        "kv_fixed_bytes": plan.fixed,
        "kv_bytes": plan.total,
        "kv_bytes_over_ranks": allocation.total_over_ranks,
        "key_bytes": allocation.key_bytes,
        "value_bytes": allocation.value_bytes,
        "latent_bytes": allocation.role_bytes("latent"),
        "padding_bytes": allocation.padding_bytes,
        "states": [_state_record(state, sizes) for state, sizes in allocation.per_state],
        "groups": _groups(plan),
        "model_max_context": plan.architecture.max_context,
        "budget": plan.budget,
        "weight_bytes": plan.weights,
        "max_context": plan.max_context,
        "max_batch": plan.max_batch,
        "flops": _flops(plan),
        "roofline": None if plan.roofline is None else plan.roofline.as_dict(),
        "provenance": dict(plan.architecture.provenance),
    }


def extent_record(extent: Extent) -> dict[str, Any]:
    """How long a state is: ``{"kind": "window", "size": 1024}``."""
    if isinstance(extent, Window):
        return {"kind": "window", "size": extent.size}
    if isinstance(extent, Chunk):
        return {"kind": "chunk", "size": extent.size}
    if isinstance(extent, Fixed):
        return {"kind": "fixed", "entries": extent.entries}
    return {"kind": "encoder", "length": extent.length} if isinstance(extent, Encoder) else {"kind": "grows"}


def _state_record(state: State, sizes: StateBytes) -> dict[str, Any]:
    return {
        "layer": state.layer,
        "kind": state.kind,
        "planes": [
            {"name": plane.name, "heads": plane.heads, "dim": plane.dim, "role": plane.role, "bytes": size}
            for plane, (_, size) in zip(state.planes, sizes.planes, strict=True)
        ],
        "extent": extent_record(state.extent),
        "owner": state.owner,
        "sharding": state.sharding,
        "entries": sizes.entries,
        "bytes": sizes.total,
        "equation": sizes.equation,
        "provenance": dict(state.provenance),
    }


def _groups(plan: Plan) -> list[dict[str, Any]]:
    """States of equal shape in one line, then what the runtime allocates besides."""
    lines = [
        {
            "label": group.label,
            "layers": [state.layer for state in group.states],
            "bytes_each": group.each.total,
            "bytes": group.total,
            "equation": group.each.equation,
        }
        for group in plan.allocation.groups
    ]
    extras = [
        {"label": extra.name, "layers": [], "bytes_each": extra.total, "bytes": extra.total, "equation": extra.equation}
        for extra in plan.allocation.extras
    ]
    return lines + extras


def _flops(plan: Plan) -> dict[str, Any]:
    """Latent attention in both forms; every other model has one."""
    forms: dict[str, Any] = {"prefill": plan.prefill.as_dict(), "decode": plan.decode.as_dict()}
    if plan.absorbed is not None:
        prefill, decode = plan.absorbed
        forms["absorbed"] = {"prefill": prefill.as_dict(), "decode": decode.as_dict()}
    return forms
