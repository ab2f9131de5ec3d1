"""Models with an encoder beside the decoder: self attention grows, cross attention keeps the encoder's tokens once."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.plan.architectures.dense import max_context
from headwise.plan.architectures.fields import count_layers, divided, read_heads, said
from headwise.plan.architectures.parts import (
    Biases,
    Heads,
    cross_layer_parts,
    grouped_layer,
    grouped_projections,
    grouped_state,
)
from headwise.plan.config import Config
from headwise.plan.layers import Architecture, Attention, Layer
from headwise.plan.states import Encoder, Grows

__all__ = ["bart", "mllama", "mllama_image_tokens", "t5", "whisper"]

# Every layer of these models adds all four biases.
_ALL = Biases.of(True)


@dataclass(frozen=True)
class _Sides:
    """What the two halves look like."""

    encoder: Heads
    decoder: Heads
    encoder_layers: int
    decoder_layers: int
    biases: Biases
    source: Encoder


def _model(config: Config, sides: _Sides, *context: str) -> Architecture:
    """Encoder layers first; both halves count theirs from 0."""
    encoder = tuple(
        grouped_layer(
            index,
            sides.encoder,
            sides.source,
            grouped_projections(sides.encoder, sides.biases),
            causal=False,
            cached=False,
            kind="encoder attention",
        )
        for index in range(sides.encoder_layers)
    )
    decoder = tuple(_decoder_layer(index, sides) for index in range(sides.decoder_layers))
    return Architecture(
        config.model_type,
        sides.decoder.width,
        encoder + decoder,
        max_context(config, *context),
        sides.source.length,
        dict(config.provenance),
    )


def _decoder_layer(index: int, sides: _Sides) -> Layer:
    heads = sides.decoder
    attention = Attention(
        "self",
        heads.heads,
        heads.kv_heads,
        heads.head_dim,
        heads.value_dim,
        Grows(),
        True,
        grouped_projections(heads, sides.biases),
    )
    cross_state, cross = cross_layer_parts(index, heads, sides.source, sides.biases, sides.encoder.width)
    states = (grouped_state(index, heads, Grows()), cross_state)
    return Layer(index, "self and cross attention", states, (attention, cross))


def t5(config: Config) -> Architecture:
    """T5, mT5 and umT5: heads of ``d_kv``, whatever the width; both halves as deep unless the config says otherwise."""
    heads = read_heads(
        config,
        width=("d_model", "hidden_size"),
        heads=("num_heads", "num_attention_heads"),
        kv_heads=None,
        head_dim=("d_kv", "head_dim"),
    )
    count = count_layers(config, "num_layers", "num_hidden_layers")
    decoder = config.maybe_whole("num_decoder_layers", most=10_000) or count
    return _model(config, _Sides(heads, heads, count, decoder, Biases(), Encoder()))


def bart(config: Config) -> Architecture:
    """BART and what has its shape: Pegasus, Marian, mBART, M2M-100, Blenderbot."""
    return _model(config, _bart_sides(config, _ALL), "max_position_embeddings")


def whisper(config: Config) -> Architecture:
    """Whisper: keys have no bias; the encoder always gives ``max_source_positions`` tokens."""
    source = Encoder(config.whole("max_source_positions"))
    biases = Biases(True, False, True, True)
    return _model(config, _bart_sides(config, biases, source), "max_target_positions")


def _bart_sides(config: Config, biases: Biases, source: Encoder = Encoder()) -> _Sides:  # noqa: B008
    def side(name: str) -> Heads:
        E, H = config.whole("d_model"), config.whole(f"{name}_attention_heads")
        D = divided(config, E, H, "d_model", f"{name}_attention_heads")
        how = {
            **said(config, "d_model", f"{name}_attention_heads"),
            "head_dim": f"derived: d_model / {name}_attention_heads",
        }
        return Heads(E, H, H, D, D, how)

    layers = count_layers(config, "encoder_layers"), count_layers(config, "decoder_layers")
    return _Sides(side("encoder"), side("decoder"), *layers, biases, source)


def mllama(config: Config, source: Encoder = Encoder()) -> Architecture:  # noqa: B008
    """The text model of Llama 3.2 Vision: some layers look at the image alone, the others at the text alone."""
    count, heads = count_layers(config), read_heads(config, head_dim=())
    crossing = set(config.wholes("cross_attention_layers"))
    if any(index >= count for index in crossing):
        raise config.refuse("cross_attention_layers", f"layers below {count}")
    projections = grouped_projections(heads, Biases())
    layers = []
    for index in range(count):
        if index in crossing:
            state, attention = cross_layer_parts(index, heads, source, Biases(), heads.width)
            layers.append(Layer(index, "cross attention", (state,), (attention,)))
        else:
            layers.append(grouped_layer(index, heads, Grows(), projections))
    context = max_context(config, "max_position_embeddings")
    provenance = dict(config.provenance)
    return Architecture(config.model_type, heads.width, tuple(layers), context, source.length, provenance)


def mllama_image_tokens(config: Config) -> int | None:
    """Tokens of one image: its tiles, each of patches and one more for the whole; None without a vision model."""
    if not config.has("vision_config"):
        return None
    vision = config.nested("vision_config", {"image_size": 448, "patch_size": 14, "max_num_tiles": 4})
    side = vision.whole("image_size") // vision.whole("patch_size")
    return vision.whole("max_num_tiles") * (side * side + 1)
