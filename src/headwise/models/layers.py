"""One attention layer of a known architecture, built from its Hugging Face config.

The state dict of the layer's attention module in transformers loads into it by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from headwise.nn import GroupedQueryAttention, LatentAttention, RotaryEmbedding

__all__ = ["attention_layer"]


def attention_layer(
    config: Any,
    layer: int = 0,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> GroupedQueryAttention | LatentAttention:
    """The attention of layer ``layer``, with fresh weights.

    >>> layer = attention_layer(model.config, 3)
    >>> layer.load_state_dict(model.model.layers[3].self_attn.state_dict())
    >>> layer(hidden, causal=True).output

    Args:
        config: a config of transformers, or anything with its attributes.
        layer: from 0; layers differ in windows and rotary embedding in some architectures.
        device, dtype: of the parameters.

    Returns:
        A layer to be called with ``causal=True``. Windows are part of it.

    Raises:
        TypeError: ``config`` is none.
        ValueError: the architecture, or one of its settings, is one that the layers don't have; it is named.
        IndexError: there is no such layer.
    """
    if not hasattr(config, "model_type"):
        raise TypeError(
            f"attention_layer: expected a config of transformers, got {type(config).__name__}; that of a model is "
            "model.config, that of a folder AutoConfig.from_pretrained(folder)"
        )
    build = _ARCHITECTURES.get(config.model_type)
    if build is None:
        raise ValueError(
            f"attention_layer: expected model_type to be one of {', '.join(sorted(_ARCHITECTURES))}, got "
            f"{config.model_type!r}; build a layer of headwise.nn by hand, or pass config.text_config of a larger model"
        )
    if not 0 <= layer < config.num_hidden_layers:
        raise IndexError(f"attention_layer: expected layer 0 to {config.num_hidden_layers - 1}, got {layer}")
    _refuse(config, "attention_dropout", 0.0)
    _refuse(config, "use_bidirectional_attention", False)
    return build(config, layer, device=device, dtype=dtype)


def _refuse(config: Any, name: str, harmless: Any) -> None:
    """Refuse a setting that changes the result in a way that no layer of headwise knows."""
    given = getattr(config, name, None)
    if given is not None and given != harmless:
        raise ValueError(
            f"attention_layer: expected {name}={harmless} in a config of {config.model_type}, got {given!r}, which "
            "headwise's layers don't have; run the model through transformers"
        )


def _grouped(config: Any, layer: int, **options: Any) -> GroupedQueryAttention:
    """What all have in common; ``bias`` follows ``attention_bias`` unless it is given."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    usual: dict[str, Any] = {
        "bias": getattr(config, "attention_bias", False),
        "window": _layer_window(config, layer),
        "rope": _rope(config, layer, head_dim, device=options["device"]),
    }
    heads = config.num_attention_heads, config.num_key_value_heads
    return GroupedQueryAttention(config.hidden_size, *heads, head_dim, **usual | options)


def _rope(config: Any, layer: int, width: int, **options: Any) -> RotaryEmbedding:
    parameters = dict(config.rope_parameters)
    kind = _layer_type(config, layer)
    if kind in parameters:  # one set for each type of layer
        parameters = dict(parameters[kind])
    base = parameters.pop("rope_theta")
    if parameters.pop("partial_rotary_factor", 1.0) not in (None, 1.0):
        raise ValueError(
            f"attention_layer: expected partial_rotary_factor=1.0 in a config of {config.model_type}, got a part; "
            "pass rope= with rotary_dim to a layer of headwise.nn"
        )
    return RotaryEmbedding(width, base, scaling=parameters, **options)


def _layer_type(config: Any, layer: int) -> str | None:
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return None
    if kinds[layer] not in ("full_attention", "sliding_attention"):
        raise ValueError(
            f"attention_layer: expected layer {layer} to be full_attention or sliding_attention, got {kinds[layer]!r}"
        )
    return str(kinds[layer])


def _layer_window(config: Any, layer: int) -> tuple[int, int] | None:
    """``sliding_window`` counts a query's own key too."""
    return (config.sliding_window - 1, 0) if _layer_type(config, layer) == "sliding_attention" else None


def _llama(config: Any, layer: int, **made: Any) -> GroupedQueryAttention:
    return _grouped(config, layer, **made)


def _mistral(config: Any, layer: int, **made: Any) -> GroupedQueryAttention:
    # Older than layer_types: one window for all layers.
    window = None if config.sliding_window is None else (config.sliding_window - 1, 0)
    return _grouped(config, layer, **made, bias=False, window=window)


def _qwen2(config: Any, layer: int, **made: Any) -> GroupedQueryAttention:
    return _grouped(config, layer, **made, bias=True, out_bias=False)


def _qwen3(config: Any, layer: int, **made: Any) -> GroupedQueryAttention:
    return _grouped(config, layer, **made, qk_norm=config.rms_norm_eps)


def _gemma2(config: Any, layer: int, **made: Any) -> GroupedQueryAttention:
    return _grouped(
        config, layer, **made, scale=config.query_pre_attn_scalar**-0.5, softcap=config.attn_logit_softcapping
    )


def _gemma3(config: Any, layer: int, **made: Any) -> GroupedQueryAttention:
    # transformers keeps the setting and doesn't read it.
    _refuse(config, "attn_logit_softcapping", None)
    scale = config.query_pre_attn_scalar**-0.5
    return _grouped(config, layer, **made, scale=scale, qk_norm=config.rms_norm_eps, norm_offset=True)


def _gpt_oss(config: Any, layer: int, **made: Any) -> GroupedQueryAttention:
    return _grouped(config, layer, **made, sinks=True)


def _granite(config: Any, layer: int, **made: Any) -> GroupedQueryAttention:
    return _grouped(config, layer, **made, scale=config.attention_multiplier)


def _deepseek_v2(config: Any, layer: int, *, interleaved: bool = True, **made: Any) -> LatentAttention:
    return LatentAttention(
        config.hidden_size,
        config.num_attention_heads,
        latent_dim=config.kv_lora_rank,
        nope_head_dim=config.qk_nope_head_dim,
        rope_head_dim=config.qk_rope_head_dim,
        value_head_dim=config.v_head_dim,
        query_latent_dim=config.q_lora_rank,
        bias=config.attention_bias,
        rope=_rope(config, layer, config.qk_rope_head_dim, interleaved=interleaved, device=made["device"]),
        **made,
    )


def _deepseek_v3(config: Any, layer: int, **made: Any) -> LatentAttention:
    return _deepseek_v2(config, layer, interleaved=config.rope_interleave, **made)


_ARCHITECTURES: dict[str, Callable[..., GroupedQueryAttention | LatentAttention]] = {
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt_oss": _gpt_oss,
    "granite": _granite,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
}
