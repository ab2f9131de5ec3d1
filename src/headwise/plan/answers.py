"""The answers: what a model's cache takes, what fits, and what its attention computes.

Three numbers are kept apart. The logical minimum is what later steps still read (runtime ``logical``); what a runtime
allocates is more; and what one further token costs is the growth. Each is told with its equation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from headwise.plan.allocation import Allocation, Runtime, allocate
from headwise.plan.config import Config
from headwise.plan.devices import Device
from headwise.plan.errors import PlanError, shown
from headwise.plan.layers import Architecture
from headwise.plan.request import Request
from headwise.plan.roofline import Roofline, roofline
from headwise.plan.states import Chunk, Fixed, Grows, Window
from headwise.plan.work import Parameters, Work, attention_parameters, decode_work, has_absorbed, prefill_work

__all__ = ["Plan", "plan", "plan_architecture"]

# Fields that look like a longest context. Where a family doesn't read them, they say what a model was trained with.
_LENGTHS = ("max_position_embeddings", "n_positions", "seq_length", "max_sequence_length", "max_seq_len", "n_ctx")


@dataclass(frozen=True)
class Plan:
    """All that is known of one model under one request.

    Bytes are those of one rank of tensor parallelism; FLOPs and parameters those of the whole model.

    Attributes:
        model: as it was asked for.
        architecture: its layers, states and matrices.
        request: tokens, sequences, storage, ranks.
        runtime: whose allocation ``allocation`` is.
        allocation: bytes, state by state.
        per_token: bytes of one token of one sequence inside every window and chunk.
        growth: bytes of one further token of one sequence beyond all windows and chunks; where a pool grows by a part
            of a slot, rounded up.
        fixed: bytes of one sequence, from its first token on, that don't depend on the context: recurrent states,
            convolutions, cross attention.
        parameters: of the attention's matrices.
        prefill: what reading the whole context takes.
        decode: what its last token takes.
        absorbed: prefill and decode with latent attention in its absorbed form; None without latent attention.
        budget: bytes of one rank for weights and cache; None: not asked.
        weights: bytes of all weights; None: not said.
        max_context: tokens that each of ``request.batch`` sequences can have within the budget; None: not asked, or no
            limit.
        max_batch: sequences of ``request.context`` tokens that fit; None: not asked, or no limit.
        roofline: the least time of a decode step; None: not asked.
        overrides: config fields that the caller said instead.
    """

    model: str
    architecture: Architecture
    request: Request
    runtime: Runtime
    allocation: Allocation
    per_token: int
    growth: int
    fixed: int
    parameters: Parameters
    prefill: Work
    decode: Work
    absorbed: tuple[Work, Work] | None = None
    budget: int | None = None
    weights: int | None = None
    max_context: int | None = None
    max_batch: int | None = None
    roofline: Roofline | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def encoder_length(self) -> int | None:
        """The encoder's tokens that were counted with; None where nothing looks at an encoder."""
        asked = self.request.encoder_length
        return self.architecture.usual_encoder_length if asked is None else asked

    @property
    def total(self) -> int:
        """Bytes of the cache on one rank."""
        return self.allocation.total

    @property
    def room(self) -> int | None:
        """Bytes of one rank that the weights leave of the budget; negative where they don't fit; None: no budget."""
        return None if self.budget is None else self.budget - _share(self.weights or 0, self.request.tp)

    def as_dict(self) -> dict[str, Any]:
        """The whole plan as plain values, under the documented names."""
        from headwise.plan.records import plan_record

        return plan_record(self)


