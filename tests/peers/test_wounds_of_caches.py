"""Known wounds of caches: each test shows one where it is still open today, and that headwise doesn't have it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer

from headwise.attention import attention
from headwise.cache import DenseCache, WindowCache, attend
from tests.helpers.compare import assert_same
from tests.helpers.operations import Operations
from tests.models import tiny

B, H, G, D, TOKENS = 2, 6, 2, 5, 13


def tensors(tokens: int = TOKENS) -> tuple[Tensor, Tensor, Tensor]:
    """Query ``[B, H, L, D]``, key and value ``[B, G, L, D]`` in float64."""
    query, key, value = (torch.randn(B, heads, tokens, D, dtype=torch.float64) for heads in (H, G, G))
    return query, key, value


def cut(given: tuple[Tensor, Tensor, Tensor], start: int, stop: int) -> list[Tensor]:
    return [tensor[:, :, start:stop] for tensor in given]


@pytest.mark.parametrize("steps", [(1,) * TOKENS, (3, 4, 1, 1, 4), (TOKENS,)])
@pytest.mark.parametrize("window", [1, 2, 3, 5, TOKENS - 1, TOKENS, TOKENS + 1])
def test_a_sliding_cache_is_right_at_its_boundary(window, steps):
    """transformers#37574: a sliding cache was updated wrongly when the tokens reached the window; mended there."""
    given = tensors()
    expected = attention(*given, causal=True, window=(window - 1, 0))
    cache = WindowCache(B, G, window - 1, D, dtype=torch.float64)
    outputs, start = [], 0
    for step in steps:
        query, key, value = cut(given, start, start + step)
        outputs.append(attend(query, cache.append(key, value), window=(window - 1, 0)))
        start += step
    assert_same(torch.cat(outputs, 2), expected)


@torch.no_grad()
def test_a_window_of_one_in_transformers():
    """A model whose ``sliding_window`` is 1 decodes wrongly in transformers (5.24), without a word.

    The layer keeps ``keys[:, :, -w + 1:]``, which for w = 1 is everything, while it tells the mask that it keeps
    nothing. Right at the boundary for every other w, see the test above for headwise.
    """
    model = tiny.build(lambda: tiny.mistral(1))
    model.set_attn_implementation("eager")
    tokens = tiny.tokens(1, 4)
    cached = model(input_ids=tokens[:, :3], use_cache=True).past_key_values
    assert cached.layers[0].keys.shape[2] == 3
    assert cached.layers[0].get_mask_sizes(1) == (1, 3)  # one key, at position 3
    step = model(input_ids=tokens[:, 3:], past_key_values=cached).logits
    assert (step - model(input_ids=tokens).logits[:, 3:]).abs().max() > 0.1  # open


@pytest.mark.parametrize("taken_back", [1, 2, 3])
@pytest.mark.parametrize("held", [3, 4, 5, 9])
@pytest.mark.parametrize("window", [1, 2, 4])
def test_a_sliding_cache_is_right_after_a_rollback(window, held, taken_back):
    """Speculative decoding takes tokens back. transformers' sliding layers can't by themselves once the window is full:
    they have dropped what the earlier queries saw."""
    given, other = tensors(), tensors()
    cache = WindowCache(B, G, window - 1, D, margin=3, dtype=torch.float64)
    cache.append(*cut(given, 0, held)[1:])
    cache.rollback(taken_back)
    kept = held - taken_back
    query, key, value = cut(other, 0, TOKENS - held)
    output = attend(query, cache.append(key, value), window=(window - 1, 0))
    whole_key, whole_value = (
        torch.cat([old, new], 2) for old, new in zip(cut(given, 0, kept)[1:], (key, value), strict=True)
    )
    assert_same(output, attention(query, whole_key, whole_value, causal=True, window=(window - 1, 0)))


def test_a_rollback_beyond_the_margin_is_refused():
    """Where the keys are gone, an answer would be wrong. transformers refuses as well, without a margin to ask for."""
    _, key, value = tensors()
    cache = WindowCache(B, G, 2, D, margin=3, dtype=torch.float64)
    cache.append(key, value)
    with pytest.raises(ValueError, match=r"build the WindowCache with a larger margin$"):
        cache.rollback(4)
    assert cache.length == TOKENS
    layer = DynamicSlidingWindowLayer(sliding_window=3)
    layer.update(key, value)
    with pytest.raises(RuntimeError, match="does not track past states"):
        layer.crop(-1)


def test_a_cache_that_grows_by_concatenation_is_there_twice():
    """transformers#30536 halved the peak of ``generate()`` once; ``DynamicCache`` (5.24) concatenates again.

    At each token it makes a new tensor as large as all that is held, beside the old one.
    """
    tokens = 97
    _, key, value = tensors(tokens)
    theirs, own = DynamicCache(), DenseCache(B, G, tokens + 1, D, dtype=torch.float64)
    theirs.update(key, value, 0)
    own.append(key, value)
    new = tensors(1)
    with Operations(*new) as ran:
        theirs.update(*new[1:], 0)
    assert ran.largest_bytes >= key.nbytes  # open
    with Operations(*new, own.keys, own.values) as ran:
        own.append(*new[1:])
    assert ran.largest_bytes <= new[1].nbytes, ran.largest_name
    assert own.length == tokens + 1
