"""How long a decode step takes at least: the slower of reading what it must and computing what it must.

A decode step reads every weight and the keys and values that its queries see, and computes little with each byte.
Times are lower bounds: nothing but reading and multiplying is counted, both at the device's full speed and hidden
behind each other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from headwise.plan.devices import Device
from headwise.plan.layers import Architecture, Layer
from headwise.plan.request import Request
from headwise.plan.runtimes.logical import LogicalRuntime
from headwise.plan.states import Chunk, Grows, State, Window

__all__ = ["Roofline", "bytes_read", "roofline"]


@dataclass(frozen=True)
class Roofline:
    """The least time of one decode step of all sequences on one device.

    Attributes:
        device: whose speeds these are.
        cache_bytes: what attention reads of the cache.
        attention_flops: scores and values.
        weight_bytes: what is read of the weights; None: not said.
        step_flops: scores, values and the attention's matrices.
    """

    device: Device
    cache_bytes: int
    attention_flops: int
    weight_bytes: int | None
    step_flops: int

    @property
    def intensity(self) -> float | None:
        """FLOPs of scores and values per byte of the cache; None where there is nothing to read."""
        return self.attention_flops / self.cache_bytes if self.cache_bytes else None

    @property
    def attention_seconds(self) -> float:
        """The least time of scores and values."""
        return self._slower(self.cache_bytes, self.attention_flops)

    @property
    def step_seconds(self) -> float | None:
        """The least time of the step with all weights; None where their bytes were not said."""
        if self.weight_bytes is None:
            return None
        return self._slower(self.cache_bytes + self.weight_bytes, self.step_flops)

    @property
    def bound(self) -> str | None:
        """What decides over scores and values: ``memory`` or ``arithmetic``; None without a FLOP rate."""
        ridge, intensity = self.device.ridge, self.intensity
        if ridge is None:
            return None
        return "arithmetic" if intensity is not None and intensity > ridge else "memory"

    def _slower(self, read: int, flops: int) -> float:
        computing = 0.0 if self.device.flops is None else flops / self.device.flops
        return max(read / self.device.bandwidth, computing)

    def as_dict(self) -> dict[str, Any]:
        """All of it by name; seconds, bytes and FLOPs."""
        return {
            "device": self.device.name,
            "source": self.device.source,
            "bandwidth": self.device.bandwidth,
            "flop_rate": self.device.flops,
            "ridge": self.device.ridge,
            "cache_bytes_read": self.cache_bytes,
            "attention_flops": self.attention_flops,
            "intensity": self.intensity,
            "bound": self.bound,
            "attention_seconds": self.attention_seconds,
            "weight_bytes_read": self.weight_bytes,
            "step_flops": self.step_flops,
            "step_seconds": self.step_seconds,
        }


def roofline(
    architecture: Architecture,
    request: Request,
    device: Device,
    attention_flops: int,
    step_flops: int,
    weight_bytes: int | None = None,
) -> Roofline:
    """The least time of a decode step of one rank, whose share of the FLOPs and weights is one of ``request.tp``.

    Args:
        architecture: the model.
        request: tokens, sequences, storage and ranks.
        device: what one rank runs on.
        attention_flops: scores and values of the step, of all ranks.
        step_flops: the attention's matrices as well.
        weight_bytes: bytes of all weights; None: leave them out.
    """
    share = None if weight_bytes is None else -(-weight_bytes // request.tp)
    flops = (-(-each // request.tp) for each in (attention_flops, step_flops))
    return Roofline(device, bytes_read(architecture, request), next(flops), share, next(flops))


def bytes_read(architecture: Architecture, request: Request) -> int:
    """Bytes of the cache that a decode step reads on one rank: once per layer, also what another layer holds."""
    logical = LogicalRuntime()
    seen = Counter(_as_read(layer, state, request.context) for layer in architecture.layers for state in layer.states)
    return sum(count * logical.state_bytes(state, request, architecture).total for state, count in seen.items())


def _as_read(layer: Layer, state: State, context: int) -> State:
    """The state as the last token reads it: its own, of chosen keys (top-k) only those, a chunk as far as it got."""
    if isinstance(state.extent, Chunk) and context:
        so_far = Window((context - 1) % state.extent.size + 1)
        return replace(state, layer=0, owner=None, extent=so_far)
    extents = [attention.extent for attention in layer.attentions if attention.kind == state.kind]
    chosen = [extent for extent in extents if isinstance(extent, Window) and isinstance(state.extent, Grows)]
    return replace(state, layer=0, owner=None, extent=chosen[0] if chosen else state.extent)
