"""Tiny models with random weights, one of every kind of attention that transformers has built in.

Sizes are different primes wherever an architecture allows it. Weights are large enough for attention to be far from
uniform; as transformers initialises them, a wrong mask would hardly move a logit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

VOCABULARY = 97
LAYERS = 3
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": None,  # greedy decoding goes on for as long as it is asked to
    "pad_token_id": 0,
}
_GROUPED: dict[str, Any] = _COMMON | {
    "hidden_size": 42,
    "intermediate_size": 37,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
}
_ENCODER: dict[str, Any] = _COMMON | {"hidden_size": 35, "intermediate_size": 37, "num_attention_heads": 5}
_ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]


def _without(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: given for name, given in options.items() if name not in names}


def _llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_GROUPED))


def _mistral(window: int | None) -> nn.Module:
    return transformers.MistralForCausalLM(transformers.MistralConfig(**_GROUPED, sliding_window=window))


def _qwen2() -> nn.Module:
    # Its head_dim is hidden_size / heads.
    options = _without(_GROUPED, "head_dim") | {"hidden_size": 36}
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**options))


def _qwen3() -> nn.Module:
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**_GROUPED))


def _gemma2() -> nn.Module:
    config = transformers.Gemma2Config(
        **_GROUPED,
        sliding_window=5,
        layer_types=_ALTERNATING,
        attn_logit_softcapping=2.0,
        query_pre_attn_scalar=7,
    )
    return transformers.Gemma2ForCausalLM(config)


def _gemma3() -> nn.Module:
    config = transformers.Gemma3TextConfig(
        **_GROUPED, sliding_window=5, layer_types=_ALTERNATING, query_pre_attn_scalar=7
    )
    return transformers.Gemma3ForCausalLM(config)


def _gpt_oss() -> nn.Module:
    # The kernel for its experts takes multiples of 16 bytes, and no float64; in plain loops it takes that too.
    sizes = {"hidden_size": 48, "intermediate_size": 36, "num_local_experts": 3, "num_experts_per_tok": 2}
    config = transformers.GptOssConfig(**_GROUPED | sizes, sliding_window=5, layer_types=_ALTERNATING)
    model = transformers.GptOssForCausalLM(config)
    model.set_experts_implementation("eager")
    return model


def _phi3() -> nn.Module:
    options = _without(_GROUPED, "head_dim") | {"hidden_size": 36}
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(**options))


def _gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        **_without(_COMMON, "num_hidden_layers", "max_position_embeddings"),
        n_layer=LAYERS,
        n_head=5,
        n_embd=35,
        n_positions=64,
    )
    return transformers.GPT2LMHeadModel(config)


def _gpt_neox() -> nn.Module:
    config = transformers.GPTNeoXConfig(**_ENCODER | {"hidden_size": 40})
    return transformers.GPTNeoXForCausalLM(config)


def _bert() -> nn.Module:
    return transformers.BertForMaskedLM(transformers.BertConfig(**_ENCODER))


def _albert() -> nn.Module:
    config = transformers.AlbertConfig(**_ENCODER, embedding_size=11, num_hidden_groups=1)
    return transformers.AlbertForMaskedLM(config)


def _t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=23, d_kv=7, d_ff=37, num_layers=LAYERS, num_heads=5,
        relative_attention_num_buckets=11, decoder_start_token_id=0, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def _llama4() -> nn.Module:
    config = transformers.Llama4TextConfig(
        **_GROUPED | {"hidden_size": 48}, num_local_experts=3, intermediate_size_mlp=37, attention_chunk_size=5
    )
    return transformers.Llama4ForCausalLM(config)


def _deepseek(kind: str) -> nn.Module:
    config = getattr(transformers, f"{kind}Config")(
        **_without(_GROUPED, "num_key_value_heads", "head_dim"), num_key_value_heads=6,
        q_lora_rank=19, kv_lora_rank=17, qk_rope_head_dim=4, qk_nope_head_dim=7, v_head_dim=5,
        n_routed_experts=3, num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=3,
    )  # fmt: skip
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def _layoutlm() -> nn.Module:
    return transformers.LayoutLMForMaskedLM(transformers.LayoutLMConfig(**_ENCODER))


def _mobilebert() -> nn.Module:
    sizes = {"hidden_size": 20, "num_attention_heads": 5, "embedding_size": 11, "intra_bottleneck_size": 15}
    return transformers.MobileBertForMaskedLM(transformers.MobileBertConfig(**_ENCODER | sizes))


DECODERS: dict[str, Callable[[], nn.Module]] = {
    "llama": _llama,
    "mistral, window 5": lambda: _mistral(5),
    "mistral, window 2": lambda: _mistral(2),
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gpt-oss": _gpt_oss,
    "phi3": _phi3,
    "gpt2": _gpt2,
    "gpt-neox": _gpt_neox,
}
ENCODERS: dict[str, Callable[[], nn.Module]] = {"bert": _bert, "albert": _albert}
T5 = _t5
# Ones that transformers builds otherwise than the rest: a body under another name, latent attention with values of
# another width than keys, modules that don't say whether they are causal, embeddings that look at neighbours.
ODD: dict[str, Callable[[], nn.Module]] = {
    "llama4": _llama4,
    "deepseek_v3": lambda: _deepseek("DeepseekV3"),
    "layoutlm": _layoutlm,
    "mobilebert": _mobilebert,
}


def indexed() -> nn.Module:
    """A model whose attention is told by an indexer which keys to read."""
    return _deepseek("DeepseekV32")


def build(make: Callable[[], nn.Module], seed: int = 0) -> Any:
    """A model in eval mode with weights drawn by ``seed``, of a size at which attention is far from uniform."""
    torch.manual_seed(seed)
    model = make()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)
            else:
                is_gain = "norm" in name.lower() and not name.endswith("bias")
                parameter.copy_(noise * 0.1 + (1.0 if is_gain else 0.0))
    return model.eval().requires_grad_(False)


def tokens(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    """Random tokens ``[B, L]`` without the padding token."""
    return torch.randint(1, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))
