"""The rows of the decoders that are all grouped attention, by ``model_type``."""

from __future__ import annotations

from collections.abc import Sequence

from headwise.plan.architectures.dense import Dense
from headwise.plan.architectures.fields import (
    every,
    extents_of,
    layer_types,
    sliding_layers,
    typed_layers,
)
from headwise.plan.config import Config
from headwise.plan.states import Extent, Grows, Window

__all__ = ["DENSE"]


def _behind_max_window_layers(config: Config, count: int) -> Sequence[str]:
    """Qwen2 and its kin: the window lives in the layers from ``max_window_layers`` on."""
    first = config.whole("max_window_layers", least=0)
    return ["sliding_attention" if index >= first else "full_attention" for index in range(count)]


def _qwen_layers(config: Config, count: int) -> tuple[Extent, ...]:
    """A window only where ``use_sliding_window`` says so, whatever ``sliding_window`` holds."""
    if not config.flag("use_sliding_window") or config.maybe_whole("sliding_window", least=0) is None:
        types = layer_types(config, count)
        if types is not None and "sliding_attention" in types:
            raise config.refuse("use_sliding_window", "true, since layer_types has sliding layers")
        return (Grows(),) * count
    return typed_layers(_behind_max_window_layers)(config, count)


def _qwen2_moe_layers(config: Config, count: int) -> tuple[Extent, ...]:
    """Here the window lives in every second layer below ``max_window_layers``."""

    def types(config: Config, count: int) -> Sequence[str]:
        last = config.whole("max_window_layers", least=0)
        return ["full_attention" if index % 2 or index >= last else "sliding_attention" for index in range(count)]

    if not config.flag("use_sliding_window"):
        return (Grows(),) * count
    return typed_layers(types)(config, count)


def _switched_sliding_layers(config: Config, count: int) -> tuple[Extent, ...]:
    """The same window in all layers, if ``use_sliding_window`` says so."""
    return sliding_layers(config, count) if config.flag("use_sliding_window") else (Grows(),) * count


def _smollm3_types(config: Config, count: int) -> Sequence[str]:
    """SmolLM3: layers without rotary embeddings slide, if the window is on."""
    on = config.flag("use_sliding_window") and config.maybe_whole("sliding_window") is not None
    if not on:
        return ["full_attention"] * count
    step = config.whole("no_rope_layer_interval")
    rope = (
        config.wholes("no_rope_layers", count)
        if config.has("no_rope_layers")
        else [int((index + 1) % step != 0) for index in range(count)]
    )
    return ["full_attention" if each else "sliding_attention" for each in rope]


def _exaone_types(config: Config, count: int) -> Sequence[str]:
    """EXAONE 4: the pattern is a number, or letters of which ``L`` is local; none without a window."""
    if config.maybe_whole("sliding_window") is None:
        return ["full_attention"] * count
    pattern = config.data.get("sliding_window_pattern")
    if isinstance(pattern, str):
        letters = config.text("sliding_window_pattern")
        return [
            "sliding_attention" if letters[index % len(letters)] == "L" and index != count - 1 else "full_attention"
            for index in range(count)
        ]
    step = config.whole("sliding_window_pattern")
    return ["full_attention" if (index + 1) % step == 0 else "sliding_attention" for index in range(count)]


def _windowed_or_full(config: Config, count: int) -> Sequence[str]:
    """All layers slide if there is a window."""
    windowed = config.maybe_whole("sliding_window") is not None
    return ["sliding_attention" if windowed else "full_attention"] * count


def _all_full(config: Config, count: int) -> Sequence[str]:
    """All layers see everything where ``layer_types`` doesn't say otherwise."""
    return ["full_attention"] * count


def _cohere2_moe_types(config: Config, count: int) -> Sequence[str]:
    """Dense layers in front have a pattern of their own; both count from their first layer."""
    front = config.maybe_whole("first_k_dense_replace", least=0, most=count) or 0
    own, rest = config.whole("prefix_dense_sliding_window_pattern"), config.whole("sliding_window_pattern")
    last = [(index + 1) % own == 0 for index in range(front)]
    last += [(index + 1) % rest == 0 for index in range(count - front)]
    return ["full_attention" if full else "sliding_attention" for full in last]


