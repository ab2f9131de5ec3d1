"""Linear attention among full layers: delta rules, lightning attention, short convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from headwise.plan.architectures.assembly import Maker, assembled, attention_maker, state_maker
from headwise.plan.architectures.fields import count_layers, layer_types, read_heads, said, sliding_layers
from headwise.plan.architectures.latent import latent_layer, read_latent
from headwise.plan.architectures.parts import Biases, Heads, grouped_layer, grouped_projections
from headwise.plan.architectures.recurrent import Delta, convolution, delta_rule, state_dtype
from headwise.plan.config import Config
from headwise.plan.layers import Architecture, Layer
from headwise.plan.states import Fixed, Plane, State

__all__ = ["kimi_linear", "lfm2", "minimax", "olmo_hybrid", "qwen3_next"]


def _linear_types(config: Config, count: int) -> Sequence[str]:
    """``layer_types``, else one full layer at the end of every ``full_attention_interval``."""
    types = layer_types(config, count)
    if types is not None:
        return types
    step = config.maybe_whole("full_attention_interval") or 4
    config.derived("layer_types", None, f"the last layer of every {step} is full")
    return ["full_attention" if (index + 1) % step == 0 else "linear_attention" for index in range(count)]


def qwen3_next(config: Config) -> Architecture:
    """Qwen3-Next and Qwen3.5: gated delta rules, and full layers whose query carries a gate."""
    types = _linear_types(config, count_layers(config))
    makers = {
        "full_attention": attention_maker(read_heads(config), Biases.of(config.flag("attention_bias")), gated=True),
        "linear_attention": state_maker(delta_rule(config).states, "gated delta rule"),
    }
    return assembled(config, types, makers)


def olmo_hybrid(config: Config) -> Architecture:
    """OLMo Hybrid: gated delta rules with a gate, and plain full layers."""
    count = count_layers(config)
    heads = read_heads(config)
    if not config.has("layer_types") and count < 4:
        raise config.refuse("layer_types", "a type for each layer")
    makers = {
        "full_attention": attention_maker(heads, Biases.of(config.flag("attention_bias"))),
        "linear_attention": state_maker(_olmo_delta(config, heads).states, "gated delta rule"),
    }
    return assembled(config, _linear_types(config, count), makers)


def _olmo_delta(config: Config, heads: Heads) -> Delta:
    key_heads = config.maybe_whole("linear_num_key_heads") or heads.heads
    value_heads = config.maybe_whole("linear_num_value_heads") or heads.heads
    key_dim = config.maybe_whole("linear_key_head_dim") or 3 * heads.width // (4 * key_heads)
    value_dim = config.maybe_whole("linear_value_head_dim") or 2 * key_dim
    kernel = config.whole("linear_conv_kernel_dim", least=2)
    return Delta(
        key_heads, value_heads, key_dim, value_dim, kernel, state_dtype(config), said(config, "linear_conv_kernel_dim")
    )


def kimi_linear(config: Config) -> Architecture:
    """Kimi Linear: a delta rule with a decay for each channel, and latent attention without rotary embeddings."""
    count = count_layers(config)
    inner = config.nested("linear_attn_config") if config.has("linear_attn_config") else None

    def number(field: str, own: str) -> int:
        return inner.whole(own) if inner is not None and inner.has(own) else config.whole(field)

    heads, dim = number("linear_num_heads", "num_heads"), number("linear_head_dim", "head_dim")
    kernel = number("linear_conv_kernel_dim", "short_conv_kernel_size")
    delta = Delta(heads, heads, dim, dim, kernel, state_dtype(config), said(config, "linear_num_heads"))
    widths = read_latent(config)
    makers: dict[str, Maker] = {
        "full_attention": lambda index: latent_layer(index, widths),
        "linear_attention": state_maker(delta.states, "delta attention"),
    }
    return assembled(config, _kimi_types(config, inner, count), makers, "model_max_length", "max_position_embeddings")


def _kimi_types(config: Config, inner: Config | None, count: int) -> Sequence[str]:
    """``layer_types``, else two lists of layers that count from 1."""
    types = layer_types(config, count)
    if types is not None:
        return types
    if inner is None or not inner.has("full_attn_layers"):
        raise config.refuse("layer_types", "a type for each layer", "or give linear_attn_config")
    full, linear = set(inner.wholes("full_attn_layers", least=1)), set(inner.wholes("kda_layers", least=1))
    if full | linear != set(range(1, count + 1)) or full & linear:
        raise inner.refuse("full_attn_layers", f"with kda_layers each of the layers from 1 to {count} once")
    return ["full_attention" if index + 1 in full else "linear_attention" for index in range(count)]


def minimax(config: Config) -> Architecture:
    """MiniMax Text 01 and M1: lightning attention, whose state is a matrix for each head, and full layers."""
    count, heads = count_layers(config), read_heads(config)
    extent = sliding_layers(config, 1)[0]
    projections = grouped_projections(heads, Biases())
    plane = (Plane("state", heads.heads, heads.head_dim * heads.head_dim, "recurrent"),)

    def lightning(index: int) -> Layer:
        state = State(index, "recurrent", plane, Fixed(), provenance=dict(heads.provenance))
        return Layer(index, "lightning attention", (state,))

    makers: dict[str, Maker] = {
        "full_attention": lambda index: grouped_layer(index, heads, extent, projections),
        "linear_attention": lightning,
    }
    return assembled(config, _minimax_types(config, count), makers)


def _minimax_types(config: Config, count: int) -> Sequence[str]:
    """``layer_types``, or 0 and 1 in ``attn_type_list``, or alternating as the class does."""
    types = layer_types(config, count)
    if types is not None:
        return types
    if config.has("attn_type_list"):
        listed = config.wholes("attn_type_list", count)
        return ["full_attention" if each else "linear_attention" for each in listed]
    if config.model_type != "minimax":
        raise config.refuse("attn_type_list", "0 or 1 for each layer")
    config.derived("layer_types", None, "full and linear layers alternate")
    return ["linear_attention" if index % 2 else "full_attention" for index in range(count)]


def lfm2(config: Config) -> Architecture:
    """LFM2: short convolutions over the model's width, and grouped attention."""
    count = count_layers(config)
    types = layer_types(config, count)
    if types is None:
        listed = set(config.wholes("full_attn_idxs") if config.has("full_attn_idxs") else range(count))
        if any(index >= count for index in listed):
            raise config.refuse("full_attn_idxs", f"layers below {count}")
        types = tuple("full_attention" if index in listed else "conv" for index in range(count))
    kernel = config.whole("conv_L_cache", least=2)
    columns = (Plane("columns", config.whole("hidden_size"), 1, "convolution"),)
    provenance = said(config, "conv_L_cache", "hidden_size")
    makers = {
        "full_attention": attention_maker(read_heads(config), Biases()),
        "conv": state_maker(lambda index: (convolution(index, columns, kernel, provenance),), "convolution"),
    }
    return assembled(config, types, makers)