def plan(
    model: Any,
    *,
    context: int | None = None,
    batch: int = 1,
    kv_dtype: str = "bf16",
    value_dtype: str | None = None,
    state_dtype: str | None = None,
    runtime: str = "logical",
    runtime_options: Mapping[str, Any] | None = None,
    tp: int = 1,
    encoder_length: int | None = None,
    speculative: int = 0,
    shared_prefix: int = 0,
    budget: int | str | None = None,
    weights: int | str | os.PathLike[str] | None = None,
    device: Device | str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Plan:
    """Plan the cache of a model, exactly.

    Args:
        model: a folder, a ``config.json``, a hub id, a ``.gguf`` file, ``demo``, a mapping of fields, or a model.
        context: tokens of a sequence; None: the most that the config allows, or 1 where nothing depends on it.
        batch: sequences.
        kv_dtype: how keys, values and latents are stored; see ``headwise.plan.storages``.
        value_dtype: values, where they are stored otherwise.
        state_dtype: convolution columns and recurrent states; None: as the runtime does by itself.
        runtime: whose allocation: ``logical``, ``transformers``, ``vllm``, ``llamacpp`` or ``sglang``.
        runtime_options: its own options, such as ``{"block_size": 32}``.
        tp: ranks of tensor parallelism; bytes are then those of one.
        encoder_length: tokens of the encoder, for cross attention; None: as the config says.
        speculative: draft tokens that a step holds behind the context.
        shared_prefix: tokens that all sequences have in common.
        budget: bytes of one rank for weights and cache, or ``"24GiB"``.
        weights: bytes of all weights, ``"16GiB"``, a folder or file with them, or ``"model"`` for the model's own.
        device: a preset of ``headwise.plan.devices``, ``"here"``, or a ``Device``, for the least time of a step.
        overrides: config fields that the caller says instead.

    Raises:
        PlanError: the architecture isn't known, a field is missing or contradicts another, or an argument is wrong.
    """
    from headwise.plan.architectures import architecture_of
    from headwise.plan.devices import device_named
    from headwise.plan.runtimes import runtime_named
    from headwise.plan.source import read
    from headwise.plan.storages import storage_named
    from headwise.plan.units import parse_bytes
    from headwise.plan.unused import check_used

    _check_kinds(device, runtime_options, overrides)
    config = read(model, overrides=overrides)
    architecture = architecture_of(config)
    config.check_overrides()
    request = Request(
        context=_context(context, architecture, config),
        batch=batch,
        storage=storage_named(kv_dtype),
        value_storage=None if value_dtype is None else storage_named(value_dtype, "--value-dtype"),
        state_storage=None if state_dtype is None else storage_named(state_dtype, "--state-dtype"),
        tp=tp,
        encoder_length=encoder_length,
        speculative=speculative,
        shared_prefix=shared_prefix,
    )
    options = dict(runtime_options or {})
    policy = runtime_named(runtime, **options)
    _check_opens(policy, architecture)
    check_used(architecture, request, policy, options)
    return plan_architecture(
        architecture,
        request,
        policy,
        model=_model_name(model),
        budget=None if budget is None else parse_bytes(budget, "--budget"),
        weights=None if weights is None else _weight_bytes(weights, model),
        device=device_named(device) if isinstance(device, str) else device,
        overrides=overrides,
    )


def plan_architecture(
    architecture: Architecture,
    request: Request,
    runtime: Runtime,
    *,
    model: str = "",
    budget: int | None = None,
    weights: int | None = None,
    device: Device | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Plan:
    """The same for an architecture that is at hand. The arguments are those of :func:`plan`, already read."""
    context, batch, encoder = request.context, request.batch, request.encoder_length
    prefill, decode = (work(architecture, context, batch, encoder) for work in (prefill_work, decode_work))
    absorbed = None
    if has_absorbed(architecture):
        absorbed = (
            prefill_work(architecture, context, batch, encoder, absorbed=True),
            decode_work(architecture, context, batch, encoder, absorbed=True),
        )
    made = Plan(
        model=model,
        architecture=architecture,
        request=request,
        runtime=runtime,
        allocation=allocate(architecture, request, runtime),
        per_token=_per_token(architecture, request, runtime),
        growth=ceil(runtime.growth(architecture, request)),
        fixed=allocate(architecture, _one_sequence(request), runtime).fixed_bytes,
        parameters=attention_parameters(architecture),
        prefill=prefill,
        decode=decode,
        absorbed=absorbed,
        budget=budget,
        weights=weights,
        roofline=None if device is None else _roofline(architecture, request, device, absorbed, decode, weights),
        overrides=dict(overrides or {}),
    )
    return made if budget is None else _with_capacity(made)


def _context(asked: int | None, architecture: Architecture, config: Config) -> int:
    context = architecture.max_context if asked is None else asked
    if context is not None:
        return context
    attends = any(layer.attentions for layer in architecture.layers)
    if not attends and all(isinstance(state.extent, Fixed) for state in architecture.states):
        return 1  # any other gives the same
    unread = next((name for name in _LENGTHS if config.data.get(name) is not None), None)
    advice = "" if unread is None else f"; its {unread} says what it was trained with, which is no limit"
    named = f"the config of {architecture.model_type} names no longest one"
    raise PlanError(f"--context: expected the number of tokens, {named}{advice}")


def _check_opens(runtime: Runtime, architecture: Architecture) -> None:
    """A model whose heads headwise has listed is opened on transformers by headwise, and by nothing else."""
    from headwise.plan.architectures.fields import LAYERS_KEY

    if LAYERS_KEY in architecture.provenance and runtime.name not in ("logical", "transformers"):
        raise PlanError(
            f"--runtime: expected logical or transformers for a {architecture.model_type} whose heads {LAYERS_KEY} "
            f"lists layer by layer, got {runtime.name}, which can't open it"
        )


def _check_kinds(device: object, runtime_options: object, overrides: object) -> None:
    """What is of a wrong type is told here, not by whatever fails on it."""
    if device is not None and not isinstance(device, (str, Device)):
        raise PlanError(f"device: expected a name or a Device, got {shown(device)}")
    for name, given in (("runtime_options", runtime_options), ("overrides", overrides)):
        if given is not None and not (isinstance(given, Mapping) and all(isinstance(key, str) for key in given)):
            raise PlanError(f"{name}: expected a mapping from names to values, got {shown(given)}")


def _model_name(model: Any) -> str:
    return os.fspath(model) if isinstance(model, (str, os.PathLike)) else type(model).__name__


def _weight_bytes(weights: int | str | os.PathLike[str], model: Any) -> int:
    """A size, or what a file or folder holds; a path object is never a size."""
    from headwise.plan.units import parse_bytes
    from headwise.plan.weights import weight_bytes

    if isinstance(weights, str) and weights == "model":
        return weight_bytes(model)
    if isinstance(weights, os.PathLike) or (isinstance(weights, str) and os.path.exists(weights)):
        return weight_bytes(weights)
    return parse_bytes(weights, "--weights")


def _one_sequence(request: Request) -> Request:
    return replace(request, batch=1, context=max(request.context, 1))


def _per_token(architecture: Architecture, request: Request, runtime: Runtime) -> int:
    inside = (state for state in architecture.states if isinstance(state.extent, (Grows, Window, Chunk)))
    return sum(runtime.entry_bytes(state, request, architecture) for state in inside)


def _with_capacity(made: Plan) -> Plan:
    """The same with what fits into the budget."""
    from headwise.plan.capacity import longest_context, most_sequences

    room = made.room
    if room is None or room <= 0:
        return replace(made, max_context=0, max_batch=0)
    asked = (made.architecture, made.request, made.runtime, room)
    return replace(made, max_context=longest_context(*asked), max_batch=most_sequences(*asked))


def _roofline(
    architecture: Architecture,
    request: Request,
    device: Device,
    absorbed: tuple[Work, Work] | None,
    decode: Work,
    weights: int | None,
) -> Roofline:
    """Latent attention decodes in its absorbed form where speed matters, so that is what is timed."""
    step = decode if absorbed is None else absorbed[1]
    attention = step.scores.visible + step.values.visible
    return roofline(architecture, request, device, attention, step.total.visible, weights)


def _share(size: int, tp: int) -> int:
    return -(-size // tp)
