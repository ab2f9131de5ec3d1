"""The pieces that layers are made of: a grouped attention with its keys and values, and the extents of its layers.

Symbols: ``H`` query heads, ``G`` KV heads, ``D`` and ``Dv`` widths of keys and values, ``E`` model width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwise.plan.layers import Attention, Layer, Projection
from headwise.plan.states import Chunk, Encoder, Extent, Plane, State, Window

__all__ = [
    "Biases",
    "Heads",
    "cross_layer_parts",
    "grouped_layer",
    "grouped_projections",
    "grouped_state",
    "layer_kind",
]


@dataclass(frozen=True)
class Heads:
    """The widths of one attention, with where they came from."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    provenance: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Biases:
    """Which of the four projections add a bias."""

    query: bool = False
    key: bool = False
    value: bool = False
    output: bool = False

    @classmethod
    def of(cls, inner: bool, output: bool | None = None) -> Biases:
        """The usual case: query, key and value alike."""
        return cls(inner, inner, inner, inner if output is None else output)


def grouped_projections(heads: Heads, biases: Biases, *, packed: bool = False, gate: int = 0) -> tuple[Projection, ...]:
    """Query, key, value and output of a grouped attention; ``gate``: outputs of a gate on what it gives, 0 for none."""
    queries = heads.heads * heads.head_dim
    keys, values = heads.kv_heads * heads.head_dim, heads.kv_heads * heads.value_dim
    if packed:
        inner: tuple[Projection, ...] = (
            Projection("query key value", heads.width, queries + keys + values, biases.query),
        )
    else:
        inner = (
            Projection("query", heads.width, queries, biases.query),
            Projection("key", heads.width, keys, biases.key),
            Projection("value", heads.width, values, biases.value),
        )
    if gate:
        inner += (Projection("gate", heads.width, gate),)
    return (*inner, Projection("output", heads.heads * heads.value_dim, heads.width, biases.output))


def grouped_state(layer: int, heads: Heads, extent: Extent, *, owner: int | None = None, kind: str = "self") -> State:
    """Keys and values of ``G`` heads."""
    planes = (
        Plane("key", heads.kv_heads, heads.head_dim, "key"),
        Plane("value", heads.kv_heads, heads.value_dim, "value"),
    )
    return State(layer, kind, planes, extent, owner, provenance=dict(heads.provenance))


def grouped_layer(
    index: int,
    heads: Heads,
    extent: Extent,
    projections: tuple[Projection, ...],
    *,
    owner: int | None = None,
    causal: bool = True,
    cached: bool = True,
    others: tuple[State, ...] = (),
    kind: str | None = None,
) -> Layer:
    """One layer of grouped attention.

    Args:
        index: the layer.
        heads: its widths.
        extent: which keys it sees.
        projections: its matrices.
        owner: the layer whose keys and values it reads instead of keeping its own.
        causal: whether a query sees no later keys.
        cached: whether keys and values are kept at all; an encoder's are not.
        others: states that it holds besides.
        kind: what it is called; None: after its extent.
    """
    state = (grouped_state(index, heads, extent, owner=owner),) if cached else ()
    attention = Attention(
        "self", heads.heads, heads.kv_heads, heads.head_dim, heads.value_dim, extent, causal, projections
    )
    return Layer(index, kind or layer_kind(extent), (*state, *others), (attention,))


def cross_layer_parts(
    index: int, heads: Heads, extent: Encoder, biases: Biases, source_width: int
) -> tuple[State, Attention]:
    """Cross attention: keys and values of the encoder, computed once and then kept.

    Args:
        index: the layer.
        heads: its widths.
        extent: the encoder's tokens.
        biases: of its projections.
        source_width: elements of what the encoder gives.
    """
    keys, values = heads.kv_heads * heads.head_dim, heads.kv_heads * heads.value_dim
    projections = (
        Projection("query", heads.width, heads.heads * heads.head_dim, biases.query),
        Projection("key", source_width, keys, biases.key),
        Projection("value", source_width, values, biases.value),
        Projection("output", heads.heads * heads.value_dim, heads.width, biases.output),
    )
    attention = Attention(
        "cross", heads.heads, heads.kv_heads, heads.head_dim, heads.value_dim, extent, False, projections
    )
    return grouped_state(index, heads, extent, kind="cross"), attention


def layer_kind(extent: Extent) -> str:
    """How a layer of that extent is called."""
    if isinstance(extent, Window):
        return "sliding attention"
    if isinstance(extent, Chunk):
        return "chunked attention"
    return "attention"
