"""Encoders: every token sees every other at once, so nothing is kept between tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headwise.plan.architectures.dense import max_context
from headwise.plan.architectures.fields import count_layers, heads_by_layer, layer_types, read_heads
from headwise.plan.architectures.parts import Biases, Heads, grouped_layer, grouped_projections
from headwise.plan.config import Config
from headwise.plan.layers import Architecture, Layer
from headwise.plan.states import Extent, Grows, Window

__all__ = ["Encoder", "albert", "encoder_model", "modernbert"]


@dataclass(frozen=True)
class Encoder:
    """A family of BERT-like encoders.

    Attributes:
        width: names of ``E``.
        layers: names of the number of layers.
        heads: names of ``H``.
    """

    width: tuple[str, ...] = ("hidden_size",)
    layers: tuple[str, ...] = ("num_hidden_layers",)
    heads: tuple[str, ...] = ("num_attention_heads",)

    def __call__(self, config: Config) -> Architecture:
        """The architecture that ``config`` describes.

        Raises:
            PlanError: it is set up as a decoder, which keeps keys and values after all.
        """
        if config.maybe_flag("is_decoder"):
            raise config.refuse("is_decoder", "false, an encoder", "decoders of this family are not known")
        heads = read_heads(config, width=self.width, heads=self.heads, kv_heads=None, head_dim=())
        extents: list[Extent] = [Grows()] * count_layers(config, *self.layers)
        return encoder_model(config, heads, extents, Biases.of(True))


def encoder_model(
    config: Config, heads: Heads, extents: list[Extent], biases: Biases, *, packed: bool = False
) -> Architecture:
    """Layers that see both ways and keep nothing; a window counts the keys on both sides and the query's own."""
    each = heads_by_layer(config, heads, len(extents), shares=False)
    layers = tuple(
        grouped_layer(index, own, extent, grouped_projections(own, biases, packed=packed), causal=False, cached=False)
        for index, (own, extent) in enumerate(zip(each, extents, strict=True))
    )
    context = max_context(config, "max_position_embeddings")
    return Architecture(config.model_type, heads.width, layers, context, provenance=dict(config.provenance))


def modernbert(config: Config) -> Architecture:
    """ModernBERT: one layer in three sees everything, the others half of ``local_attention`` to either side."""
    heads, count = read_heads(config, kv_heads=None), count_layers(config)
    window = Window(2 * (config.whole("local_attention") // 2) + 1)
    types = layer_types(config, count)
    if types is None:
        step = config.maybe_whole("global_attn_every_n_layers") or 3
        types = tuple("sliding_attention" if index % step else "full_attention" for index in range(count))
    if set(types) - {"full_attention", "sliding_attention"}:
        raise config.refuse("layer_types", "full_attention or sliding_attention for each layer")
    extents: list[Extent] = [window if kind == "sliding_attention" else Grows() for kind in types]
    return encoder_model(config, heads, extents, Biases.of(config.flag("attention_bias")), packed=True)


def albert(config: Config) -> Architecture:
    """ALBERT: all layers of a group have the same matrices."""
    plain = Encoder()(config)
    groups, count = config.whole("num_hidden_groups"), len(plain.layers)
    seen: set[int] = set()
    layers = []
    for layer in plain.layers:
        group = layer.index * groups // count
        layers.append(_shared(layer) if group in seen else layer)
        seen.add(group)
    return replace(plain, layers=tuple(layers))


def _shared(layer: Layer) -> Layer:
    (attention,) = layer.attentions
    projections = tuple(replace(projection, shared=True) for projection in attention.projections)
    return replace(layer, attentions=(replace(attention, projections=projections),))
