"""headwise caches inside ``generate()``: the same tokens as with transformers' DynamicCache, however they are drawn."""

from __future__ import annotations

import copy
import inspect
from functools import cache
from typing import Any

import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache, EncoderDecoderCache

from headwise.models import Checkpoint, headwise_cache
from headwise.models.interface import NAME
from tests.models import tiny
from tests.models.caching import (
    BATCH,
    CAPACITY,
    DRAFT,
    KINDS,
    LENGTH,
    NEW,
    PADDING,
    WAYS,
    RoundedLayer,
    expected_tokens,
    generate,
    model_of,
    prompt,
)

# transformers 5.24 calls the argument `cache` as well; both names are tested.
pytestmark = pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")

# What each model can use, as far as it makes a difference.
COMBINATIONS = [
    *[(name, kind) for name in ("llama", "gpt2") for kind in ("dense", "paged", "int4", "int4, all of it recent")],
    *[("mistral, window 5", kind) for kind in ("dense", "dense, no windows", "paged", "int4")],
    *[(name, "dense") for name in ("mistral, window 2", "llama4")],
    *[("gemma2", kind) for kind in ("dense", "dense, no windows", "paged", "paged and windows", "int4")],
    *[(name, kind) for name in ("gemma3", "gpt-oss") for kind in ("dense", "paged and windows")],
    *[("deepseek_v3", kind) for kind in ("dense", "paged", "int8", "latent")],
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "kind"), COMBINATIONS, ids=lambda one: one)
def test_same_tokens_as_with_a_dynamic_cache(name, kind, way):
    """For integers, one that rounds as they do."""
    model = model_of(name)
    past = headwise_cache(model, CAPACITY, **KINDS[kind])
    bits = {"int8": 8, "int4": 4}.get(kind)
    assert generate(model, name, way, past) == expected_tokens(name, way, bits)
    assert past.get_seq_length() == LENGTH + PADDING + NEW - 1


def test_rounding_is_there_to_be_seen():
    """Otherwise the test above would hold for integers without any."""
    assert len({str(expected_tokens("deepseek_v3", "beams", bits)) for bits in (None, 8, 4)}) == 3
    assert all(expected_tokens("llama", way, 4) != expected_tokens("llama", way) for way in WAYS)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("way", ["greedy", "beams", "prompt lookup"])
@pytest.mark.parametrize(("name", "kind"), [("llama", "paged"), ("mistral, window 2", "dense"), ("gemma3", "dense")])
def test_other_attention_implementations_take_it_too(name, kind, way, implementation):
    model = copy.deepcopy(model_of(name))
    model.set_attn_implementation(implementation)
    past = headwise_cache(model, CAPACITY, **KINDS[kind])
    assert generate(model, name, way, past) == expected_tokens(name, way)


def test_the_other_name_of_the_argument_and_a_checkpoint():
    model = model_of("llama")
    if "cache" not in inspect.signature(model.forward).parameters:
        pytest.skip("this transformers knows past_key_values only")
    checkpoint = Checkpoint(model, None, name="tiny", source="", objective="next")
    past = headwise_cache(checkpoint, CAPACITY)
    tokens = model.generate(**prompt("greedy"), max_new_tokens=NEW, do_sample=False, cache=past)
    assert tokens.tolist() == expected_tokens("llama", "greedy")
    assert past.get_seq_length() == CAPACITY - DRAFT - 1


@pytest.mark.parametrize("kind", ["dense", "paged", "int8"])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_second_prompt_after_a_reset_and_a_conversation_that_goes_on(name, kind):
    model = model_of(name)
    past = headwise_cache(model, CAPACITY + 7, **KINDS[kind])
    bits = {"int8": 8}.get(kind)
    for way in ("greedy", "beams", "prompt lookup"):  # batches of 2, 6 and 1
        past.reset()
        assert past.get_seq_length() == 0
        assert generate(model, name, way, past) == expected_tokens(name, way, bits)
    before = copy.deepcopy(past)
    more = torch.cat([torch.tensor(expected_tokens(name, way, bits)), tiny.tokens(1, 3, seed=7)], dim=1)
    answers = [
        model.generate(more, max_new_tokens=4, do_sample=False, past_key_values=one).tolist() for one in (past, before)
    ]
    assert answers[0] == answers[1]
    if bits is None:
        assert answers[0] == model.generate(more, max_new_tokens=4, do_sample=False).tolist()


@pytest.mark.parametrize("kind", ["dense", "paged", "int8"])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_sequences_are_repeated_and_chosen(name, kind):
    model = model_of(name)
    tokens = tiny.tokens(3, 11)
    for choose, index in (
        (lambda past: past.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2]),
        (lambda past: past.batch_select_indices(torch.tensor([2, 0])), [2, 0]),
        (lambda past: past.batch_select_indices(torch.tensor([True, False, True])), [0, 2]),
        (lambda past: past.reorder_cache(torch.tensor([1, 1, 0])), [1, 1, 0]),
    ):
        past, whole = (headwise_cache(model, 12, **KINDS[kind]) for _ in range(2))
        choose(past)  # an empty cache has nothing to choose from
        with torch.no_grad():
            model(input_ids=tokens[:, :6], past_key_values=past)
            choose(past)
            own = model(input_ids=tokens[index, 6:], past_key_values=past).logits
            model(input_ids=tokens[index, :6], past_key_values=whole)
            expected = model(input_ids=tokens[index, 6:], past_key_values=whole).logits
        torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@cache
def encoder_decoder(name: str) -> Any:
    model = tiny.build(tiny.ENCODER_DECODERS[name])
    model.set_attn_implementation(NAME)
    return model


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("kind", ["dense", "paged", "int8"])
@pytest.mark.parametrize("name", tiny.ENCODER_DECODERS)
def test_encoder_decoders(name, kind, beams):
    """The decoder's own keys grow; those of the encoder come once, and are dense for every kind."""
    model = encoder_decoder(name)
    options = {"max_new_tokens": NEW, "do_sample": False, "num_beams": beams}
    rounded = EncoderDecoderCache(Cache(layers=[RoundedLayer(8) for _ in range(tiny.LAYERS)]), DynamicCache())
    past = headwise_cache(model, NEW, **KINDS[kind])
    for seed in (3, 4):  # the second source has another length
        source = {"inputs": tiny.tokens(BATCH, 11 + seed, seed)}
        if name == "whisper":
            sound = torch.randn(BATCH, tiny.BINS, 2 * tiny.FRAMES, generator=torch.Generator().manual_seed(seed))
            source = {"input_features": sound}
        judge = copy.deepcopy(rounded) if kind == "int8" else None
        expected = model.generate(**source, **options, past_key_values=judge)
        assert model.generate(**source, **options, past_key_values=past).tolist() == expected.tolist()
        past.reset()


@pytest.mark.parametrize("first", ["in inference mode", "outside"])
@pytest.mark.parametrize("kind", KINDS)
def test_prompts_in_and_outside_of_inference_mode(kind, first):
    """Memory is made by whichever comes first, and serves both."""
    name = "deepseek_v3" if kind == "latent" else "gemma2"
    past, bits = headwise_cache(model_of(name), CAPACITY, **KINDS[kind]), {"int8": 8, "int4": 4}.get(kind)
    for inside in (True, False) if first == "in inference mode" else (False, True):
        for way in ("greedy", "beams"):
            past.reset()
            with torch.inference_mode(inside):
                answer = generate(model_of(name), name, way, past)
            assert answer == expected_tokens(name, way, bits)
