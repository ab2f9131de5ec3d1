"""Tiny models and rows of random tokens that the tests of pruning share."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.models.checkpoint import Checkpoint
from headwise.models.corpus import Rows
from headwise.models.interface import NAME, register
from tests.models import tiny
from tests.study.tiny import tokenizer

register()
MODELS = tiny.DECODERS | tiny.ENCODERS
SUPPORTED = ["llama", "mistral, window 5", "qwen2", "qwen3", "gemma2", "phi3", "gpt2", "gpt-neox", "bert"]


def checkpoint(name: str, dtype: torch.dtype = torch.float32) -> Checkpoint:
    """One of `tests.models.tiny`, to be asked for next tokens, or BERT for masked ones."""
    model = tiny.build(MODELS[name]).to(dtype)
    model.set_attn_implementation(NAME)
    masked = name == "bert"
    objective = "masked" if masked else "next"
    return Checkpoint(model, tokenizer(wrapped=True) if masked else None, name=name, source=name, objective=objective)


def rows(documents: int = 7, each: int = 3, length: int = 13, seed: int = 1) -> Rows:
    """Random tokens."""
    units = tuple(number // each for number in range(documents * each))
    tokens = tiny.tokens(documents * each, length, seed)
    return Rows(tokens, units, tuple(f"{number:016x}" for number in range(documents)))


def logits(checkpoint: Checkpoint, tokens: Tensor) -> Tensor:
    """``[B, L, vocabulary]`` from one pass."""
    with torch.no_grad():
        return checkpoint.forward(tokens).logits


def decoded(checkpoint: Checkpoint, tokens: Tensor, start: int) -> Tensor:
    """The same with a cache: a first part at once, then token by token."""
    with torch.no_grad():
        output = checkpoint.model(input_ids=tokens[:, :start], use_cache=True)
        parts = [output.logits]
        for place in range(start, tokens.shape[1]):
            one = tokens[:, place : place + 1]
            output = checkpoint.model(input_ids=one, past_key_values=output.past_key_values, use_cache=True)
            parts.append(output.logits)
    return torch.cat(parts, 1)
