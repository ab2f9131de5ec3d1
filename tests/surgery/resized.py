"""Tiny models with fewer heads, as `prune` and `convert` leave them, but at once and without their quality."""

from __future__ import annotations

from collections.abc import Iterable

from headwise.models.checkpoint import Checkpoint
from headwise.models.interface import NAME, register
from headwise.models.weights import copy_of, heads_of, replace_heads
from tests.models import tiny
from tests.study.tiny import tokenizer

HISTORY = ({"operation": "prune", "score": "contribution", "keep": [[0, 1], [2]], "documents": ["a1", "b2"]},)


def whole(name: str) -> Checkpoint:
    """A tiny model with a tokenizer."""
    register()
    model = tiny.build((tiny.DECODERS | tiny.ENCODERS)[name])
    model.set_attn_implementation(NAME)
    objective = "masked" if name in tiny.ENCODERS else "next"
    return Checkpoint(model, tokenizer(wrapped=False), name=name, source=name, objective=objective)


def resized(name: str, heads: int, kv_heads: int, layers: Iterable[int] = range(tiny.LAYERS)) -> Checkpoint:
    """The first query heads and KV heads of some layers of a tiny model; KV heads are repeated where there are none."""
    checkpoint = copy_of(whole(name))
    changed = {}
    for layer in layers:
        weights = heads_of(checkpoint, layer)
        chosen = [head % weights.num_kv_heads for head in range(kv_heads)]
        changed[layer] = weights.select(range(heads), chosen)
    replace_heads(checkpoint, changed)
    checkpoint.history = HISTORY
    return checkpoint


def one_kv_head() -> Checkpoint:
    """A GPT-2 whose heads all have the keys and values of its third head."""
    checkpoint = whole("gpt2")
    weights = [heads_of(checkpoint, layer).clone() for layer in range(tiny.LAYERS)]
    replace_heads(checkpoint, {layer: each.select(range(5), [2] * 5) for layer, each in enumerate(weights)})
    return checkpoint
