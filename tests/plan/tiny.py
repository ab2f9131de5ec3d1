"""Tiny models with the structure of real ones: every kind of layer, a whole pattern, widths cut.

Each entry holds fields as a ``config.json`` has them. Widths differ per axis as far as the models allow: rotary
embeddings want even heads, grouped matrix products of experts in bfloat16 multiples of 8.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DECODERS", "ENCODERS", "ENCODER_DECODERS", "VISION", "WRAPPED", "fields_of", "model_type_of"]

# A field of ``COMMON`` that a case does without.
OMIT = object()

# Small numbers where the value doesn't matter to attention; only the fields that a class has are given to it.
COMMON: dict[str, Any] = {
    "vocab_size": 67,
    "hidden_size": 48,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "sliding_window": 5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "shared_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}

_GPT = {"n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 64}
_MLA = {
    "num_hidden_layers": 2,
    "num_key_value_heads": 6,
    "kv_lora_rank": 11,
    "q_lora_rank": 13,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 7,
    "v_head_dim": 10,
}
_SPARSE = {**_MLA, "num_hidden_layers": 3, "index_head_dim": 14, "index_n_heads": 3, "index_topk": 3}
_MAMBA2 = {
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 7,
    "mamba_d_conv": 3,
    "mamba_expand": 2,
}
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "linear_conv_kernel_dim": 4,
}
_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
# A model of another medium beside: there, and as small as may be.
_SIDE = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_MATFORMER = {"vocab_size_per_layer_input": 67, "hidden_size_per_layer_input": 8, "laurel_rank": 4}

# model_type, a dash and a variant if there are several -> fields. None: the class doesn't have that field.
DECODERS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-bias": {"attention_bias": True, "head_dim": None},
    "mistral": {},
    "mistral-full": {"sliding_window": None},
    "mistral-window of one": {"sliding_window": 1},
    "mixtral": {},
    "ministral": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "ministral3": {"sliding_window": None},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 2},
    "qwen2-off": {"use_sliding_window": False},
    "qwen2_moe": {"use_sliding_window": True, "max_window_layers": 3, "decoder_sparse_step": 2},
    "qwen2_vl_text": {**_MROPE, "use_sliding_window": True, "max_window_layers": 2},
    "qwen2_5_vl_text": {**_MROPE, "use_sliding_window": True, "max_window_layers": 2},
    "qwen2_5_omni_text": {**_MROPE, "use_sliding_window": True, "max_window_layers": 2},
    "qwen3": {"use_sliding_window": True, "max_window_layers": 2},
    "qwen3_moe": {},
    "qwen3_moe-window": {"use_sliding_window": True},
    "qwen3_omni_moe_text": {},
    "qwen3_vl_text": {},
    "qwen3_vl_moe_text": {},
    "gemma": {},
    "gemma2": {},
    "vaultgemma": {},
    "gemma3_text": {"num_hidden_layers": 7},
    "gemma3_text-pattern": {"sliding_window_pattern": 3},
    "gemma3n_text": {"num_hidden_layers": 10, "num_kv_shared_layers": 4, **_MATFORMER},
    "gemma4_text": {
        "num_hidden_layers": 6,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 2,
        "global_head_dim": 24,
        **_MATFORMER,
    },
    "gemma4_text-shared": {
        "num_hidden_layers": 12,
        "num_kv_shared_layers": 6,
        "global_head_dim": 24,
        "num_global_key_value_heads": 2,
        **_MATFORMER,
    },
    "phi": {},
    "phi3": {},
    "phi4_multimodal": {"vision_config": _SIDE, "audio_config": {**_SIDE, "num_blocks": 1}},
    "phimoe": {},
    "gpt2": _GPT,
    "gptj": {**_GPT, "rotary_dim": 4},
    "codegen": {**_GPT, "n_head": 4, "rotary_dim": 4},
    "gpt_bigcode": _GPT,
    "gpt_bigcode-heads": {**_GPT, "multi_query": False},
    "gpt_neo": {"num_layers": 4, "num_heads": 6, "attention_types": [[["global", "local"], 2]], "window_size": 5},
    "gpt_neox": {},
    "opt": {"ffn_dim": 24, "word_embed_proj_dim": 48},
    "opt-plain": {"ffn_dim": 24, "word_embed_proj_dim": 48, "enable_bias": False},
    "bloom": {"n_layer": 3, "n_head": 6},
    "mpt": {"d_model": 48, "n_heads": 6, "n_layers": 3, "max_seq_len": 64},
    "dbrx": {
        "d_model": 48,
        "n_heads": 6,
        "n_layers": 2,
        "max_seq_len": 64,
        "attn_config": {"kv_n_heads": 3, "clip_qkv": 8.0, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 2, "moe_top_k": 1},
    },
    "falcon": {"num_attention_heads": 6, "bias": True},
    "falcon-new": {"new_decoder_architecture": True, "num_kv_heads": 3},
    "falcon-heads": {"multi_query": False, "alibi": True},
    "starcoder2": {},
    "stablelm": {"use_qkv_bias": True},
    "persimmon": {},
    "olmo": {},
    "olmo2": {},
    "olmo3": {},
    "olmoe": {},
    "flex_olmo": {},
    "granite": {},
    "granitemoe": {},
    "granitemoeshared": {},
    "granite_swa": {},
    "cohere": {},
    "cohere2": {"num_hidden_layers": 5},
    "cohere2-pattern": {"sliding_window_pattern": 2},
    "gpt_oss": {},
    "llama4_text": {"attention_chunk_size": 5, "num_local_experts": 2, "intermediate_size_mlp": 24},
    "llama4_text-interval": {
        "attention_chunk_size": 5,
        "no_rope_layer_interval": 2,
        "num_local_experts": 2,
        "intermediate_size_mlp": 24,
    },
    "glm": {},
    "glm4": {},
    "glm4_moe": {},
    "glm4v_text": {"head_dim": OMIT, **_MROPE},
    "glm4v_moe_text": {"rope_parameters": {**_MROPE["rope_parameters"], "mrope_section": [1, 1, 0]}},
    "minimax_m2": {},
    "nemotron": {},
    "smollm3": {"use_sliding_window": True},
    "smollm3-off": {"use_sliding_window": False},
    "exaone4": {"num_hidden_layers": 5},
    "exaone_moe": {"num_hidden_layers": 5},
    "exaone": {},
    "internlm3": {},
    "internlm3-bias": {"qkv_bias": True, "bias": True},
    "ernie4_5": {},
    "ernie4_5_moe": {},
    "hunyuan_v1_dense": {},
    "hunyuan_v1_moe": {},
    "seed_oss": {},
    "arcee": {},
    "aria_text": {},
    "hyperclovax": {},
    "iquestcoder": {},
    "granitemoe_swa": {},
    "apertus": {},
    "dots1": {"max_window_layers": 2},
    "afmoe": {"num_experts": 2, "num_shared_experts": 1},
    "cwm": {"num_hidden_layers": 5},
    "bitnet": {},
    "helium": {"head_dim": 8},
    "hy_v3": {},
    "jais2": {},
    "nanochat": {},
    "solar_open": {},
    "biogpt": {},
    "xglm": {"d_model": 48, "num_layers": 3, "attention_heads": 6, "ffn_dim": 24},
    "mimo_v2_flash": {"num_hidden_layers": 7, "v_head_dim": 10},
    "mimo_v2_flash-size": {"num_hidden_layers": 7, "v_head_dim": 10, "sliding_window_size": 4},
    "step3p5": {
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "num_sliding_attention_heads": 9,
    },
    "deepseek_v2": _MLA,
    "deepseek_v2-lite": {**_MLA, "q_lora_rank": None},
    "deepseek_v3": {**_MLA, "attention_bias": True},
    "deepseek_v32": _SPARSE,
    "glm_moe_dsa": {**_SPARSE, "indexer_types": ["full", "shared", "full"]},
    "glm4_moe_lite": _MLA,
    "minicpm3": _MLA,
    "youtu": _MLA,
    "mistral4": _MLA,
    "axk1": _MLA,
    "sarvam_mla": {**_MLA, "q_lora_rank": None},
    "sarvam_moe": {"use_qkv_bias": True},
    "mellum": {"layer_types": ["sliding_attention", "full_attention"] * 2, "attention_bias": True},
    "cohere2_moe": {"num_hidden_layers": 6, "first_k_dense_replace": 2, "prefix_dense_sliding_window_pattern": 2},
    "gemma4_unified_text": {
        "num_hidden_layers": 6,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 2,
        "global_head_dim": 24,
    },
    "longcat_flash": {
        **_MLA,
        "num_hidden_layers": OMIT,
        "num_layers": 2,
        "head_dim": 8,
        "moe_topk": 2,
        "zero_expert_num": 2,
        "expert_ffn_hidden_size": 16,
        "ffn_hidden_size": 24,
    },
    "mamba": {"state_size": 7, "conv_kernel": 3, "expand": 2, "num_hidden_layers": 2},
    "falcon_mamba": {"state_size": 7, "conv_kernel": 3, "expand": 2, "num_hidden_layers": 2},
    "mamba2": {
        "num_heads": 6,
        "head_dim": 16,
        "n_groups": 2,
        "state_size": 7,
        "conv_kernel": 3,
        "expand": 2,
        "num_hidden_layers": 2,
    },
    "jamba": {"attn_layer_period": 3, "attn_layer_offset": 1, "mamba_d_state": 7, "mamba_d_conv": 3},
    "bamba": {**_MAMBA2, "attn_layer_indices": [1, 3]},
    "granitemoehybrid": {**_MAMBA2, "layer_types": ["mamba", "attention", "mamba"], "num_hidden_layers": 3},
    "falcon_h1": {**_MAMBA2, "mamba_d_ssm": 96, "num_hidden_layers": 2},
    "nemotron_h": {
        "num_hidden_layers": 5,
        "hybrid_override_pattern": "M-*EM",
        "mamba_num_heads": 6,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 7,
        "conv_kernel": 3,
        "moe_shared_expert_intermediate_size": 16,
    },
    "qwen3_next": {**_DELTA, "num_hidden_layers": 5},
    "qwen3_next-interval": {**_DELTA, "full_attention_interval": 2},
    "qwen3_5_text": _DELTA,
    "qwen3_5_moe_text": _DELTA,
    "olmo_hybrid": _DELTA,
    "kimi_linear": {
        **_MLA,
        "q_lora_rank": None,
        "num_hidden_layers": 4,
        "linear_attn_config": {
            "full_attn_layers": [2, 4],
            "kda_layers": [1, 3],
            "head_dim": 12,
            "num_heads": 3,
            "short_conv_kernel_size": 3,
        },
    },
    "minimax": {"block_size": 8},
    "lfm2": {"full_attn_idxs": [1, 3], "conv_L_cache": 3},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"], "conv_L_cache": 3},
    "zamba": {
        "num_hidden_layers": 7,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_key_value_heads": 6,
        "attention_head_dim": 16,
        "n_mamba_heads": 2,
        "mamba_d_state": 7,
        "mamba_d_conv": 3,
    },
    "zamba2": {
        "num_hidden_layers": 6,
        "num_key_value_heads": 6,
        "layers_block_type": ["mamba", "hybrid"] * 3,
        "n_mamba_heads": 6,
        "mamba_ngroups": 2,
        "mamba_d_state": 7,
        "mamba_d_conv": 3,
        "num_mem_blocks": 2,
        "use_shared_attention_adapter": True,
        "adapter_rank": 5,
    },
    "mllama_text_model": {"num_hidden_layers": 4, "cross_attention_layers": [1, 3]},
}

_BART = {
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "decoder_start_token_id": 1,
}
_T5 = {
    "d_model": 48,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 6,
    "d_kv": 7,
    "d_ff": 24,
    "decoder_start_token_id": 1,
}
ENCODER_DECODERS: dict[str, dict[str, Any]] = {
    "t5": _T5,
    "mt5": _T5,
    "umt5": _T5,
    "bart": _BART,
    "mbart": _BART,
    "pegasus": _BART,
    "marian": _BART,
    "m2m_100": _BART,
    "blenderbot": _BART,
    "blenderbot-small": _BART,
    "whisper": {**_BART, "num_mel_bins": 8, "max_source_positions": 11, "max_target_positions": 64},
}

ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {},
    "xlm-roberta": {},
    "camembert": {},
    "electra": {"embedding_size": 24},
    "mpnet": {},
    "distilbert": {"dim": 48, "n_layers": 3, "n_heads": 6, "hidden_dim": 24},
    "albert": {"embedding_size": 24, "num_hidden_groups": 2},
    "modernbert": {"local_attention": 8, "num_hidden_layers": 4, "cls_token_id": 3, "sep_token_id": 4},
}

# Whole models of several media, and the case of the language model that each nests.
WRAPPED: dict[str, str] = {
    "gemma3": "gemma3_text",
    "internvl": "qwen2",
    "llava": "llama",
    "mistral3": "mistral",
    "paligemma": "gemma",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_vl": "qwen3_vl_text",
}
# The vision model beside it, under the names that these families give its fields.
VISION: dict[str, Any] = {
    **_SIDE,
    "depth": 1,
    "num_heads": 2,
    "embed_dim": 16,
    "image_size": 28,
    "patch_size": 14,
    "out_hidden_size": 48,
    "deepstack_visual_indexes": [0],
}


def fields_of(case: str, known: set[str], table: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The fields of a case: its own, and those of ``COMMON`` that its class knows."""
    own = table[case]
    fields = {name: value for name, value in COMMON.items() if name in known} | own
    return {name: value for name, value in fields.items() if value is not OMIT} | {"model_type": model_type_of(case)}


def model_type_of(case: str) -> str:
    """A case is called after its model type; a variant stands behind a dash."""
    return case if case in ("xlm-roberta", "blenderbot-small") else case.split("-", 1)[0]
