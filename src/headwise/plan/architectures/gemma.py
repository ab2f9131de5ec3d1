"""Gemma 3, 3n and 4: local and global layers, widths of their own for global ones, and layers without a state."""

from __future__ import annotations

from collections.abc import Sequence

from headwise.plan.architectures.dense import Dense, max_context
from headwise.plan.architectures.fields import (
    count_layers,
    every,
    extents_of,
    layer_overrides,
    layer_types,
    read_heads,
    typed_layers,
    window_provenance,
)
from headwise.plan.architectures.parts import Biases, Heads, grouped_layer, grouped_projections
from headwise.plan.config import Config
from headwise.plan.layers import Architecture, Projection
from headwise.plan.states import Grows, Window

__all__ = ["gemma3", "gemma3n", "gemma4"]

_PATTERN = ("sliding_window_pattern", "_sliding_window_pattern")


def gemma3(config: Config) -> Architecture:
    """Gemma 3: five local layers, one global; EmbeddingGemma is the same in both directions and keeps nothing."""
    if config.maybe_flag("use_bidirectional_attention"):
        return _embedding(config)
    name = next((name for name in _PATTERN if config.has(name)), _PATTERN[0])
    return Dense(bias="attention_bias", pattern=typed_layers(every(6, name=name)))(config)


def _embedding(config: Config) -> Architecture:
    """Its window reaches ``sliding_window // 2`` keys to either side."""
    heads, count = read_heads(config), count_layers(config)
    types = layer_types(config, count) or every(6)(config, count)
    window = Window(2 * (config.whole("sliding_window") // 2) + 1)
    extents = [window if kind == "sliding_attention" else Grows() for kind in types]
    projections = grouped_projections(heads, Biases.of(config.flag("attention_bias")))
    layers = tuple(
        grouped_layer(index, heads, extent, projections, causal=False, cached=False)
        for index, extent in enumerate(extents)
    )
    context = max_context(config, "max_position_embeddings")
    return Architecture(config.model_type, heads.width, layers, context, provenance=dict(config.provenance))


def gemma3n(config: Config) -> Architecture:
    """Gemma 3n: one global layer in five, the last layers read the state of an earlier one of their type."""
    count = count_layers(config)
    types = layer_types(config, count) or every(5)(config, count)
    heads = read_heads(config)
    return _sharing(config, types, [heads] * count, one_matrix=False)


def gemma4(config: Config) -> Architecture:
    """Gemma 4: global layers have heads of another width and perhaps another number of them."""
    if config.maybe_text("use_bidirectional_attention") == "all":
        raise config.refuse(
            "use_bidirectional_attention", "vision or null, a decoder", "encoders of this family are not known"
        )
    count = count_layers(config)
    types = list(layer_types(config, count) or every(6)(config, count))
    if types[-1:] != ["full_attention"]:
        # The class does this to whatever the config says.
        types[-1:] = ["full_attention"]
        config.derived("layer_types", None, "the last layer is always full")
    local = read_heads(config)
    if config.has("per_layer_config"):
        heads = _heads_of_layers(config, local, count)
    else:
        wide = _global_heads(config, local)
        heads = [wide if kind == "full_attention" else local for kind in types]
    return _sharing(config, types, heads, one_matrix=config.flag("attention_k_eq_v"))


def _heads_of_layers(config: Config, local: Heads, count: int) -> list[Heads]:
    """The widths of single layers, as transformers 5 saves them."""
    heads = [local] * count
    for index, own in layer_overrides(config, count, "head_dim", "num_key_value_heads").items():
        D = own.maybe_whole("head_dim") or local.head_dim
        G = own.maybe_whole("num_key_value_heads") or local.kv_heads
        if local.heads % G:
            raise own.refuse("num_key_value_heads", f"a divisor of num_attention_heads = {local.heads}")
        heads[index] = Heads(local.width, local.heads, G, D, D, {**local.provenance, **own.provenance})
    return heads


def _global_heads(config: Config, local: Heads) -> Heads:
    """The widths of global layers; their own number of KV heads counts only where keys and values are one matrix."""
    width = config.whole("global_head_dim")
    own = config.maybe_whole("num_global_key_value_heads") if config.flag("attention_k_eq_v") else None
    kv_heads = own or local.kv_heads
    if local.heads % kv_heads:
        raise config.refuse("num_global_key_value_heads", f"a divisor of num_attention_heads = {local.heads}")
    provenance = {**local.provenance, "head_dim": config.provenance["global_head_dim"]}
    if own:
        provenance["num_key_value_heads"] = config.provenance["num_global_key_value_heads"]
    return Heads(local.width, local.heads, kv_heads, width, width, provenance)


def _sharing(config: Config, types: Sequence[str], heads: Sequence[Heads], *, one_matrix: bool) -> Architecture:
    """Layers of which the last ``num_kv_shared_layers`` keep nothing.

    Args:
        config: the fields.
        types: of each layer.
        heads: the widths of each layer.
        one_matrix: whether full layers take their values from the matrix of the keys.
    """
    count = len(types)
    extents = extents_of(config, types)
    shared = config.whole("num_kv_shared_layers", least=0, most=count)
    owners = _owners(config, types, count - shared)
    biases = Biases.of(config.flag("attention_bias"))
    layers = []
    for index, (kind, extent) in enumerate(zip(types, extents, strict=True)):
        known = heads[index]
        said = Heads(**{**vars(known), "provenance": {**known.provenance, **window_provenance(config)}})
        owner = owners[index]
        projections = grouped_projections(known, biases)
        if owner is not None:
            projections = _without(projections, "key", "value")
        elif one_matrix and kind == "full_attention":
            projections = _without(projections, "value")
        layers.append(grouped_layer(index, said, extent, projections, owner=owner))
    context = max_context(config, "max_position_embeddings")
    return Architecture(config.model_type, heads[0].width, tuple(layers), context, provenance=dict(config.provenance))


def _owners(config: Config, types: Sequence[str], first: int) -> list[int | None]:
    """For layers from ``first`` on, the last layer of the same type before it; None for the others."""
    last = {kind: index for index, kind in enumerate(types[:first])}
    for kind in types[first:]:
        if kind not in last:
            raise config.refuse("num_kv_shared_layers", f"a layer that keeps keys and values for {kind} layers")
    return [None] * first + [last[kind] for kind in types[first:]]


def _without(projections: tuple[Projection, ...], *names: str) -> tuple[Projection, ...]:
    return tuple(projection for projection in projections if projection.name not in names)
