"""Tiny attention modules of transformers with random weights, and what their model gives them.

Sizes are different primes wherever an architecture allows it; weights are large enough for attention to be far from
uniform.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from tests.nn.widened import Widened

LAYERS = 2
WINDOW = 5
_SIZES: dict[str, Any] = {
    "hidden_size": 42,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": 64,
    "vocab_size": 7,
    "intermediate_size": 11,
}
_ALTERNATING: dict[str, Any] = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
_YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.7,
    "mscale_all_dim": 1.3,
}  # fmt: skip
_LATENT: dict[str, Any] = {
    name: size for name, size in _SIZES.items() if name not in ("head_dim", "num_key_value_heads")
} | {
    "num_key_value_heads": 6, "q_lora_rank": 19, "kv_lora_rank": 17, "qk_rope_head_dim": 4, "qk_nope_head_dim": 7,
    "v_head_dim": 5, "n_routed_experts": 3, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": LAYERS,
}  # fmt: skip
# transformers views pairs of DeepSeek-V2 as complex numbers, which must not straddle an odd width.
_EVEN = {"kv_lora_rank": 22, "qk_nope_head_dim": 6}
# Qwen2 divides hidden_size by the heads.
_QWEN2 = _SIZES | {"hidden_size": 36, "head_dim": 6}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _SIZES | {"rope_parameters": _LLAMA3}),
    "llama, biases": ("Llama", _SIZES | {"attention_bias": True}),
    "mistral": ("Mistral", _SIZES | {"sliding_window": WINDOW}),
    "mistral, window 2": ("Mistral", _SIZES | {"sliding_window": 2}),
    "mistral, no window": ("Mistral", _SIZES | {"sliding_window": None}),
    "mixtral": ("Mixtral", _SIZES | {"sliding_window": WINDOW}),
    "qwen2": ("Qwen2", _QWEN2 | _ALTERNATING | {"use_sliding_window": True}),
    "qwen3": ("Qwen3", _SIZES | _ALTERNATING | {"use_sliding_window": True, "rms_norm_eps": 1e-3}),
    "gemma2": ("Gemma2", _SIZES | _ALTERNATING | {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 7}),
    "gemma3": ("Gemma3Text", _SIZES | _ALTERNATING | {"query_pre_attn_scalar": 7, "rms_norm_eps": 1e-3}),
    "gpt-oss": ("GptOss", _SIZES | _ALTERNATING | {"num_local_experts": 3, "num_experts_per_tok": 2}),
    "granite": ("Granite", _SIZES | {"attention_multiplier": 0.17}),
}
LATENT_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v3": ("DeepseekV3", _LATENT),
    "deepseek_v3, yarn": ("DeepseekV3", _LATENT | {"rope_parameters": _YARN}),
    "deepseek_v3, one query projection": ("DeepseekV3", _LATENT | {"q_lora_rank": None, "attention_bias": True}),
    "deepseek_v3, half-split": ("DeepseekV3", _LATENT | {"rope_interleave": False}),
    "deepseek_v2": ("DeepseekV2", _LATENT | _EVEN | {"attention_bias": True}),
    "deepseek_v2, yarn": ("DeepseekV2", _LATENT | _EVEN | {"rope_parameters": _YARN}),
}


class Theirs:
    """The attention module of one layer of transformers in eager mode, called as its model would.

    Args:
        name: of ``CONFIGS`` or ``LATENT_CONFIGS``.
        layer: from 0.
        dtype: of weights and inputs; float64 means float64 throughout.
    """

    def __init__(self, name: str, layer: int = 0, dtype: torch.dtype = torch.float64) -> None:
        kind, options = (CONFIGS | LATENT_CONFIGS)[name]
        self.config = getattr(transformers, f"{kind}Config")(**options)
        self.config._attn_implementation = "eager"
        self.layer, self.dtype = layer, dtype
        family = kind.removesuffix("Text")
        parts = vars(sys.modules[getattr(transformers, f"{kind}Model").__module__])
        with Widened() if dtype == torch.float64 else nullcontext():
            self.rotary = parts[f"{family}RotaryEmbedding"](self.config)
        torch.manual_seed(0)
        self.module: nn.Module = parts[f"{family}Attention"](self.config, layer).eval().requires_grad_(False)
        for parameter in self.module.parameters():
            scale = 2.0 / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 0.3
            parameter.copy_(torch.randn(parameter.shape) * scale + (parameter.dim() == 1))
        self.module.to(dtype)

    def __call__(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """The output ``[B, L, E]``; ``real`` ``[B, L]`` is False at padding."""
        if self.dtype == torch.float64:
            with Widened():
                return self._run(hidden, real)
        return self._run(hidden, real)

    def _run(self, hidden: Tensor, real: Tensor | None) -> Tensor:
        positions = torch.arange(hidden.shape[1])[None]
        kinds = getattr(self.config, "layer_types", None)
        nested = kinds is not None and kinds[0] in self.config.rope_parameters
        rotary = self.rotary(hidden, positions, *([kinds[self.layer]] if nested else []))
        sliding = kinds[self.layer] == "sliding_attention" if kinds else getattr(self.config, "sliding_window", None)
        mask = (create_sliding_window_causal_mask if sliding else create_causal_mask)(
            config=self.config, inputs_embeds=hidden, attention_mask=real, cache=None, position_ids=positions
        )
        return self.module(hidden_states=hidden, position_embeddings=rotary, attention_mask=mask)[0]

    def hidden(self, batch: int, length: int, seed: int = 1) -> Tensor:
        """Random inputs ``[B, L, E]``."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(batch, length, self.config.hidden_size, generator=generator).to(self.dtype)
