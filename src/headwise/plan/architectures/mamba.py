"""Mamba 1 and 2, and hybrids of them with attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headwise.plan.architectures.assembly import Maker, assembled, attention_maker, state_maker
from headwise.plan.architectures.fields import count_layers, layer_types, read_heads
from headwise.plan.architectures.parts import Biases, grouped_layer, grouped_projections
from headwise.plan.architectures.recurrent import mamba1, mamba2
from headwise.plan.config import Config
from headwise.plan.layers import Architecture, Layer
from headwise.plan.states import Grows, State

__all__ = ["bamba", "falcon_h1", "granite_hybrid", "jamba", "mamba_1_model", "mamba_2_model", "nemotron_h"]


def mamba_1_model(config: Config) -> Architecture:
    """Mamba and Falcon Mamba: nothing but selective scans."""
    count = count_layers(config, "num_hidden_layers", "n_layer")
    width = ("hidden_size", "d_model")
    mixer = mamba1(config, expand="expand", kernel="conv_kernel", state="state_size", width=width)
    return assembled(config, ["mamba"] * count, {"mamba": state_maker(mixer.states, "mamba")})


def mamba_2_model(config: Config) -> Architecture:
    """Mamba 2."""
    count = count_layers(config, "num_hidden_layers", "n_layer")
    inner = config.whole("expand") * config.whole("hidden_size")
    mixer = mamba2(
        config,
        heads="num_heads",
        head_dim="head_dim",
        groups=("n_groups",),
        kernel=("conv_kernel",),
        state="state_size",
        inner=inner,
        inner_name="expand x hidden_size",
    )
    return assembled(config, ["mamba"] * count, {"mamba": state_maker(mixer.states, "mamba")})


def jamba(config: Config) -> Architecture:
    """Jamba: one layer of attention in each period, Mamba 1 in the others."""
    count = count_layers(config)
    period, offset = config.whole("attn_layer_period"), config.whole("attn_layer_offset", least=0)
    if offset >= period:
        raise config.refuse("attn_layer_offset", f"less than attn_layer_period = {period}")
    mixer = mamba1(config, expand="mamba_expand", kernel="mamba_d_conv", state="mamba_d_state")
    makers = {
        "full_attention": attention_maker(read_heads(config), Biases()),
        "mamba": state_maker(mixer.states, "mamba"),
    }
    types = ["full_attention" if index % period == offset else "mamba" for index in range(count)]
    return assembled(config, types, makers)


def _bamba_mixer(config: Config, inner: int, name: str) -> Callable[[int], tuple[State, ...]]:
    mixer = mamba2(
        config,
        heads="mamba_n_heads",
        head_dim="mamba_d_head",
        groups=("mamba_n_groups",),
        kernel=("mamba_d_conv",),
        state="mamba_d_state",
        inner=inner,
        inner_name=name,
    )
    return mixer.states


def _expanded(config: Config) -> int:
    return config.whole("mamba_expand") * config.whole("hidden_size")


def bamba(config: Config) -> Architecture:
    """Bamba: attention in the layers of a list, Mamba 2 in the others."""
    count = count_layers(config)
    listed = set(config.wholes("attn_layer_indices")) if config.has("attn_layer_indices") else set()
    if any(index >= count for index in listed):
        raise config.refuse("attn_layer_indices", f"layers below {count}")
    states = _bamba_mixer(config, _expanded(config), "mamba_expand x hidden_size")
    makers = {
        "full_attention": attention_maker(read_heads(config), Biases.of(config.flag("attention_bias"))),
        "linear_attention": state_maker(states, "mamba"),
    }
    types = ["full_attention" if index in listed else "linear_attention" for index in range(count)]
    return assembled(config, types, makers)


def granite_hybrid(config: Config) -> Architecture:
    """Granite 4: ``layer_types`` of attention and Mamba 2; all Mamba where it is absent."""
    count = count_layers(config)
    types = layer_types(config, count, "layer_types", "layers_block_type") or ("linear_attention",) * count
    makers = {"full_attention": attention_maker(read_heads(config), Biases.of(config.flag("attention_bias")))}
    if "linear_attention" in types:
        states = _bamba_mixer(config, _expanded(config), "mamba_expand x hidden_size")
        makers["linear_attention"] = state_maker(states, "mamba")
    return assembled(config, types, makers)


def falcon_h1(config: Config) -> Architecture:
    """Falcon H1: attention and Mamba 2 side by side in every layer."""
    count, heads = count_layers(config), read_heads(config)
    inner = config.maybe_whole("mamba_d_ssm")
    name = "mamba_d_ssm"
    if inner is None:
        inner, name = _expanded(config), "mamba_expand x hidden_size"
    states = _bamba_mixer(config, inner, name)
    projections = grouped_projections(heads, Biases.of(config.flag("attention_bias")))

    def layer(index: int) -> Layer:
        return grouped_layer(index, heads, Grows(), projections, others=states(index), kind="attention and mamba")

    return assembled(config, ["hybrid"] * count, {"hybrid": layer})


_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}


def nemotron_h(config: Config) -> Architecture:
    """Nemotron-H: each layer is one of Mamba 2, attention, an MLP, experts."""
    types = _nemotron_types(config)
    heads = read_heads(config, head_dim=("head_dim", "attention_head_dim"))
    mixer = mamba2(
        config,
        heads="mamba_num_heads",
        head_dim="mamba_head_dim",
        groups=("n_groups", "mamba_n_groups"),
        kernel=("conv_kernel", "mamba_d_conv"),
        state="ssm_state_size",
    )
    makers: dict[str, Maker] = {
        # The class has the flag attention_bias, and doesn't read it.
        "full_attention": attention_maker(heads, Biases()),
        "linear_attention": state_maker(mixer.states, "mamba"),
        "mlp": lambda index: Layer(index, "mlp"),
        "moe": lambda index: Layer(index, "moe"),
    }
    return assembled(config, types, makers)


def _nemotron_types(config: Config) -> Sequence[str]:
    """A list, or a string with a letter for each layer; the number of layers must be theirs where it is given."""
    name = "hybrid_override_pattern"
    count = config.maybe_whole("num_hidden_layers", most=10_000)
    for listed in ("layers_block_type", "layer_types"):
        if config.has(listed):
            length = len(config.texts(listed))
            return layer_types(config, count or length, listed) or ()
    pattern = config.text(name)
    if set(pattern) - set(_LETTERS) or (count is not None and len(pattern) != count):
        raise config.refuse(name, f"one of {' '.join(_LETTERS)} for each of {count or 'the'} layers")
    return [_LETTERS[letter] for letter in pattern]
