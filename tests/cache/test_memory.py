"""What caches allocate while they run: a step of decoding must not copy what is held."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import headwise.cache
from headwise.attention import compiled
from headwise.cache import BlockPool, DenseCache, LatentCache, PagedCache, QuantizedCache, WindowCache, attend
from tests.helpers.operations import Operations

B, G, R, D, HELD = 1, 2, 3, 64, 509


def make(name: str, held: int) -> Any:
    if name == "dense":
        return DenseCache(B, G, 2 * held, D)
    if name == "latent":
        return LatentCache(B, 2 * held, D // 2, D // 2)
    return WindowCache(B, G, held if name == "window" else [held, held // 2], D)


def tokens_for(cache: Any, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    width = D // 2 if isinstance(cache, LatentCache) else D
    key, value = torch.randn(2, cache.batch_size, cache.num_kv_heads, count, width)
    return key, value


def step(cache: Any, count: int) -> Any:
    return cache.append(*tokens_for(cache, count))


def buffers(cache: Any) -> list[torch.Tensor]:
    groups = getattr(cache, "_groups", None)
    return [t for group in groups for t in group.planes.tensors] if groups else list(cache._planes.tensors)


def test_public_names() -> None:
    names = {"BlockPool", "CacheFullError", "DenseCache", "Held", "KeyValueCache", "LatentCache", "PagedCache"}
    names |= {"QuantizedCache", "Snapshot", "WindowCache", "attend", "attend_weights"}
    assert set(headwise.cache.__all__) == names
    assert all(hasattr(headwise.cache, name) for name in names)


@pytest.mark.parametrize("name", ["dense", "window", "windows", "latent"])
def test_no_step_allocates_anything_like_what_is_held(name: str) -> None:
    cache = make(name, HELD)
    step(cache, HELD)
    window = [(left, 0) for left in cache.windows for _ in range(R)] if name.startswith("window") else None
    query = torch.randn(B, R * cache.num_kv_heads, 1, D)
    one_token = 4 * D * cache.num_kv_heads
    for _ in range(130):  # longer than any slack: moves happen
        with Operations(*buffers(cache)) as ran:
            held = step(cache, 1)
            attend(query, held, window=window)
        smallest = min(part.keys.nbytes for part in held)
        # Scores of R heads over the keys are what attention needs; keys are D / R times as large.
        assert ran.largest_bytes <= max(one_token, 4 * R * cache.num_kv_heads * (HELD + 131)) < smallest, (
            ran.largest_name
        )


@pytest.mark.parametrize("name", ["dense", "window", "windows", "latent"])
def test_the_peak_of_an_append_does_not_grow_with_what_is_held(name: str) -> None:
    """A cache that grows by concatenation holds everything twice at every step."""
    peaks = []
    for held in (61, 509):
        cache = make(name, held)
        step(cache, held)
        peak = 0
        for _ in range(held // 4):  # moves happen
            tokens = tokens_for(cache, 1)
            with Operations(*buffers(cache), *tokens) as ran:
                cache.append(*tokens)
            assert "aten::cat" not in ran.names
            peak = max(peak, ran.largest_bytes)
        peaks.append(peak)
    assert peaks == [0, 0]


@pytest.mark.parametrize("name", ["dense", "window", "latent"])
def test_sequences_of_different_lengths_cost_no_copy_either(name: str) -> None:
    cache = make(name, HELD)
    cache.select([0, 0, 0])
    cache.append(*tokens_for(cache, HELD), [HELD, HELD // 2, 3])
    query = torch.randn(3, R * cache.num_kv_heads, 1, D)
    key, value = tokens_for(cache, 1)
    with Operations(*buffers(cache), query, key, value) as ran:
        held = cache.append(key, value)
        attend(query, held, window=(HELD, 0) if name == "window" else None)
    scores = 4 * R * cache.num_kv_heads * (HELD + 1)
    assert held[0].key_lengths is not None
    assert ran.largest_bytes <= scores < held[0].keys[0].nbytes, ran.largest_name


def made_of_codes_or_blocks(name: str) -> Any:
    if name == "paged":
        return PagedCache(BlockPool(HELD, 7, G, D), B)
    return QuantizedCache(B, G, 2 * HELD, D, bits=int(name[3:]), residual=11)


def memory_of(cache: Any) -> list[torch.Tensor]:
    if isinstance(cache, PagedCache):
        return list(cache.pool.planes.tensors)
    return [*cache._codes.tensors, *cache._latest.planes.tensors]


@pytest.mark.skipif(compiled.INSTRUCTION_SET is None, reason="the native part is not built")
@pytest.mark.parametrize("name", ["paged", "int8", "int4"])
def test_what_is_quantized_or_in_blocks_is_read_where_it_lies(name: str) -> None:
    """As ``docs/caches.md`` says: few queries on a CPU make no copy of what is held, whatever the lengths."""
    cache = made_of_codes_or_blocks(name)
    step(cache, HELD)
    cache.select([0, 0, 0])
    for _ in range(30):  # longer than the residual and than a block
        query, (key, value) = torch.randn(3, R * G, 1, D), tokens_for(cache, 1)
        with Operations(*memory_of(cache), query, key, value) as ran:
            held = cache.append(key, value, [1, 1, 0])
            attend(query, held)
        # Heads' outputs, tables of blocks, and copies of the half-filled blocks that the sequences had in common.
        little = 3 * G * D * 4 * 7
        assert 0 < ran.largest_bytes <= little, ran.largest_name
    assert little < 3 * G * HELD * D * 4 / 50


@pytest.mark.parametrize("name", ["paged", "int8", "int4"])
def test_for_many_queries_it_is_made_whole_once(name: str) -> None:
    cache = made_of_codes_or_blocks(name)
    step(cache, HELD)
    key, value = tokens_for(cache, 11)
    held = cache.append(key, value)
    with Operations(*memory_of(cache)) as ran:
        attend(torch.randn(B, R * G, 11, D), held)
    whole = B * G * (HELD + 11) * D * 4
    # Apart from these two copies: their blocks before the last one is cut off, or codes on their way to numbers.
    assert whole <= ran.largest_bytes <= 2 * whole, ran.largest_name
    assert held[0].keys.shape == (B, G, HELD + 11, D)
    assert held[0].keys is held[0].keys
