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
BINS, FRAMES = 11, 17  # of the sound that Whisper hears
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
_NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_NO_DROPOUT_GPT2: dict[str, Any] = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
_ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]


def _without(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: given for name, given in options.items() if name not in names}


def _llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_GROUPED))


def mistral(window: int | None) -> nn.Module:
    """Every layer slides."""
    return transformers.MistralForCausalLM(transformers.MistralConfig(**_GROUPED, sliding_window=window))


def qwen2(window: int | None = None) -> nn.Module:
    """With a window the last two of the three layers slide."""
    # Its head_dim is hidden_size / heads.
    options = _without(_GROUPED, "head_dim") | {"hidden_size": 36}
    if window is not None:
        options |= {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 1}
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


def phi3(window: int | None = None) -> nn.Module:
    """Queries, keys and values from one projection."""
    options = _without(_GROUPED, "head_dim") | {"hidden_size": 36, "sliding_window": window}
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(**options))


def _gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        **_without(_COMMON, "num_hidden_layers", "max_position_embeddings"),
        n_layer=LAYERS,
        n_head=5,
        n_embd=35,
        n_positions=64,
        **_NO_DROPOUT_GPT2,
    )
    return transformers.GPT2LMHeadModel(config)


def _gpt_bigcode() -> nn.Module:
    # One KV head for all.
    config = transformers.GPTBigCodeConfig(
        **_without(_COMMON, "num_hidden_layers", "max_position_embeddings"),
        n_layer=LAYERS,
        n_head=5,
        n_embd=35,
        n_positions=64,
        **_NO_DROPOUT_GPT2,
    )
    return transformers.GPTBigCodeForCausalLM(config)


def _gptj() -> nn.Module:
    sizes = {"n_layer": LAYERS, "n_head": 5, "n_embd": 40, "n_positions": 64, "rotary_dim": 4}
    config = transformers.GPTJConfig(
        **_without(_COMMON, "num_hidden_layers", "max_position_embeddings"), **sizes, **_NO_DROPOUT_GPT2
    )
    return transformers.GPTJForCausalLM(config)


def _opt() -> nn.Module:
    sizes = {"hidden_size": 35, "word_embed_proj_dim": 35, "ffn_dim": 37, "num_attention_heads": 5, "dropout": 0.0}
    return transformers.OPTForCausalLM(transformers.OPTConfig(**_COMMON, **sizes))


def _olmo2() -> nn.Module:
    options = _without(_GROUPED, "head_dim") | {"hidden_size": 36}
    return transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**options))


def _cohere() -> nn.Module:
    options = _without(_GROUPED, "head_dim") | {"hidden_size": 36, "use_qk_norm": True}
    return transformers.CohereForCausalLM(transformers.CohereConfig(**options))


def _glm4() -> nn.Module:
    return transformers.Glm4ForCausalLM(transformers.Glm4Config(**_GROUPED))


def starcoder2(window: int | None = 5) -> nn.Module:
    """Every layer slides."""
    options = _without(_GROUPED, "head_dim") | {"hidden_size": 36, "sliding_window": window, "residual_dropout": 0.0}
    return transformers.Starcoder2ForCausalLM(transformers.Starcoder2Config(**options, embedding_dropout=0.0))


def _gpt_neox() -> nn.Module:
    config = transformers.GPTNeoXConfig(**_ENCODER | {"hidden_size": 40})
    return transformers.GPTNeoXForCausalLM(config)


def _bert() -> nn.Module:
    return transformers.BertForMaskedLM(transformers.BertConfig(**_ENCODER, **_NO_DROPOUT))


def _albert() -> nn.Module:
    config = transformers.AlbertConfig(**_ENCODER, **_NO_DROPOUT, embedding_size=11, num_hidden_groups=1)
    return transformers.AlbertForMaskedLM(config)


def _modernbert() -> nn.Module:
    # Every third layer sees all, the others two keys on either side.
    sizes = {"hidden_size": 40, "num_attention_heads": 5, "local_attention": 4, "global_attn_every_n_layers": 3}
    special = {"cls_token_id": 1, "sep_token_id": 2, "reference_compile": False}
    return transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**_ENCODER | sizes, **special))


def _bart() -> nn.Module:
    config = transformers.BartConfig(
        vocab_size=VOCABULARY, d_model=35, encoder_layers=LAYERS, decoder_layers=LAYERS, encoder_attention_heads=5,
        decoder_attention_heads=5, encoder_ffn_dim=37, decoder_ffn_dim=29, max_position_embeddings=64, dropout=0.0,
        bos_token_id=1, pad_token_id=0, eos_token_id=None, decoder_start_token_id=2, forced_eos_token_id=None,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(config)


def _whisper() -> nn.Module:
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY, num_mel_bins=BINS, d_model=30, encoder_layers=LAYERS, decoder_layers=LAYERS,
        encoder_attention_heads=5, decoder_attention_heads=5, encoder_ffn_dim=37, decoder_ffn_dim=29,
        max_source_positions=FRAMES, max_target_positions=64, bos_token_id=1, pad_token_id=0, eos_token_id=None,
        decoder_start_token_id=2, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config)


def _t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=23, d_kv=7, d_ff=37, num_layers=LAYERS, num_heads=5,
        relative_attention_num_buckets=11, decoder_start_token_id=0, pad_token_id=0, eos_token_id=None,
        dropout_rate=0.0,
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
    "mistral, window 5": lambda: mistral(5),
    "mistral, window 2": lambda: mistral(2),
    "qwen2": qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gpt-oss": _gpt_oss,
    "phi3": phi3,
    "gpt2": _gpt2,
    "gpt-neox": _gpt_neox,
    "gpt-bigcode": _gpt_bigcode,
    "gptj": _gptj,
    "opt": _opt,
    "olmo2": _olmo2,
    "cohere": _cohere,
    "glm4": _glm4,
    "starcoder2": starcoder2,
    "llama4": _llama4,
    "deepseek_v3": lambda: _deepseek("DeepseekV3"),
}
ENCODERS: dict[str, Callable[[], nn.Module]] = {"bert": _bert, "albert": _albert, "modernbert": _modernbert}
T5 = _t5
ENCODER_DECODERS: dict[str, Callable[[], nn.Module]] = {"t5": _t5, "bart": _bart, "whisper": _whisper}
# Ones that transformers builds otherwise than the rest: modules that don't say whether they are causal, embeddings that
# look at neighbours.
ODD: dict[str, Callable[[], nn.Module]] = {"layoutlm": _layoutlm, "mobilebert": _mobilebert}


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
