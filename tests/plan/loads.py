"""Models made of bare states, and draws of them, for the tests of policies."""

from __future__ import annotations

from hypothesis import strategies as st

from headwise.plan.layers import Architecture, Layer
from headwise.plan.request import Request
from headwise.plan.states import Chunk, Encoder, Extent, Fixed, Grows, Plane, State, Window

__all__ = [
    "attention",
    "convolution",
    "delta_net",
    "indexer",
    "latent",
    "mamba2",
    "model",
    "models",
    "recurrent",
    "requests",
]


def attention(
    layer: int, heads: int, dim: int, extent: Extent | None = None, *, value_dim: int = 0, owner: int | None = None
) -> State:
    """Keys and values of one layer."""
    planes = (Plane("key", heads, dim, "key"), Plane("value", heads, value_dim or dim, "value"))
    return State(layer, "self", planes, extent or Grows(), owner)


def cross(layer: int, heads: int, dim: int, length: int | None) -> State:
    """Keys and values of an encoder's tokens."""
    planes = (Plane("key", heads, dim, "key"), Plane("value", heads, dim, "value"))
    return State(layer, "cross", planes, Encoder(length))


def latent(layer: int, rank: int = 512, rope: int = 64) -> State:
    """The latent of all heads."""
    planes = (Plane("latent", 1, rank, "latent"), Plane("rope key", 1, rope, "latent"))
    return State(layer, "latent", planes, Grows(), sharding="replicated")


def indexer(layer: int, dim: int = 128) -> State:
    """The key by which tokens are chosen."""
    return State(layer, "indexer", (Plane("indexer key", 1, dim, "indexer"),), Grows(), sharding="replicated")


def convolution(layer: int, columns: int, *planes: tuple[int, int]) -> State:
    """Columns of a short convolution, ``planes`` of so many heads and elements."""
    made = tuple(Plane(f"columns {number}", *plane, "convolution") for number, plane in enumerate(planes))
    return State(layer, "convolution", made, Fixed(columns))


def recurrent(layer: int, heads: int, size: int, dtype: str | None = None) -> State:
    """A recurrent state of ``size`` elements for each head."""
    return State(layer, "recurrent", (Plane("state", heads, size, "recurrent"),), Fixed(1), dtype=dtype)


def mamba2(layer: int, heads: int, dim: int, groups: int, size: int, dtype: str | None = None) -> tuple[State, ...]:
    """A Mamba 2 layer with a convolution of 4."""
    columns = convolution(layer, 3, (heads, dim), (groups, size), (groups, size))
    return columns, recurrent(layer, heads, dim * size, dtype)


def delta_net(layer: int, key_heads: int, value_heads: int, dim: int, dtype: str | None = None) -> tuple[State, ...]:
    """A gated delta layer with a convolution of 4."""
    columns = convolution(layer, 3, (key_heads, dim), (key_heads, dim), (value_heads, dim))
    return columns, recurrent(layer, value_heads, dim * dim, dtype)


def model(
    *layers: State | tuple[State, ...], model_type: str = "gemma2", max_context: int | None = None
) -> Architecture:
    """A model whose layers hold those states and nothing else."""
    made = (
        Layer(index, "layer", states if isinstance(states, tuple) else (states,)) for index, states in enumerate(layers)
    )
    return Architecture(model_type, 64, tuple(made), max_context)


@st.composite
def models(draw: st.DrawFn, *, uniform: bool = False, recurrent_layers: bool = True) -> Architecture:
    """A few layers: full, sliding and chunked ones of one width, latents or recurrent ones.

    Args:
        draw: of hypothesis.
        uniform: whether all heads have one width, so that every runtime can share blocks between them.
        recurrent_layers: whether there may be recurrent ones.
    """
    size = draw(st.integers(1, 700))
    local: list[Extent] = [Window(size)] if draw(st.booleans()) else [Chunk(size)]
    kinds = draw(st.lists(st.sampled_from(["full", "local", "fixed"]), min_size=1, max_size=7))
    widths = [(4, 32)] if uniform else [(4, 32), (8, 32), (8, 64)]
    full, window = draw(st.sampled_from(widths)), draw(st.sampled_from(widths))
    layers: list[State | tuple[State, ...]] = []
    for index, kind in enumerate(kinds):
        if kind == "fixed" and recurrent_layers:
            layers.append(mamba2(index, 8, 16, 4, 32))
        elif kind == "local":
            layers.append(attention(index, *window, draw(st.sampled_from(local))))
        else:
            layers.append(attention(index, *full))
    return model(*layers, model_type=draw(st.sampled_from(["gemma2", "gpt_oss", "mistral"])))


@st.composite
def requests(draw: st.DrawFn, *, prefix: bool = True, tp: bool = False) -> Request:
    """A load, small enough to reach every step of the staircase."""
    context = draw(st.integers(1, 3000))
    return Request(
        context,
        batch=draw(st.integers(1, 9)),
        tp=draw(st.sampled_from([1, 2, 4])) if tp else 1,
        speculative=draw(st.integers(0, 5)),
        shared_prefix=draw(st.integers(0, context)) if prefix else 0,
    )
