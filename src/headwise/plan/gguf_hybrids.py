"""Rows of GGUF architectures with recurrent layers: Mamba, Jamba, Nemotron-H and the gated delta nets of Qwen.

``ssm.*`` of llama.cpp means other things for each: for Mamba 2 ``time_step_rank`` is the number of heads, for gated
delta nets that of value heads, with ``group_count`` key heads of ``state_size``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headwise.plan.gguf_keys import Keys

__all__ = ["HYBRIDS"]

Fields = dict[str, Any]


def _divided(keys: Keys, whole: str, parts: str) -> int:
    size, count = keys.whole(whole), keys.whole(parts)
    if size % count:
        raise keys.refuse(parts, f"a divisor of {whole} = {size}")
    return size // count


def _attention(keys: Keys) -> Fields:
    heads = keys.same("attention.head_count")
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": keys.kv_heads(),
        "head_dim": keys.head_dim(heads),
        "attention_bias": "attn_q.bias" in keys.tensors,
    }


def _mamba(keys: Keys) -> Fields:
    return {
        **keys.sizes(),
        "model_type": "mamba",
        "state_size": keys.whole("ssm.state_size"),
        "conv_kernel": keys.whole("ssm.conv_kernel"),
        "intermediate_size": keys.whole("ssm.inner_size"),
        "expand": _divided(keys, "ssm.inner_size", "embedding_length"),
        "time_step_rank": keys.whole("ssm.time_step_rank"),
    }


def _mamba2(keys: Keys) -> Fields:
    return {
        **keys.sizes(),
        "model_type": "mamba2",
        "state_size": keys.whole("ssm.state_size"),
        "conv_kernel": keys.whole("ssm.conv_kernel"),
        "expand": _divided(keys, "ssm.inner_size", "embedding_length"),
        "num_heads": keys.whole("ssm.time_step_rank"),
        "head_dim": _divided(keys, "ssm.inner_size", "ssm.time_step_rank"),
        "n_groups": keys.whole("ssm.group_count"),
    }


def _jamba(keys: Keys) -> Fields:
    """The file has KV heads for each layer, the config a period: it is the distance between two attention layers."""
    kv_heads = keys.each("attention.head_count_kv", keys.layers())
    attention = [index for index, count in enumerate(kv_heads) if count]
    if not attention:
        raise keys.refuse("attention.head_count_kv", "at least one layer with attention")
    period = attention[1] - attention[0] if len(attention) > 1 else len(kv_heads)
    if attention != list(range(attention[0], len(kv_heads), period)) or attention[0] >= period:
        raise keys.refuse("attention.head_count_kv", "attention layers in equal distances")
    return {
        **keys.sizes(),
        **_attention(keys),
        "model_type": "jamba",
        "attn_layer_period": period,
        "attn_layer_offset": attention[0],
        "mamba_d_state": keys.whole("ssm.state_size"),
        "mamba_d_conv": keys.whole("ssm.conv_kernel"),
        "mamba_expand": _divided(keys, "ssm.inner_size", "embedding_length"),
        "mamba_dt_rank": keys.whole("ssm.time_step_rank"),
    }


def _nemotron_h(keys: Keys) -> Fields:
    """A layer is attention where it has KV heads, an MLP where it has a width for that, else Mamba 2."""
    count = keys.layers()
    kv_heads, widths = (keys.each(name, count) for name in ("attention.head_count_kv", "feed_forward_length"))
    kinds = ("*" if heads else "-" if width else "M" for heads, width in zip(kv_heads, widths, strict=True))
    return {
        **keys.sizes(),
        **_attention(keys),
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "".join(kinds),
        "ssm_state_size": keys.whole("ssm.state_size"),
        "conv_kernel": keys.whole("ssm.conv_kernel"),
        "mamba_num_heads": keys.whole("ssm.time_step_rank"),
        "mamba_head_dim": _divided(keys, "ssm.inner_size", "ssm.time_step_rank"),
        "n_groups": keys.whole("ssm.group_count"),
    }


def _gated_delta(model_type: str) -> Callable[[Keys], Fields]:
    """Every ``full_attention_interval``-th layer is attention, the fourth unless the file says otherwise."""

    def row(keys: Keys) -> Fields:
        period = keys.maybe_whole("full_attention_interval") or 4
        count = keys.layers()
        return {
            **keys.sizes(),
            **_attention(keys),
            "model_type": model_type,
            "full_attention_interval": period,
            "layer_types": ["linear_attention" if (index + 1) % period else "full_attention" for index in range(count)],
            "linear_conv_kernel_dim": keys.whole("ssm.conv_kernel"),
            "linear_num_key_heads": keys.whole("ssm.group_count"),
            "linear_key_head_dim": keys.whole("ssm.state_size"),
            "linear_num_value_heads": keys.whole("ssm.time_step_rank"),
            "linear_value_head_dim": _divided(keys, "ssm.inner_size", "ssm.time_step_rank"),
        }

    return row


HYBRIDS: dict[str, Callable[[Keys], Fields]] = {
    "mamba": _mamba,
    "mamba2": _mamba2,
    "jamba": _jamba,
    "nemotron_h": _nemotron_h,
    "nemotron_h_moe": _nemotron_h,
    "qwen3next": _gated_delta("qwen3_next"),
    "qwen35": _gated_delta("qwen3_5_text"),
    "qwen35moe": _gated_delta("qwen3_5_moe_text"),
}
