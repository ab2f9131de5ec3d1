"""Which function reads a config: by its ``model_type``, which is never guessed.

A model of several media nests the config of its language model; that is the one that is read. Families whose code is
not in transformers stand at the end of the table, with fields as their published code reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches

from headwise.plan.architectures import blocks, encoder_decoder, encoders, gemma, latent, linear, mamba, older, zamba
from headwise.plan.architectures.dense import Dense
from headwise.plan.architectures.families import DENSE
from headwise.plan.architectures.fields import LAYERS_KEY
from headwise.plan.config import Config
from headwise.plan.defaults import CLASS_DEFAULTS, ESSENTIAL, REMOTE_DEFAULTS, TRANSFORMERS
from headwise.plan.errors import PlanError
from headwise.plan.layers import Architecture
from headwise.plan.states import Encoder

__all__ = ["FAMILIES", "LISTED", "REFUSED", "WRAPPERS", "architecture_of"]

# Those whose heads headwise may have listed layer by layer.
LISTED = frozenset({"bert", "gemma2", "gpt2", "gpt_neox", "llama", "mistral", "phi3", "qwen2", "qwen3"})

_Family = Callable[[Config], Architecture]
_BERT, _LATENT, _QWEN3_NEXT = encoders.Encoder(), latent.latent_architecture, linear.qwen3_next
_BAILING = Dense(bias="use_qkv_bias", output_bias="use_bias", packed=True)

FAMILIES: dict[str, _Family] = {
    **DENSE,
    "falcon": older.falcon,
    "gpt_bigcode": older.gpt_bigcode,
    "mpt": older.mpt,
    "dbrx": older.dbrx,
    "gemma3_text": gemma.gemma3,
    "gemma3n_text": gemma.gemma3n,
    "gemma4_text": gemma.gemma4,
    "gemma4_unified_text": gemma.gemma4,
    "mimo_v2_flash": blocks.mimo_v2,
    "step3p5": blocks.step3p5,
    "deepseek_v2": latent.deepseek_v2,
    "deepseek_v3": _LATENT,
    "deepseek_v32": latent.sparse_latent,
    "glm_moe_dsa": latent.sparse_latent,
    "glm4_moe_lite": _LATENT,
    "minicpm3": _LATENT,
    "mistral4": _LATENT,
    "axk1": _LATENT,
    "sarvam_mla": _LATENT,
    "youtu": _LATENT,
    "longcat_flash": _LATENT,
    "mamba": mamba.mamba_1_model,
    "falcon_mamba": mamba.mamba_1_model,
    "mamba2": mamba.mamba_2_model,
    "jamba": mamba.jamba,
    "bamba": mamba.bamba,
    "granitemoehybrid": mamba.granite_hybrid,
    "falcon_h1": mamba.falcon_h1,
    "nemotron_h": mamba.nemotron_h,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5_text": _QWEN3_NEXT,
    "qwen3_5_moe_text": _QWEN3_NEXT,
    "olmo_hybrid": linear.olmo_hybrid,
    "kimi_linear": linear.kimi_linear,
    "minimax": linear.minimax,
    "lfm2": linear.lfm2,
    "lfm2_moe": linear.lfm2,
    "zamba": zamba.zamba,
    "zamba2": zamba.zamba2,
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
    "electra": _BERT,
    "mpnet": _BERT,
    "distilbert": encoders.Encoder(
        ("dim", "hidden_size"), ("n_layers", "num_hidden_layers"), ("n_heads", "num_attention_heads")
    ),
    "albert": encoders.albert,
    "modernbert": encoders.modernbert,
    "t5": encoder_decoder.t5,
    "mt5": encoder_decoder.t5,
    "umt5": encoder_decoder.t5,
    "bart": encoder_decoder.bart,
    "mbart": encoder_decoder.bart,
    "pegasus": encoder_decoder.bart,
    "marian": encoder_decoder.bart,
    "m2m_100": encoder_decoder.bart,
    "blenderbot": encoder_decoder.bart,
    "blenderbot-small": encoder_decoder.bart,
    "whisper": encoder_decoder.whisper,
    "mllama_text_model": encoder_decoder.mllama,
    # Not in transformers: read as their published code reads them.
    "RefinedWeb": older.falcon,
    "RefinedWebModel": older.falcon,
    "Yi": Dense(),
    "bailing_moe": _BAILING,
    "bailing_moe_v2": _BAILING,
    "baichuan": Dense(kv_heads=(), head_dim=(), packed=True, context=("model_max_length", "max_position_embeddings")),
    "chatglm": older.chatglm,
    "deci": blocks.deci,
    "deepseek": DENSE["llama"],
    "hunyuan": blocks.hunyuan,
    "internlm": Dense(bias="bias"),
    "internlm2": Dense(bias="bias", packed=True),
    "kimi_k2": _LATENT,
    "mimo": DENSE["qwen2"],
    "mimo_v2": blocks.mimo_v2,
    "minicpm": DENSE["llama"],
    "minimax_m1": linear.minimax,
    "minimax_text_01": linear.minimax,
    "nemotron-nas": blocks.nemotron_nas,
    "openelm": blocks.openelm,
    "phi4mm": DENSE["phi4_multimodal"],
    "qwen": Dense(
        kv_heads=(), head_dim=("kv_channels",), bias=True, output_bias=False, packed=True, context=("seq_length",)
    ),
    "stablelm_epoch": DENSE["stablelm"],
    "step3_text": blocks.step3,
}

# Outer model type -> (name of the nested config, its model type where it doesn't say).
WRAPPERS: dict[str, tuple[str, str]] = {
    "aria": ("text_config", "aria_text"),
    "audioflamingo3": ("text_config", "qwen2"),
    "aya_vision": ("text_config", "cohere2"),
    "blip-2": ("text_config", "opt"),
    "cohere2_vision": ("text_config", "cohere2"),
    "deepseek_vl": ("text_config", "llama"),
    "deepseek_vl_hybrid": ("text_config", "llama"),
    "exaone4_5": ("text_config", "exaone4"),
    "fast_vlm": ("text_config", "qwen2"),
    "fuyu": ("text_config", "persimmon"),
    "gemma3": ("text_config", "gemma3_text"),
    "gemma3n": ("text_config", "gemma3n_text"),
    "gemma4": ("text_config", "gemma4_text"),
    "gemma4_unified": ("text_config", "gemma4_unified_text"),
    "glm46v": ("text_config", "glm4v_text"),
    "glm4v": ("text_config", "glm4v_text"),
    "glm4v_moe": ("text_config", "glm4v_moe_text"),
    "got_ocr2": ("text_config", "qwen2"),
    "granite_speech": ("text_config", "granite"),
    "hyperclovax_vision_v2": ("text_config", "hyperclovax"),
    "idefics2": ("text_config", "mistral"),
    "idefics3": ("text_config", "llama"),
    "instructblip": ("text_config", "opt"),
    "internvl": ("text_config", "qwen2"),
    "janus": ("text_config", "llama"),
    "kimi_k25": ("text_config", "deepseek_v3"),
    "lfm2_vl": ("text_config", "lfm2"),
    "lighton_ocr": ("text_config", "qwen3"),
    "llama4": ("text_config", "llama4_text"),
    "llava": ("text_config", "llama"),
    "llava_next": ("text_config", "llama"),
    "llava_next_video": ("text_config", "llama"),
    "llava_onevision": ("text_config", "qwen2"),
    "mistral3": ("text_config", "mistral"),
    "mllama": ("text_config", "mllama_text_model"),
    "nemotron_h_omni": ("text_config", "nemotron_h"),
    "ovis2": ("text_config", "qwen2"),
    "paligemma": ("text_config", "gemma"),
    "perception_lm": ("text_config", "llama"),
    "qwen2_5_omni": ("thinker_config", "qwen2_5_omni_thinker"),
    "qwen2_5_omni_thinker": ("text_config", "qwen2_5_omni_text"),
    "qwen2_5_vl": ("text_config", "qwen2_5_vl_text"),
    "qwen2_audio": ("text_config", "qwen2"),
    "qwen2_vl": ("text_config", "qwen2_vl_text"),
    "qwen3_5": ("text_config", "qwen3_5_text"),
    "qwen3_5_moe": ("text_config", "qwen3_5_moe_text"),
    "qwen3_omni_moe": ("thinker_config", "qwen3_omni_moe_thinker"),
    "qwen3_omni_moe_thinker": ("text_config", "qwen3_omni_moe_text"),
    "qwen3_vl": ("text_config", "qwen3_vl_text"),
    "qwen3_vl_moe": ("text_config", "qwen3_vl_moe_text"),
    "shieldgemma2": ("text_config", "gemma3_text"),
    "smolvlm": ("text_config", "llama"),
    "step3p7": ("text_config", "step3p5"),
    "video_llava": ("text_config", "llama"),
    "vipllava": ("text_config", "llama"),
    "voxtral": ("text_config", "llama"),
    # Not in transformers.
    "deepseek_vl_v2": ("language_config", "deepseek_v2"),
    "internvl_chat": ("llm_config", ""),
    "kimi_vl": ("text_config", "deepseek_v3"),
    "step3_vl": ("text_config", "step3_text"),
}

# Families whose layers may have fields of their own.
PER_LAYER = frozenset(("gemma4_text", "gemma4_unified_text", "step3p5"))

# Known, and deliberately not planned: a number would be wrong.
REFUSED: dict[str, str] = {
    "deepseek_v4": "its layers compress tokens by ratios of their own (compress_ratios) and keep unfinished blocks",
    "qwen4_exp": "its layers keep keys compressed by blocks",
    "qwen4_exp_text": "its layers keep keys compressed by blocks",
    "minimax_m3_vl": "its sparse layers keep keys of blocks beside those of tokens",
    "minimax_m3_vl_text": "its sparse layers keep keys of blocks beside those of tokens",
    "mistral_large4": "its layers share states and indexers by lists of their own",
    "rwkv": "it keeps neither keys nor values, and its state is not described here",
    "recurrent_gemma": "its recurrent state lies outside the cache and is not described here",
    "reformer": "its attention hashes tokens into buckets",
}


def architecture_of(config: Config) -> Architecture:
    """What the model of ``config`` keeps and computes.

    Raises:
        PlanError: its ``model_type`` isn't known, a field is missing, or fields contradict each other.
    """
    model_type = config.model_type
    if model_type in REFUSED:
        raise PlanError(f"{config.place('model_type')}: {model_type} can't be planned: {REFUSED[model_type]}")
    if config.has(LAYERS_KEY) and model_type not in LISTED:
        known = f"headwise writes it for {', '.join(sorted(LISTED))} only"
        raise config.refuse(LAYERS_KEY, f"none in a {model_type[:60]}", known)
    if model_type in WRAPPERS:
        return _wrapped(config, model_type)
    if model_type not in FAMILIES:
        raise _unknown(config, model_type)
    if config.has("per_layer_config") and model_type not in PER_LAYER:
        raise config.refuse("per_layer_config", f"none in a {model_type}", "its layers would differ in ways not known")
    return FAMILIES[model_type](_with_class_defaults(config, model_type))


def _wrapped(config: Config, model_type: str) -> Architecture:
    """The nested language model, under the name of the outer one."""
    name, usual = WRAPPERS[model_type]
    if not config.has(name):
        # The first releases of some families lay flat.
        inner = config.named(usual or model_type)
    else:
        nested = config.nested(name)
        inner = nested if nested.maybe_text("model_type") else nested.named(usual)
    architecture = _mllama(config, inner) if model_type == "mllama" else architecture_of(inner)
    return replace(architecture, model_type=model_type)


def _mllama(config: Config, inner: Config) -> Architecture:
    known = _with_class_defaults(inner, "mllama_text_model")
    return encoder_decoder.mllama(known, Encoder(encoder_decoder.mllama_image_tokens(config)))


def _with_class_defaults(config: Config, model_type: str) -> Config:
    """The config with what its class adds.

    A whole config always names the sizes that make up the model, since saving writes them; a nested one leaves out
    those that equal its class's.
    """
    if model_type in CLASS_DEFAULTS:
        source, defaults = CLASS_DEFAULTS[model_type]
        source = f"{source} of {TRANSFORMERS}"
    else:
        source, defaults = REMOTE_DEFAULTS.get(model_type, ("", {}))
    if config.where:
        return config.with_defaults(defaults, source)
    taken = {name: value for name, value in defaults.items() if name not in ESSENTIAL}
    return config.with_defaults(taken, source, withheld=ESSENTIAL & defaults.keys())


def _unknown(config: Config, model_type: str) -> PlanError:
    near = get_close_matches(model_type, [*FAMILIES, *WRAPPERS], n=3, cutoff=0.6)
    known = f"near it are {', '.join(near)}" if near else "none of the known ones is near it"
    return PlanError(
        f"{config.place('model_type')}: expected an architecture that headwise plan knows, got {model_type[:60]!r}; "
        f"{known}"
    )
