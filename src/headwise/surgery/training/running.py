"""Which attention runs while a model is trained.

PyTorch's own has gradients of its own and is the faster one for a plain causal model; it leaves out soft-caps and
sinks, so only architectures that have neither go there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headwise.models.checkpoint import Checkpoint
from headwise.models.interface import NAME

__all__ = ["running_on"]

_PLAIN = frozenset({"bert", "gpt2", "gpt_neox", "llama", "mistral", "phi3", "qwen2", "qwen3"})


@contextmanager
def running_on(wanted: str, *checkpoints: Checkpoint) -> Iterator[None]:
    """Inside the block these models run on another attention implementation of transformers.

    Args:
        wanted: its name, or ``auto`` for PyTorch's where it computes all that an architecture asks for, else headwise.
        *checkpoints: are put back to what they ran on.
    """
    before = [checkpoint.model.config._attn_implementation for checkpoint in checkpoints]
    try:
        for checkpoint in checkpoints:
            checkpoint.model.set_attn_implementation(_chosen(checkpoint) if wanted == "auto" else wanted)
        yield
    finally:
        for checkpoint, name in zip(checkpoints, before, strict=True):
            checkpoint.model.set_attn_implementation(name)


def _chosen(checkpoint: Checkpoint) -> str:
    return "sdpa" if checkpoint.model.config.model_type in _PLAIN else NAME
