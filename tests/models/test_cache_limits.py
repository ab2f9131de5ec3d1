"""What headwise caches keep in transformers models, and what they refuse: the edge of windows, bytes, errors."""

from __future__ import annotations

import copy
import re
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.cache import CacheFullError
from headwise.models import headwise_cache
from headwise.models.cache import _dense, _layer
from headwise.models.cache_layers import HeadwiseCache, HeadwiseLayer
from tests.helpers.compare import EXACT, assert_same
from tests.models import tiny
from tests.models.caching import (
    BATCH,
    CAPACITY,
    KINDS,
    LENGTH,
    PADDING,
    expected_tokens,
    generate,
    model_of,
)

# transformers 5.24 calls the argument `cache` as well; both names are tested.
pytestmark = pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")


@cache
def exact(name: str) -> Any:
    return copy.deepcopy(model_of(name)).double()


def teacher_forced(model: Any, past: Any, chunks: list[int], back: int = 0) -> Tensor:
    """Logits ``[B, sum(chunks), vocabulary]`` of tokens that arrive in chunks, each with ``back`` wrong ones behind."""
    tokens, wrong = tiny.tokens(BATCH, sum(chunks)), tiny.tokens(BATCH, back, seed=5)
    logits, done = [], 0
    past.activate_past_recording()
    for size in chunks:
        given = torch.cat([tokens[:, done : done + size], wrong], dim=1)
        logits.append(model(input_ids=given, past_key_values=past, use_cache=True).logits[:, :size])
        past.crop(-back)
        done += size
    assert past.get_seq_length() == sum(chunks)
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("back", [0, 3])
@pytest.mark.parametrize("chunks", [[17], [1] * 7, [2, 1, 3, 1, 7, 1, 2], [5, 5, 1]], ids=str)
@pytest.mark.parametrize("name", ["llama", "mistral, window 5", "mistral, window 2", "gemma3", "gpt-oss"])
def test_logits_in_float64_whatever_the_chunks(name, chunks, back):
    """At the edge of a window, with tokens taken back after every chunk; a chunk may be longer than the window."""
    model = exact(name)
    for options in ({"margin": 3}, KINDS["paged"]):
        with torch.no_grad():
            own = teacher_forced(model, headwise_cache(model, 29, **options), chunks, back)
            whole = model(input_ids=tiny.tokens(BATCH, sum(chunks))).logits
        assert_same(own, whole, atol=EXACT * float(whole.abs().max()), what=str(options))


def test_window_layers_keep_no_more_than_the_window_and_the_margin():
    model = exact("mistral, window 5")
    past = headwise_cache(model, margin=3)  # no capacity: it can go on for ever
    with torch.no_grad():
        teacher_forced(model, past, [13] * 4)
    window, slack, itemsize = 4 + 3, 16, 8
    assert past.nbytes == tiny.LAYERS * BATCH * 2 * (window + slack) * (10 + 10) * itemsize
    assert past.nbytes_logical == tiny.LAYERS * BATCH * 2 * window * (10 + 10) * itemsize
    assert past.get_max_length() == -1
    assert past.is_sliding == [True] * tiny.LAYERS


@pytest.mark.parametrize(
    ("kind", "allocated", "held"),
    [
        ("dense", 27 * 20 * 4, 16 * 20 * 4),
        ("paged", 9 * 3 * 20 * 4, 6 * 3 * 20 * 4 - 2 * 20 * 4),
        ("int8", 22 * (20 + 8) + 5 * 20 * 4, 11 * (20 + 8) + 5 * 20 * 4),
        ("int4", 22 * (10 + 8) + 5 * 20 * 4, 11 * (10 + 8) + 5 * 20 * 4),
    ],
)
def test_bytes(kind, allocated, held):
    """Of 27 tokens of which 16 are held, with keys and values of width 10 for each of 2 KV heads."""
    model = model_of("llama")
    past = headwise_cache(model, 27, **KINDS[kind])
    assert (past.nbytes, past.nbytes_logical, past.batch_size, past.is_initialized) == (0, 0, -1, False)
    with torch.no_grad():
        model(input_ids=tiny.tokens(BATCH, 16), past_key_values=past)
    per_layer = BATCH * 2 * tiny.LAYERS
    assert (past.nbytes, past.nbytes_logical) == (per_layer * allocated, per_layer * held)
    assert (past.batch_size, past.is_initialized, past.get_max_length()) == (BATCH, True, 27)


