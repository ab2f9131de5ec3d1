"""What a layout costs by its sizes alone: one layer in the words of `headwise.plan`, which counts it. No torch.

Symbols: ``E`` model width, ``H`` query heads, ``G`` KV heads, ``D`` head dim, ``r`` latent, ``p`` its rotary part.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwise.bench.layouts.specs import LayoutSpec
from headwise.plan.allocation import allocate
from headwise.plan.answers import Plan, plan_architecture
from headwise.plan.devices import Device
from headwise.plan.layers import Architecture, Attention, Layer, Projection
from headwise.plan.request import Request
from headwise.plan.roofline import Roofline, bytes_read
from headwise.plan.runtimes.logical import LogicalRuntime
from headwise.plan.states import Extent, Grows, Plane, State, Window
from headwise.plan.storages import storage_named
from headwise.plan.work import Work

__all__ = ["Cost", "Load", "cost_of"]

DOWN, UP = "key value down", "key value up"


@dataclass(frozen=True)
class Load:
    """What every layout is asked to do.

    Attributes:
        batch: sequences side by side.
        context: tokens of each; decoding is the last of them.
        dtype: ``float32``, ``bfloat16`` or ``float16``, of weights, cache and activations.
    """

    batch: int
    context: int
    dtype: str

    @property
    def request(self) -> Request:
        """The same as the planner takes it."""
        return Request(self.context, self.batch, storage_named(self.dtype, "--dtype"))

    @property
    def item_bytes(self) -> int:
        """Bytes of a number."""
        return storage_named(self.dtype, "--dtype").block_bytes


@dataclass(frozen=True)
class Cost:
    """The counts of one layout under one load.

    Attributes:
        plan: parameters, FLOPs, softmax elements, and the bytes that later tokens still read.
        planned: bytes that its cache must allocate: those, and the free slots of windows.
        prefill_form: ``expanded`` or ``absorbed``, whichever takes fewer FLOPs; None without a latent.
        decode_form: the same for a decoded token.
        prefill: the work of that form.
        decode: the same for a decoded token.
        item_bytes: bytes of a number.
    """

    plan: Plan
    planned: int
    prefill_form: str | None
    decode_form: str | None
    prefill: Work
    decode: Work
    item_bytes: int

    @property
    def parameters(self) -> dict[str, int]:
        """Weights of each projection by name."""
        return dict(self.plan.parameters.by_name)

    @property
    def parameters_total(self) -> int:
        """Weights of all projections."""
        return self.plan.parameters.total

    @property
    def needed(self) -> int:
        """Bytes of the cache that later tokens still read."""
        return self.plan.total

    def least_prefill(self, device: Device) -> float:
        """Seconds below which a prefill can't come: weights read and cache written once, or all multiply-adds."""
        return self._least(device, self.needed, self.prefill)

    def least_decode(self, device: Device) -> float:
        """Seconds below which a decoded token can't come: weights and what it sees of the cache read once."""
        return self._least(device, bytes_read(self.plan.architecture, self.plan.request), self.decode)

    def _least(self, device: Device, cache_bytes: int, work: Work) -> float:
        attention = (work.scores + work.values).visible
        weights = self.parameters_total * self.item_bytes
        least = Roofline(device, cache_bytes, attention, weights, work.total.visible).step_seconds
        assert least is not None  # its weights were said
        return least


def cost_of(spec: LayoutSpec, load: Load) -> Cost:
    """Count one layout.

    Raises:
        PlanError: a number of the load is out of range.
    """
    request, runtime = load.request, LogicalRuntime()
    plan = plan_architecture(_architecture(spec, spec.window), request, runtime)
    # A window's buffer holds the keys before the query's own, window - 1 of them, a slot for the token that is taken
    # back between two runs, and slack.
    planned = allocate(_architecture(spec, spec.window + spec.slack), request, runtime).total
    if plan.absorbed is None:
        return Cost(plan, planned, None, None, plan.prefill, plan.decode, load.item_bytes)
    (prefill_form, prefill), (decode_form, decode) = (
        min((("expanded", expanded), ("absorbed", absorbed)), key=lambda each: each[1].total.visible)
        for expanded, absorbed in zip((plan.prefill, plan.decode), plan.absorbed, strict=True)
    )
    return Cost(plan, planned, prefill_form, decode_form, prefill, decode, load.item_bytes)


def _architecture(spec: LayoutSpec, slots: int) -> Architecture:
    """One layer; where some of its heads have a window, it is told as two, whose bytes and FLOPs add up to its own."""
    if spec.latent:
        return _model(spec, (_latent_layer(spec),))
    local, rest = spec.local_heads, spec.heads - spec.local_heads
    if not local:
        return _model(spec, (_grouped_layer(spec, 0, spec.heads, spec.kv_heads, Grows()),))
    layers = [_grouped_layer(spec, 0, local, local, Window(slots))]
    if rest:
        layers.append(_grouped_layer(spec, 1, rest, rest, Grows()))
    return _model(spec, tuple(layers))


def _model(spec: LayoutSpec, layers: tuple[Layer, ...]) -> Architecture:
    return Architecture("bench", spec.width, layers)


def _grouped_layer(spec: LayoutSpec, index: int, heads: int, kv_heads: int, extent: Extent) -> Layer:
    width, dim = spec.width, spec.head_dim
    projections = (
        Projection("query", width, heads * dim),
        Projection("key", width, kv_heads * dim),
        Projection("value", width, kv_heads * dim),
        Projection("output", heads * dim, width),
    )
    attention = Attention("self", heads, kv_heads, dim, dim, extent, True, projections)
    planes = (Plane("key", kv_heads, dim, "key"), Plane("value", kv_heads, dim, "value"))
    return Layer(index, "attention", (State(index, "self", planes, extent),), (attention,))


def _latent_layer(spec: LayoutSpec) -> Layer:
    width, heads, dim, latent, rope = spec.width, spec.heads, spec.head_dim, spec.latent, spec.rope
    projections = (
        Projection("query", width, heads * (dim + rope)),
        Projection(DOWN, width, latent + rope),
        Projection(UP, latent, heads * 2 * dim),
        Projection("output", heads * dim, width),
    )
    attention = Attention(
        "latent", heads, heads, dim + rope, dim, Grows(), True, projections, absorbed=(latent + rope, latent)
    )
    planes = (Plane("latent", 1, latent, "latent"), Plane("rope key", 1, rope, "latent"))
    return Layer(0, "attention", (State(0, "latent", planes, Grows(), sharding="replicated"),), (attention,))
