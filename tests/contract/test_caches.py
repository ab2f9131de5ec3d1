"""What every cache must do, whatever lies inside. A new cache joins by one line in ``CACHES``."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headwise.attention import attention
from headwise.cache import DenseCache, KeyValueCache

B, G, CAPACITY, D, DV = 2, 3, 13, 7, 5

CACHES: dict[str, Callable[[], KeyValueCache]] = {
    "dense": lambda: DenseCache(B, G, CAPACITY, D, DV, dtype=torch.float64),
}


@pytest.fixture(params=CACHES.values(), ids=CACHES.keys())
def cache(request: pytest.FixtureRequest) -> KeyValueCache:
    """An empty cache of the sizes above."""
    return request.param()


def tokens(count: int) -> tuple[Tensor, Tensor]:
    return torch.randn(B, G, count, D, dtype=torch.float64), torch.randn(B, G, count, DV, dtype=torch.float64)


def test_it_keeps_to_the_protocol(cache: KeyValueCache) -> None:
    assert isinstance(cache, KeyValueCache)
    sizes = (cache.batch_size, cache.num_kv_heads, cache.capacity, cache.head_dim, cache.value_head_dim)
    assert sizes == (B, G, CAPACITY, D, DV)
    assert (cache.dtype, cache.device) == (torch.float64, torch.device("cpu"))


def test_it_starts_empty(cache: KeyValueCache) -> None:
    assert cache.length == cache.nbytes_logical == 0
    assert cache.keys.shape == (B, G, 0, D)
    assert cache.values.shape == (B, G, 0, DV)


def test_it_hands_out_all_that_was_appended(cache: KeyValueCache) -> None:
    parts = [tokens(count) for count in (2, 3, 0, 1)]
    for number, (key, value) in enumerate(parts, 1):
        keys, values = cache.append(key, value)
        held = [torch.cat([part[side] for part in parts[:number]], 2) for side in (0, 1)]
        for got in ((keys, values), (cache.keys, cache.values)):
            assert torch.equal(got[0], held[0])
            assert torch.equal(got[1], held[1])
        assert cache.length == held[0].shape[2]


def test_an_empty_append_works_on_an_empty_cache(cache: KeyValueCache) -> None:
    keys, values = cache.append(*tokens(0))
    assert keys.shape == (B, G, 0, D)
    assert values.shape == (B, G, 0, DV)


def test_it_can_be_filled_to_the_last_slot(cache: KeyValueCache) -> None:
    key, value = tokens(CAPACITY)
    keys, values = cache.append(key, value)
    assert torch.equal(keys, key)
    assert torch.equal(values, value)
    assert cache.nbytes_logical <= cache.nbytes


def test_overflow_loses_nothing(cache: KeyValueCache) -> None:
    key, value = tokens(11)
    cache.append(key, value)
    message = re.escape("expected at most 2 more tokens (11 of 13 are held), got 3; build it with a larger capacity")
    with pytest.raises(ValueError, match=message):
        cache.append(*tokens(3))
    assert cache.length == 11
    assert torch.equal(cache.keys, key)
    assert torch.equal(cache.values, value)
    cache.append(*tokens(2))
    assert torch.equal(cache.keys[:, :, :11], key)


def test_rollback_forgets_the_last_tokens(cache: KeyValueCache) -> None:
    first, second, third = tokens(5), tokens(3), tokens(2)
    cache.append(*first)
    cache.append(*second)
    cache.rollback(3)
    assert cache.length == 5
    assert torch.equal(cache.keys, first[0])
    keys, values = cache.append(*third)
    assert torch.equal(keys, torch.cat([first[0], third[0]], 2))
    assert torch.equal(values, torch.cat([first[1], third[1]], 2))
    cache.rollback(0)
    cache.rollback(7)
    assert cache.length == 0


@pytest.mark.parametrize("count", [-1, 6])
def test_rollback_of_what_is_not_held_is_refused(cache: KeyValueCache, count: int) -> None:
    cache.append(*tokens(5))
    with pytest.raises(ValueError, match=rf"^rollback: expected 0 to 5 tokens \(those that are held\), got {count}$"):
        cache.rollback(count)
    assert cache.length == 5


def test_reset_keeps_the_memory(cache: KeyValueCache) -> None:
    allocated = cache.nbytes
    cache.append(*tokens(5))
    cache.reset()
    assert cache.length == cache.nbytes_logical == 0
    assert cache.nbytes == allocated
    key, value = tokens(2)
    assert torch.equal(cache.append(key, value)[0], key)


def test_what_was_appended_is_copied(cache: KeyValueCache) -> None:
    key, value = tokens(2)
    kept = key.clone(), value.clone()
    cache.append(key, value)
    key.fill_(torch.nan)
    value.fill_(torch.nan)
    assert torch.equal(cache.keys, kept[0])
    assert torch.equal(cache.values, kept[1])


REFUSED: dict[str, tuple[tuple[Tensor, Tensor], type[Exception], str]] = {
    "batch": (
        (torch.zeros(3, G, 1, D).double(), torch.zeros(3, G, 1, DV).double()),
        ValueError,
        "key: expected batch 2 as in the cache, got 3 in [3, 3, 1, 7]",
    ),
    "heads": (
        (torch.zeros(B, 6, 1, D).double(), torch.zeros(B, 6, 1, DV).double()),
        ValueError,
        "key: expected KV heads 3 as in the cache, got 6 in [2, 6, 1, 7]",
    ),
    "key width": (
        (torch.zeros(B, G, 1, DV).double(), torch.zeros(B, G, 1, DV).double()),
        ValueError,
        "key: expected width 7 as in the cache, got 5 in [2, 3, 1, 5]",
    ),
    "value width": (
        (torch.zeros(B, G, 1, D).double(), torch.zeros(B, G, 1, D).double()),
        ValueError,
        "value: expected width 5 as in the cache, got 7 in [2, 3, 1, 7]",
    ),
    "axes": (
        (torch.zeros(B, G, D).double(), torch.zeros(B, G, DV).double()),
        ValueError,
        "key: expected 4 axes [batch, KV heads, tokens, width], got 3 in [2, 3, 7]",
    ),
    "tokens": (
        (torch.zeros(B, G, 2, D).double(), torch.zeros(B, G, 1, DV).double()),
        ValueError,
        "value: expected 2 tokens as in key, got 1",
    ),
    "dtype": (
        (torch.zeros(B, G, 1, D).double(), torch.zeros(B, G, 1, DV)),
        TypeError,
        "value: expected dtype torch.float64 as in the cache, got torch.float32; cast it",
    ),
    "device": (
        (torch.zeros(B, G, 1, D, device="meta").double(), torch.zeros(B, G, 1, DV).double()),
        ValueError,
        "key: expected device cpu as in the cache, got meta; move it",
    ),
    "gradient": (
        (torch.zeros(B, G, 1, D).double(), torch.zeros(B, G, 1, DV).double().requires_grad_()),
        ValueError,
        "value: expected a tensor without gradient, since a cache keeps numbers and no graph; "
        "run under torch.no_grad() or detach it",
    ),
}


@pytest.mark.parametrize(("given", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_by_name(
    cache: KeyValueCache, given: tuple[Tensor, Tensor], error: type[Exception], message: str
) -> None:
    held = tokens(4)
    cache.append(*held)
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        cache.append(*given)
    assert cache.length == 4
    assert torch.equal(cache.keys, held[0])
    assert torch.equal(cache.values, held[1])


def test_without_gradients_a_parameter_may_be_appended(cache: KeyValueCache) -> None:
    key, value = (tensor.requires_grad_() for tensor in tokens(2))
    with torch.no_grad():
        keys, values = cache.append(key, value)
    assert not keys.requires_grad
    assert not values.requires_grad


def test_attention_over_a_cache_equals_attention_over_what_was_appended(cache: KeyValueCache) -> None:
    query = torch.randn(B, 6, 8, D, dtype=torch.float64)
    key, value = tokens(8)
    steps = []
    for start, stop in ((0, 2), (2, 5), (5, 8)):
        keys, values = cache.append(key[:, :, start:stop], value[:, :, start:stop])
        steps.append(attention(query[:, :, start:stop], keys, values, causal=True))
    expected = attention(query, key, value, causal=True)
    assert (torch.cat(steps, 2) - expected).abs().max() <= 1e-12