def _llama4_types(config: Config, count: int) -> Sequence[str]:
    """Llama 4: layers with rotary embeddings see their chunk, the others everything."""
    if config.maybe_whole("attention_chunk_size") is None:
        return ["full_attention"] * count
    if config.has("no_rope_layers") and config.data.get("no_rope_layers") != []:
        rope: Sequence[int] = config.wholes("no_rope_layers", count)
    else:
        step = config.whole("no_rope_layer_interval")
        rope = [int((index + 1) % step != 0) for index in range(count)]
    return ["chunked_attention" if each else "full_attention" for each in rope]


def _gpt_neo_layers(config: Config, count: int) -> tuple[Extent, ...]:
    """GPT-Neo: ``attention_types`` is a list of patterns and how often each is repeated."""
    if config.has("attention_layers"):
        names: Sequence[str] = config.texts("attention_layers", count)
    else:
        names = _gpt_neo_names(config, count)
    types = [{"global": "full_attention", "local": "sliding_attention"}.get(name, name) for name in names]
    full, window = Grows(), Window(config.whole("window_size"))
    extents_of(config, [kind for kind in types if kind != "sliding_attention"], "attention_types")
    return tuple(window if kind == "sliding_attention" else full for kind in types)


def _gpt_neo_names(config: Config, count: int) -> Sequence[str]:
    names: list[str] = []
    types = config.data.get("attention_types", [[["global", "local"], 12]])
    try:
        for pattern, times in types:
            if not isinstance(times, int) or not 0 < times * len(pattern) <= count:
                raise ValueError
            names += [str(name) for name in pattern] * times
    except (TypeError, ValueError):
        raise config.refuse("attention_types", "a list of patterns, each with how often it is repeated") from None
    if len(names) != count:
        raise config.refuse("attention_types", f"patterns of {count} layers together")
    return names


def _gpt(*, bias: bool, packed: bool) -> Dense:
    """The names that GPT-2 gave its fields."""
    return Dense(
        width=("n_embd", "hidden_size"),
        layers=("n_layer", "num_hidden_layers"),
        heads=("n_head", "num_attention_heads"),
        kv_heads=(),
        head_dim=(),
        bias=bias,
        packed=packed,
        context=("n_positions", "max_position_embeddings"),
    )


_LLAMA = Dense(bias="attention_bias")
_PLAIN = Dense()
_GLM = Dense(bias="attention_bias", output_bias=False)
_QWEN3_MOE = Dense(bias="attention_bias", pattern=_switched_sliding_layers)
_ERNIE = Dense(bias="use_bias")

