"""Zamba 1 and 2: Mamba everywhere, and a few blocks of attention that take turns in the hybrid layers.

A block reads the layer's input next to the model's own input, so its queries, keys and values are twice as wide as the
model. Its matrices are shared by every layer that uses it; keys and values are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from headwise.plan.architectures.assembly import assembled, state_maker
from headwise.plan.architectures.fields import count_layers, divided, layer_types, read_heads, said
from headwise.plan.architectures.parts import Heads, grouped_layer
from headwise.plan.architectures.recurrent import convolution, mamba2
from headwise.plan.config import Config
from headwise.plan.layers import Architecture, Layer, Projection
from headwise.plan.states import Fixed, Grows, Plane, State

__all__ = ["zamba", "zamba2"]


def zamba(config: Config) -> Architecture:
    """Zamba: Mamba 1 with a few heads, and one block of attention."""
    count, E = count_layers(config), config.whole("hidden_size")
    inner = config.whole("mamba_expand") * E
    mamba_heads = config.whole("n_mamba_heads")
    width = divided(config, inner, mamba_heads, "mamba_expand x hidden_size", "n_mamba_heads")
    kernel, state = config.whole("mamba_d_conv", least=2), config.whole("mamba_d_state")
    provenance = said(config, "mamba_expand", "n_mamba_heads", "mamba_d_conv", "mamba_d_state")

    def states(index: int) -> tuple[State, ...]:
        columns = (Plane("columns", mamba_heads, width, "convolution"),)
        matrix = (Plane("state", mamba_heads, width * state, "recurrent"),)
        return (
            convolution(index, columns, kernel, provenance),
            State(index, "recurrent", matrix, Fixed(), provenance=dict(provenance)),
        )

    types = layer_types(config, count, "layers_block_type", "layer_types") or _zamba_types(config, count)
    return _model(config, types, states, blocks=1, adapter=None)


def _zamba_types(config: Config, count: int) -> Sequence[str]:
    """The third layer is the first hybrid one; the others follow the period from there."""
    if count < 3:
        raise config.refuse("num_hidden_layers", "at least 3")
    period, offset = config.whole("attn_layer_period"), config.whole("attn_layer_offset", least=0)
    rest = ["hybrid" if index % period == offset else "linear_attention" for index in range(count - 3)]
    return ["linear_attention", "linear_attention", "hybrid", *rest]


def zamba2(config: Config) -> Architecture:
    """Zamba 2: Mamba 2, and ``num_mem_blocks`` blocks that take turns, perhaps with an adapter for each layer."""
    count, E = count_layers(config), config.whole("hidden_size")
    inner = config.whole("mamba_expand") * E
    mixer = mamba2(
        config,
        heads="n_mamba_heads",
        groups=("mamba_ngroups",),
        kernel=("mamba_d_conv",),
        state="mamba_d_state",
        inner=inner,
        inner_name="mamba_expand x hidden_size",
    )
    types = layer_types(config, count, "layers_block_type", "layer_types")
    if types is None and config.has("hybrid_layer_ids"):
        listed = set(config.wholes("hybrid_layer_ids"))
        types = tuple("hybrid" if index in listed else "linear_attention" for index in range(count))
    if types is None:
        raise config.refuse("layers_block_type", "a type for each layer")
    adapter = config.whole("adapter_rank") if config.flag("use_shared_attention_adapter") else None
    return _model(config, types, mixer.states, blocks=config.whole("num_mem_blocks"), adapter=adapter)


def _model(
    config: Config,
    types: Sequence[str],
    states: Callable[[int], tuple[State, ...]],
    *,
    blocks: int,
    adapter: int | None,
) -> Architecture:
    heads = _block_heads(config)
    hybrid = [index for index, kind in enumerate(types) if kind == "hybrid"]
    own = set(hybrid[:blocks])

    def layer(index: int) -> Layer:
        projections = _projections(config, heads, shared=index not in own)
        if adapter is not None:
            projections += _adapters(heads, adapter)
        return grouped_layer(index, heads, Grows(), projections, others=states(index), kind="attention and mamba")

    return assembled(config, types, {"linear_attention": state_maker(states, "mamba"), "hybrid": layer})


def _block_heads(config: Config) -> Heads:
    """Heads over twice the model's width, whatever the config says of their width."""
    E = config.whole("hidden_size")
    heads = read_heads(config, head_dim=("attention_head_dim",))
    D = divided(config, 2 * E, heads.heads, "2 x hidden_size", "num_attention_heads")
    if config.model_type == "zamba" and config.has("attention_head_dim"):
        D = heads.head_dim
    how = {**heads.provenance, "head_dim": "derived: 2 x hidden_size / num_attention_heads"}
    return replace(heads, width=2 * E, head_dim=D, value_dim=D, provenance=how)


def _projections(config: Config, heads: Heads, *, shared: bool) -> tuple[Projection, ...]:
    queries, keys = heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim
    return (
        Projection("query", heads.width, queries, shared=shared),
        Projection("key", heads.width, keys, shared=shared),
        Projection("value", heads.width, keys, shared=shared),
        Projection("output", queries, config.whole("hidden_size"), shared=shared),
    )


def _adapters(heads: Heads, rank: int) -> tuple[Projection, ...]:
    """Each hybrid layer bends queries, keys and values of the shared block by a product of two narrow matrices."""
    return tuple(
        projection
        for name in ("query", "key", "value")
        for projection in (
            Projection(f"{name} adapter down", heads.width, rank),
            Projection(f"{name} adapter up", rank, heads.width),
        )
    )