def test_latent_caches_hold_the_latent_and_one_rotary_key():
    model = model_of("deepseek_v3")
    past = headwise_cache(model, 27, kind="latent")
    generate(model, "deepseek_v3", "greedy", past)
    assert past.nbytes == tiny.LAYERS * BATCH * 27 * (17 + 4) * 4
    assert (past.layers[0].keys.shape, past.layers[0].values.shape) == ((BATCH, 1, 22, 17), (BATCH, 1, 22, 4))


def refused(model: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(ValueError, match=r"^headwise_cache: ") as raised:
        headwise_cache(model, *args, **options)
    return str(raised.value).removeprefix("headwise_cache: ")


def test_refusals():
    llama, mistral = model_of("llama"), model_of("mistral, window 5")
    assert refused(llama) == (
        "expected a capacity, in tokens per sequence, since 3 of 3 layers of LlamaForCausalLM see all keys; pass the "
        "longest prompt and the new tokens together"
    )
    assert "since 1 of 3 layers of Gemma2ForCausalLM see all keys" in refused(model_of("gemma2"))
    assert refused(llama, 0) == "expected capacity to be an integer of at least 1, got 0"
    assert refused(llama, 5, margin=-1) == "expected margin to be an integer of at least 0, got -1"
    assert refused(llama, 5, kind="paged", block_size=0) == "expected block_size to be an integer of at least 1, got 0"
    assert refused(llama, 5, kind="quantized", bits=5) == "expected bits to be 8 or 4, got 5"
    assert refused(llama, 5, kind="quantized", residual=-1).startswith("expected residual to be an integer of at least")
    assert refused(llama, 5, kind="ring") == ("expected kind to be one of dense, paged, quantized, latent, got 'ring'")
    assert refused(llama, 5, bits=4) == (
        "bits belongs to kind='quantized', got kind='dense'; leave it out, or change kind"
    )
    assert refused(mistral, 5, kind="quantized") == (
        "kind='quantized' would serve no layer of MistralForCausalLM, since all of them have a window, which is kept "
        "in full precision; pass window=False to keep all keys in it, or leave kind out"
    )
    assert refused(llama, 5, kind="latent") == (
        "kind='latent' needs multi-head latent attention, and LlamaForCausalLM has no kv_lora_rank in its "
        "configuration; use another kind"
    )
    assert refused(tiny.indexed(), 5) == (
        "DeepseekV32ForCausalLM has layers of type 'indexed_attention' (layer 0 is one), which keep something other "
        "than the keys and values of each token; leave its cache to transformers"
    )


def test_latents_that_were_expanded_are_refused():
    past = headwise_cache(model_of("deepseek_v3"), 5, kind="latent")
    message = (
        "headwise_cache: kind='latent' expected DeepseekV3ForCausalLM to cache latents and rotary keys (1 head each, "
        "of widths 17 and 4), got (heads, width) (6, 11) and (6, 5): it expands them first; use another kind"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        past.update(torch.zeros(1, 6, 3, 11), torch.zeros(1, 6, 3, 5), 0)


@pytest.mark.parametrize("kind", ["dense", "paged", "int8"])
def test_a_full_cache_says_so_and_loses_nothing(kind):
    """Also where a layer with a window, which has room for ever, comes first."""
    model = model_of("gemma2")
    past = headwise_cache(model, LENGTH + PADDING + 2, **KINDS[kind])
    message = (
        "headwise_cache: expected at most 0 more tokens (18 of 18 are held), got 1; build it with a capacity of 19 or "
        "more, or reset it"
    )
    with pytest.raises(CacheFullError, match=f"^{re.escape(message)}$"):
        generate(model, "gemma2", "greedy", past)
    assert [layer.get_seq_length() for layer in past.layers] == [LENGTH + PADDING + 2] * tiny.LAYERS
    past.crop(-1)
    with torch.no_grad():
        model(input_ids=tiny.tokens(BATCH, 1), past_key_values=past)


def test_taking_back_more_than_a_window_can_changes_no_layer():
    model = model_of("gemma2")
    past = headwise_cache(model, 29, margin=3)
    with torch.no_grad():
        model(input_ids=tiny.tokens(1, 17), past_key_values=past)
    message = (
        "headwise_cache: a layer with a window of 5 keys cannot take back 4 tokens with margin=3; build it with "
        "margin=4 or more"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        past.crop(-4)
    with pytest.raises(ValueError, match=r"^rollback: expected 0 to 17 tokens"):
        past.crop(-18)
    with pytest.raises(ValueError, match=r"^crop: expected 0, or minus the number .* got 5; to keep so many of 17, pa"):
        past.crop(5)
    assert [layer.get_seq_length() for layer in past.layers] == [17] * tiny.LAYERS
    past.crop(-3)
    assert [layer.get_seq_length() for layer in past.layers] == [14] * tiny.LAYERS


def test_what_one_window_refuses_no_other_layer_does():
    """Windows of 9 and 3 tokens and a layer without any: the first and the last could take back what they hold."""
    layers = [_layer(window, 20, 1, partial(_dense, capacity=20)) for window in (9, 3, None)]
    past = HeadwiseCache(layers)
    for layer in range(3):
        past.update(torch.zeros(1, 2, 7, 5), torch.zeros(1, 2, 7, 5), layer)
    message = (
        "headwise_cache: a layer with a window of 3 keys cannot take back 3 tokens with margin=1; build it with "
        "margin=3 or more"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        past.crop(-3)
    assert [layer.get_seq_length() for layer in layers] == [7, 7, 7]
    past.crop(-1)
    assert [layer.get_seq_length() for layer in layers] == [6, 6, 6]


def test_assisted_decoding_without_a_margin_is_refused():
    model = model_of("gemma2")
    past = headwise_cache(model, CAPACITY, margin=0)
    assert not past.is_croppable
    message = (
        "headwise_cache: assisted decoding takes tokens back, and a layer with a window of 5 keys keeps none beyond it "
        "with margin=0; build it with a margin of the tokens drafted at once"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        generate(model, "gemma2", "prompt lookup", past)
    assert generate(model, "gemma2", "beams", past) == expected_tokens("gemma2", "beams")


@pytest.mark.parametrize("kind", ["dense", "paged", "int8"])
def test_each_prompt_may_begin_with_a_copy_of_the_cache_of_a_prefix(kind):
    model, prefix = model_of("llama"), tiny.tokens(1, 8)
    past = headwise_cache(model, CAPACITY, **KINDS[kind])
    with torch.no_grad():
        model(input_ids=prefix, past_key_values=past)
    for seed in (1, 2):
        whole = torch.cat([prefix, tiny.tokens(1, 5, seed=seed)], dim=1)
        copied, fresh = copy.deepcopy(past), headwise_cache(model, CAPACITY, **KINDS[kind])
        with torch.no_grad():
            model(input_ids=prefix, past_key_values=fresh)
        answers = [
            model.generate(whole, max_new_tokens=5, do_sample=False, pad_token_id=0, past_key_values=each).tolist()
            for each in (copied, fresh)
        ]
        assert answers[0] == answers[1]
        assert copied.get_seq_length() > past.get_seq_length() == 8


def test_gradients_would_be_lost():
    model = copy.deepcopy(model_of("llama")).requires_grad_(True)
    past = headwise_cache(model, 5)
    with pytest.raises(ValueError, match=r"^key: expected a tensor without gradient, since a cache keeps numbers"):
        model(input_ids=tiny.tokens(1, 3), past_key_values=past)


def test_layers_without_keys_of_their_own_have_no_cache():
    config = copy.deepcopy(model_of("gemma2").config)
    config.layer_types = ["full_attention", "mlp", "sliding_attention"]
    past = headwise_cache(type("Mixed", (), {"config": config})(), 5)
    assert [isinstance(layer, HeadwiseLayer) for layer in past.layers] == [True, False, True]
    for layer in (0, 2):
        past.update(torch.zeros(1, 2, 3, 5), torch.zeros(1, 2, 3, 5), layer)
    past.reorder_cache(torch.tensor([0]))
    past.crop(-1)
    assert past.get_seq_length() == 2
    assert past.nbytes_logical == 2 * 2 * 2 * 10 * 4


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_shallow_copy_is_refused(name):
    """It would hold the same layers, and each would write over the other's tokens."""
    model = model_of(name) if name == "llama" else tiny.T5()
    past = headwise_cache(model, 5)
    for one in (past, getattr(past, "self_attention_cache", past).layers[0]):
        message = f"{type(one).__name__}: expected copy.deepcopy, got copy.copy; two caches can't write the same memory"
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            copy.copy(one)
