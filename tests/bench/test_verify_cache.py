"""Decoding with a cache against reading at once, and the bytes of the cache."""

from __future__ import annotations

import math

import pytest
import torch

from headwise.bench.verification.caches import advance, cache_bytes, cache_tensors, filled_cache, new_cache
from headwise.bench.verification.decoding import Decoding, check_decoding
from headwise.models import Checkpoint
from headwise.models.interface import NAME, register
from tests.models import tiny

register()
LENGTH, WINDOW = 23, 5


def checkpoint(name: str) -> Checkpoint:
    model = tiny.build(tiny.DECODERS[name])
    model.set_attn_implementation(NAME)
    return Checkpoint(model, None, name=name, source=name, objective="next")


@pytest.mark.parametrize("name", ["llama", "mistral, window 5", "gemma2", "gpt2", "gpt-neox", "phi3", "deepseek_v3"])
def test_every_kind_of_decoder_agrees_with_its_cache(name):
    found = check_decoding(checkpoint(name), tiny.tokens(2, LENGTH))
    assert found.agrees
    assert found.agreement == 1
    assert (found.prefilled, found.decoded) == (12, 11)
    assert found.record()["agrees"]


def test_a_model_that_is_shaken_by_rounding_has_its_own_allowance(llama):
    """Rounding is what another way to compute the same attention makes of it."""
    steady = check_decoding(llama, torch.randint(5, 216, (2, 31)))
    assert 0 < steady.largest <= steady.allowed < 0.01


def test_a_wrong_cache_is_noticed(llama, broken_cache):
    found = check_decoding(llama, torch.randint(5, 216, (2, 31)))
    assert not found.agrees
    assert found.largest > 100 * found.allowed


def test_nan_does_not_agree():
    found = Decoding(math.nan, 1.0, 0.5, 3, 2)
    assert not found.agrees
    assert found.record()["largest"] is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt-bigcode"])
def test_bytes_are_those_of_the_layout(name, dtype):
    model = checkpoint(name)
    model.model.to(dtype)
    layout = model.layouts[0]
    per_token = 2 * tiny.LAYERS * layout.num_kv_heads * layout.head_dim * dtype.itemsize
    found = cache_bytes(model, tiny.tokens(1, LENGTH))
    assert vars(found) == {
        "tokens": LENGTH, "allocated": per_token * LENGTH, "used": per_token * LENGTH,
        "each_further_token": per_token, "dtype": str(dtype).removeprefix("torch."),
    }  # fmt: skip


def test_layers_with_a_window_use_less_than_they_allocate():
    """transformers keeps the last keys of a window as a view of all that were read."""
    model = checkpoint("mistral, window 5")
    layout = model.layouts[0]
    token = 2 * tiny.LAYERS * layout.num_kv_heads * layout.head_dim * 4
    found = cache_bytes(model, tiny.tokens(1, LENGTH))
    assert (found.used, found.allocated, found.each_further_token) == (token * (WINDOW - 1), token * LENGTH, 0)


@pytest.mark.parametrize("name", ["llama", "gemma2", "deepseek_v3"])
def test_a_filled_cache_has_the_shapes_of_a_read_one(name):
    model = checkpoint(name)
    filled, read = filled_cache(model, 3, LENGTH, seed=1), new_cache(model)
    with torch.inference_mode():
        advance(model, read, tiny.tokens(3, LENGTH))
    assert [tensor.shape for tensor in cache_tensors(filled)] == [tensor.shape for tensor in cache_tensors(read)]
    assert filled.get_seq_length() == LENGTH
    first, *others = cache_tensors(filled)
    assert all(not torch.equal(first, other) for other in others if other.shape == first.shape)
