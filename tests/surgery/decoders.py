"""Tiny decoders that can share KV heads, as checkpoints, and rows of tokens for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor

from headwise.models.checkpoint import Checkpoint
from headwise.models.corpus import Rows
from headwise.models.interface import NAME, register
from tests.models import tiny

register()


def _partly_turned() -> Any:
    """Phi-3 with half of each head turned by position."""
    config = transformers.Phi3Config(
        vocab_size=tiny.VOCABULARY, num_hidden_layers=tiny.LAYERS, max_position_embeddings=64, hidden_size=48,
        intermediate_size=37, num_attention_heads=6, num_key_value_heads=6, bos_token_id=1, eos_token_id=None,
        pad_token_id=0, rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    )  # fmt: skip
    return transformers.Phi3ForCausalLM(config)


def _biased() -> Any:
    """Llama with a bias on all four projections."""
    model = tiny.DECODERS["llama"]()
    return transformers.LlamaForCausalLM(type(model.config)(**model.config.to_dict() | {"attention_bias": True}))


SHARING: dict[str, Callable[[], Any]] = {
    name: tiny.DECODERS[name] for name in ("llama", "mistral, window 5", "qwen2", "gemma2", "phi3")
} | {"phi3, half turned": _partly_turned, "llama, biases": _biased}


def decoder(name: str, dtype: torch.dtype = torch.float32) -> Checkpoint:
    """A tiny decoder on headwise attention."""
    model = tiny.build(SHARING.get(name) or tiny.DECODERS[name])
    model.set_attn_implementation(NAME)
    return Checkpoint(model.to(dtype), None, name=name, source=name, objective="next")


def rows(count: int = 24, length: int = 17, seed: int = 5) -> Rows:
    """Random rows of as many documents as there are rows."""
    return Rows(tiny.tokens(count, length, seed), tuple(range(count)), tuple(f"{unit:016x}" for unit in range(count)))


def logits(checkpoint: Checkpoint, seed: int = 11) -> Tensor:
    """On tokens that no calibration has seen."""
    with torch.no_grad():
        given: Tensor = checkpoint.forward(tiny.tokens(3, 19, seed)).logits
    return given


def divergence(original: Tensor, changed: Tensor) -> float:
    """Mean KL of the predictions, in nats."""
    p, q = original.double().log_softmax(-1), changed.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())
