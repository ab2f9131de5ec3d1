"""Architectures made by hand, for tests that must not depend on how configs are read."""

from __future__ import annotations

from headwise.plan.layers import Architecture, Attention, Layer, Projection
from headwise.plan.states import Encoder, Extent, Fixed, Grows, Plane, State


def grouped(
    index: int,
    heads: int,
    kv_heads: int,
    dim: int,
    width: int,
    extent: Extent | None = None,
    *,
    value_dim: int | None = None,
    bias: bool = False,
    causal: bool = True,
    packed: bool = False,
    owner: int | None = None,
) -> Layer:
    """One layer of grouped self attention with its keys and values."""
    extent = Grows() if extent is None else extent
    value_dim = dim if value_dim is None else value_dim
    keys, values = kv_heads * dim, kv_heads * value_dim
    if packed:
        inner = (Projection("query key value", width, heads * dim + keys + values, bias),)
    elif owner is not None:
        inner = (Projection("query", width, heads * dim, bias),)
    else:
        inner = (
            Projection("query", width, heads * dim, bias),
            Projection("key", width, keys, bias),
            Projection("value", width, values, bias),
        )
    output = Projection("output", heads * value_dim, width, bias)
    planes = (Plane("key", kv_heads, dim, "key"), Plane("value", kv_heads, value_dim, "value"))
    attention = Attention("self", heads, kv_heads, dim, value_dim, extent, causal, (*inner, output))
    states = (State(index, "self", planes, extent, owner),) if causal else ()
    return Layer(index, "attention", states, (attention,))


def latent(index: int, heads: int, rank: int, rope: int, plain: int, value_dim: int, width: int) -> Layer:
    """One layer of latent attention without a query latent."""
    planes = (Plane("latent", 1, rank, "latent"), Plane("rope key", 1, rope, "latent"))
    projections = (
        Projection("query", width, heads * (plain + rope)),
        Projection("key value down", width, rank + rope),
        Projection("key value up", rank, heads * (plain + value_dim)),
        Projection("output", heads * value_dim, width),
    )
    attention = Attention(
        "latent", heads, heads, plain + rope, value_dim, Grows(), True, projections, (rank + rope, rank)
    )
    return Layer(
        index, "latent attention", (State(index, "latent", planes, Grows(), None, "replicated"),), (attention,)
    )


def recurrent(index: int) -> Layer:
    """A layer with states of fixed size and no attention."""
    columns = State(index, "convolution", (Plane("columns", 7, 1, "convolution"),), Fixed(3))
    matrix = State(index, "recurrent", (Plane("state", 7, 11, "recurrent"),), Fixed(1))
    return Layer(index, "mamba", (columns, matrix))


def cross(index: int, heads: int, dim: int, width: int, length: int | None = None) -> Layer:
    """Self and cross attention of a decoder."""
    own = grouped(index, heads, heads, dim, width)
    projections = tuple(Projection(name, width, heads * dim) for name in ("query", "key", "value"))
    output = Projection("output", heads * dim, width)
    extent = Encoder(length)
    attention = Attention("cross", heads, heads, dim, dim, extent, False, (*projections, output))
    planes = (Plane("key", heads, dim, "key"), Plane("value", heads, dim, "value"))
    return Layer(index, "decoder", (*own.states, State(index, "cross", planes, extent)), (*own.attentions, attention))


def model(*layers: Layer, max_context: int | None = None, model_type: str = "made") -> Architecture:
    """The layers as a model."""
    return Architecture(model_type, 0, layers, max_context)
