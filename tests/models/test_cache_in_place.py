"""headwise caches of blocks and codes under headwise's own attention: read in place, and whole for everybody else."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headwise.attention import compiled
from headwise.cache import BlockPool, DenseCache, PagedCache
from headwise.cache.held import Stored
from headwise.models import headwise_cache
from headwise.models.held_tensors import HeldTensor, held_part, held_tensors
from headwise.models.interface import NAME
from headwise.models.probes import trace
from tests.models import caching, tiny

built = pytest.mark.skipif(compiled.INSTRUCTION_SET is None, reason="the native part is not built")
OPTIONS: dict[str, dict[str, Any]] = {
    "paged": {"kind": "paged", "block_size": 3},
    "int8": {"kind": "quantized", "bits": 8, "residual": 5},
    "int4": {"kind": "quantized", "bits": 4, "residual": 5},
}


@pytest.fixture
def made_whole(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many keys each part held that was made whole."""
    counts: list[int] = []
    whole = Stored.whole

    def counted(stored: Stored) -> tuple[Tensor, Tensor]:
        counts.append(stored.shape[2])
        return whole(stored)

    monkeypatch.setattr(Stored, "whole", counted)
    return counts


def logits(model: Any, past: Any, attention: str, padding: int = 0, **options: Any) -> Tensor:
    """Of a prompt of 13 tokens and of 4 more, one after the other."""
    model.set_attn_implementation(attention)
    ids = tiny.tokens(2, 17)
    seen = torch.ones(2, 17, dtype=torch.long)
    seen[0, :padding] = 0
    found, start = [], 0
    with torch.no_grad():
        for end in (13, 14, 15, 16, 17):
            mask = {"attention_mask": seen[:, :end]} if padding else {}
            found.append(model(ids[:, start:end], past_key_values=past, **mask, **options).logits[:, -1])
            start = end
    return torch.stack(found)


@built
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("kind", OPTIONS)
def test_decoding_reads_in_place_and_gives_the_numbers_of_whole_tensors(
    kind: str, padding: int, made_whole: list[int]
) -> None:
    model = caching.model_of("llama")
    expected = logits(model, headwise_cache(model, 20, **OPTIONS[kind]), "sdpa", padding)
    layers = model.config.num_hidden_layers
    assert made_whole == [held for held in (13, 14, 15, 16, 17) for _ in range(layers)]
    made_whole.clear()
    ours = logits(model, headwise_cache(model, 20, **OPTIONS[kind]), NAME, padding)
    # The prompt may have rows enough to be read whole; a token has not.
    assert set(made_whole) <= {13}
    # Two ways of transformers' own over whole tensors differ, too.
    other = logits(model, headwise_cache(model, 20, **OPTIONS[kind]), "eager", padding)
    rounding = float((other - expected).abs().max()) + torch.finfo(ours.dtype).eps * float(expected.abs().max())
    assert float((ours - expected).abs().max()) <= 4 * rounding


@built
@pytest.mark.parametrize("kind", OPTIONS)
def test_weights_and_probes_get_whole_tensors(kind: str, made_whole: list[int]) -> None:
    model = caching.model_of("llama")
    plain = logits(model, headwise_cache(model, 20, **OPTIONS[kind]), NAME)
    made_whole.clear()
    logits(model, headwise_cache(model, 20, **OPTIONS[kind]), NAME, output_attentions=True)
    assert {14, 15, 16, 17} <= set(made_whole)
    made_whole.clear()
    calls = trace(model, lambda: logits(model, headwise_cache(model, 20, **OPTIONS[kind]), NAME))
    assert {14, 15, 16, 17} <= set(made_whole)
    assert {type(call.key) for call in calls} == {Tensor}
    assert len(calls) == 5 * model.config.num_hidden_layers
    again = logits(model, headwise_cache(model, 20, **OPTIONS[kind]), NAME)
    assert torch.equal(again, plain)


def paged(tokens: int = 5) -> tuple[Tensor, Tensor, Any]:
    key, value = torch.randn(1, 2, tokens, 3), torch.randn(1, 2, tokens, 4)
    (part,) = PagedCache(BlockPool(9, 2, 2, 3, 4), 1).append(key, value)
    return key, value, part


@built
def test_a_held_tensor_is_the_tensor_to_all_who_look() -> None:
    key, value, part = paged()
    first, second = held_tensors(part)
    assert isinstance(first, HeldTensor)
    assert isinstance(second, HeldTensor)
    assert (first.shape, first.dtype, first.device, first.dim()) == (key.shape, key.dtype, key.device, 4)
    assert part._keys is None, "the shape alone made it whole"
    assert torch.equal(first, key)
    assert torch.equal(second[:, 1:], value[:, 1:])
    assert torch.equal(torch.cat([second, second], 1), torch.cat([value, value], 1))
    assert np.array_equal(first.numpy(), key.numpy())
    assert (first + 1).sum().item() == (key + 1).sum().item()
    assert type(first.transpose(1, 2)) is Tensor
    assert torch.equal(copy.deepcopy(second), value)
    assert first.stride() == part.keys.stride()
    assert str(first) == str(part.keys)
    query = torch.randn(1, 2, 1, 3)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    assert torch.equal(sdpa(query, first, second), sdpa(query, part.keys, part.values))


@built
def test_only_a_pair_of_one_part_is_that_part() -> None:
    key, value, part = paged()
    first, second = held_tensors(part)
    assert held_part(first, second) is part
    assert held_part(first, paged()[2].values) is None
    assert held_part(first, held_tensors(paged()[2])[1]) is None
    assert held_part(key, value) is None


def test_plain_parts_stay_tensors() -> None:
    (part,) = DenseCache(1, 2, 7, 3).append(*torch.randn(2, 1, 2, 5, 3))
    assert held_tensors(part)[0] is part.keys
