"""What the tests of caches in ``generate()`` share: kinds, ways of decoding, models, and transformers' own answers."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer

from headwise.models.interface import NAME, register
from tests.models import tiny

register()
BATCH, LENGTH, PADDING, NEW, DRAFT = 2, 13, 3, 7, 4
CAPACITY = LENGTH + PADDING + NEW + DRAFT  # the prompt lookup may draft beyond the end
RESIDUAL = 5

KINDS: dict[str, dict[str, Any]] = {
    "dense": {},
    "dense, no windows": {"window": False},
    "paged": {"kind": "paged", "block_size": 3, "window": False},
    "paged and windows": {"kind": "paged", "block_size": 7},
    "int8": {"kind": "quantized", "bits": 8, "residual": RESIDUAL, "window": False},
    "int4": {"kind": "quantized", "bits": 4, "residual": RESIDUAL, "window": False},
    "int4, all of it recent": {"kind": "quantized", "bits": 4, "residual": CAPACITY, "window": False},
    "latent": {"kind": "latent"},
}
# Left padding and a batch where transformers takes one, a repetitive prompt for the lookup.
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "chunks": {"prefill_chunk_size": 5},
    "assisted by a stranger": {},
    "assisted by itself": {},
    "prompt lookup": {"prompt_lookup_num_tokens": DRAFT},
}


@cache
def model_of(name: str, seed: int = 0) -> Any:
    model = tiny.build(tiny.DECODERS[name], seed)
    model.set_attn_implementation(NAME)
    model.generation_config.num_assistant_tokens = DRAFT
    return model


@cache
def prompt(way: str) -> dict[str, Tensor]:
    """Two prompts of different lengths, padded on the left; one for assisted decoding, which takes no batch."""
    if way in ("greedy", "beams", "chunks"):
        tokens = tiny.tokens(BATCH, LENGTH + PADDING)
        mask = torch.ones_like(tokens)
        tokens[0, :PADDING] = mask[0, :PADDING] = 0
        return {"input_ids": tokens, "attention_mask": mask}
    tokens = tiny.tokens(1, 8).repeat(1, 2)  # what comes next has come before
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def generate(model: Any, name: str, way: str, past: Any) -> list[list[int]]:
    options = dict(WAYS[way])
    if way.startswith("assisted"):
        options["assistant_model"] = model_of(name, seed=0 if way.endswith("itself") else 1)
    return model.generate(**prompt(way), max_new_tokens=NEW, do_sample=False, past_key_values=past, **options).tolist()


class RoundedLayer(DynamicLayer):
    """A growing layer that rounds each token once: when an append has made it older than the latest ones."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.limit = {8: 127, 4: 7}[bits]
        self.rounded = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        keys, values = super().update(key_states, value_states)
        last = max(self.rounded, keys.shape[2] - RESIDUAL)
        self.keys, self.values = (self.rounding(tensor, last) for tensor in (keys, values))
        self.rounded = last
        return keys, values

    def rounding(self, tensor: Tensor, last: int) -> Tensor:
        before, now, after = tensor.tensor_split((self.rounded, last), dim=2)
        step = now.abs().amax(-1, keepdim=True) / self.limit
        return torch.cat([before, (now / step).round() * step, after], dim=2)

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        self.rounded = min(self.rounded, self.get_seq_length())


@cache
def expected_tokens(name: str, way: str, bits: int | None = None) -> list[list[int]]:
    model = model_of(name)
    past = DynamicCache(config=model.config)
    if bits:
        past = Cache(layers=[RoundedLayer(bits) for _ in range(tiny.LAYERS)])
    tokens = generate(model, name, way, past)
    assert len(tokens[0]) == LENGTH + PADDING + NEW
    assert len({tuple(row) for row in tokens}) == len(tokens)
    return tokens