DENSE: dict[str, Dense] = {
    "llama": _LLAMA,
    "mistral": Dense(pattern=sliding_layers),
    "mixtral": Dense(pattern=sliding_layers),
    "ministral": Dense(pattern=typed_layers(_windowed_or_full)),
    "ministral3": Dense(pattern=sliding_layers),
    "qwen2": Dense(bias=True, output_bias=False, pattern=_qwen_layers),
    "qwen2_moe": Dense(bias="qkv_bias", output_bias=False, pattern=_qwen2_moe_layers),
    "qwen2_vl_text": Dense(head_dim=(), bias=True, output_bias=False, pattern=_qwen_layers),
    "qwen2_5_vl_text": Dense(head_dim=(), bias=True, output_bias=False, pattern=_qwen_layers),
    "qwen2_5_omni_text": Dense(head_dim=(), bias=True, output_bias=False, pattern=_qwen_layers),
    "qwen3_omni_moe_text": Dense(bias="attention_bias", pattern=sliding_layers),
    "qwen3": Dense(bias="attention_bias", pattern=_qwen_layers),
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_text": _LLAMA,
    "qwen3_vl_moe_text": _LLAMA,
    "gemma": _LLAMA,
    "gemma2": Dense(bias="attention_bias", pattern=typed_layers(every(2))),
    "vaultgemma": Dense(bias="attention_bias", pattern=typed_layers(every(2))),
    "phi": Dense(bias=True),
    "phi3": Dense(packed=True, pattern=sliding_layers),
    "phi4_multimodal": Dense(packed=True, pattern=sliding_layers),
    "phimoe": Dense(bias="attention_bias", pattern=sliding_layers),
    "gpt2": _gpt(bias=True, packed=True),
    "gptj": _gpt(bias=False, packed=False),
    "codegen": _gpt(bias=False, packed=True),
    "gpt_neo": Dense(
        layers=("num_layers", "num_hidden_layers"),
        heads=("num_heads", "num_attention_heads"),
        kv_heads=(),
        head_dim=(),
        output_bias=True,
        pattern=_gpt_neo_layers,
    ),
    "gpt_neox": Dense(kv_heads=(), head_dim=(), bias="attention_bias", packed=True),
    "opt": Dense(kv_heads=(), head_dim=(), bias="enable_bias"),
    "bloom": Dense(
        width=("hidden_size", "n_embed"),
        layers=("n_layer", "num_hidden_layers"),
        heads=("n_head", "num_attention_heads"),
        kv_heads=(),
        head_dim=(),
        bias=True,
        packed=True,
        context=(),
    ),
    "starcoder2": Dense(bias="use_bias", pattern=sliding_layers),
    "stablelm": Dense(head_dim=(), bias="use_qkv_bias", output_bias=False),
    "persimmon": Dense(kv_heads=(), head_dim=(), bias=True, packed=True),
    "olmo": _LLAMA,
    "olmo2": _LLAMA,
    "olmo3": Dense(bias="attention_bias", pattern=typed_layers(every(4))),
    "olmoe": _LLAMA,
    "flex_olmo": _LLAMA,
    "granite": _LLAMA,
    "granitemoe": _LLAMA,
    "granitemoeshared": _LLAMA,
    "granite_swa": Dense(bias="attention_bias", pattern=typed_layers(every(4, first=True))),
    "granitemoe_swa": Dense(bias="attention_bias", pattern=typed_layers(every(4, first=True))),
    "cohere": _LLAMA,
    "cohere2": Dense(head_dim=(), bias="attention_bias", pattern=typed_layers(every(4, name="sliding_window_pattern"))),
    "cohere2_moe": Dense(bias="attention_bias", pattern=typed_layers(_cohere2_moe_types)),
    "mellum": Dense(bias="attention_bias", pattern=typed_layers(_all_full)),
    "gpt_oss": Dense(bias="attention_bias", pattern=typed_layers(every(2))),
    "llama4_text": Dense(bias="attention_bias", pattern=typed_layers(_llama4_types)),
    "glm": _GLM,
    "glm4": _GLM,
    "glm4_moe": _GLM,
    "glm4v_text": Dense(head_dim=(), bias=True, output_bias=False),
    "glm4v_moe_text": _GLM,
    "sarvam_moe": Dense(bias=("attention_bias", "use_qkv_bias"), output_bias=False),
    "minimax_m2": _PLAIN,
    "nemotron": _LLAMA,
    "smollm3": Dense(bias="attention_bias", pattern=typed_layers(_smollm3_types)),
    "exaone": Dense(layers=("num_hidden_layers", "num_layers"), bias="attention_bias"),
    "internlm3": Dense(bias=("attention_bias", "qkv_bias")),
    "exaone4": Dense(pattern=typed_layers(_exaone_types)),
    "exaone_moe": Dense(pattern=typed_layers(_exaone_types)),
    "ernie4_5": _ERNIE,
    "ernie4_5_moe": _ERNIE,
    "hunyuan_v1_dense": _LLAMA,
    "hunyuan_v1_moe": _LLAMA,
    "seed_oss": Dense(bias="attention_bias", output_bias="attention_out_bias"),
    "arcee": _LLAMA,
    "aria_text": _LLAMA,
    "hyperclovax": _LLAMA,
    "iquestcoder": _LLAMA,
    "apertus": _LLAMA,
    "dots1": Dense(bias="attention_bias", pattern=typed_layers(_behind_max_window_layers)),
    "afmoe": Dense(
        bias="attention_bias", gate="element", pattern=typed_layers(every(4, name="global_attn_every_n_layers"))
    ),
    "cwm": Dense(pattern=typed_layers(every(4, first=True))),
    "bitnet": _LLAMA,
    "helium": Dense(bias="attention_bias", output_bias=False),
    "hy_v3": _LLAMA,
    "jais2": _LLAMA,
    "nanochat": _LLAMA,
    "solar_open": _GLM,
    "biogpt": Dense(kv_heads=(), head_dim=(), bias=True),
    "xglm": Dense(
        width=("d_model", "hidden_size"),
        layers=("num_layers", "num_hidden_layers"),
        heads=("attention_heads", "num_attention_heads"),
        kv_heads=(),
        head_dim=(),
        bias=True,
    ),
}
