"""Layers over every kind of cache: ragged batches, and a cache that survives whatever is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.attention import attention
from headwise.cache import BlockPool, DenseCache, KeyValueCache, PagedCache, QuantizedCache, WindowCache
from headwise.nn import GroupedQueryAttention, RotaryEmbedding
from tests.helpers.compare import assert_same

BATCH, WIDTH, HEADS, KV_HEADS, HEAD_DIM, CAPACITY = 3, 11, 6, 3, 10, 17
# One window for each KV head, so that a WindowCache keeps three lengths.
WINDOW = [(2, 0), (2, 0), None, None, (4, 0), (1, 0)]

Maker = Callable[[], KeyValueCache]


def hidden(length: int) -> Tensor:
    return torch.randn(BATCH, length, WIDTH, dtype=torch.float64)


def made(**options: Any) -> GroupedQueryAttention:
    options = {"rope": RotaryEmbedding(HEAD_DIM, 100.0), "window": WINDOW, "sinks": True} | options
    module = GroupedQueryAttention(WIDTH, HEADS, KV_HEADS, HEAD_DIM, dtype=torch.float64, **options)
    return module.requires_grad_(False)


def dense() -> DenseCache:
    return poisoned(DenseCache(BATCH, KV_HEADS, CAPACITY, HEAD_DIM, dtype=torch.float64))


def paged() -> PagedCache:
    pool = BlockPool(31, 2, KV_HEADS, HEAD_DIM, dtype=torch.float64)
    return PagedCache(pool, BATCH)


def windowed(margin: int = 0) -> WindowCache:
    return WindowCache(
        BATCH, KV_HEADS, [2, None, 4], HEAD_DIM, margin=margin, slack=1, capacity=CAPACITY, dtype=torch.float64
    )


def poisoned(cache: DenseCache) -> DenseCache:
    """Unwritten memory holds NaN."""
    nan = torch.full((BATCH, KV_HEADS, CAPACITY, HEAD_DIM), torch.nan, dtype=torch.float64)
    cache.append(nan, nan)
    cache.reset()
    return cache


MAKERS: dict[str, Maker] = {"dense": dense, "paged": paged, "window": windowed, "margin": lambda: windowed(3)}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("steps", [(5, 1, 1, 0, 1, 3), (1,) * 7, (11,)])
def test_steps_are_the_full_pass(make: Maker, steps: tuple[int, ...]) -> None:
    module, inputs, cache = made(), hidden(sum(steps)), make()
    full = module(inputs, causal=True, need_weights=True)
    outputs, start = [], 0
    for part in inputs.split(list(steps), 1):
        result = module(part, causal=True, cache=cache, need_weights=True)
        outputs.append(result.output)
        stop = start + part.shape[1]
        assert_same(result.weights, full.weights[:, :, start:stop, :stop])
        start = stop
    assert_same(torch.cat(outputs, 1), full.output)
    assert cache.length == sum(steps)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_device_need_not_be_asked_where_sequences_stand(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where looking at numbers would wait for a device, positions stay tensors; the results are the same."""
    monkeypatch.setattr("headwise.nn.calls.known_range", lambda numbers: None)
    module, inputs, cache = made(), hidden(8), make()
    real = torch.ones(BATCH, 8, dtype=torch.bool)
    real[1, :3] = False
    outputs, stop = [], 0
    for part in inputs.split([4, 1, 3], 1):
        stop += part.shape[1]
        outputs.append(module(part, causal=True, cache=cache, key_mask=real[:, :stop]).output)
    assert_same(torch.cat(outputs, 1), module(inputs, causal=True, key_mask=real).output)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_ragged_sequences_are_those_alone(make: Maker) -> None:
    """Every sequence appends as many tokens as it has; what pads them on the right is NaN."""
    module, cache, rounds = made(), make(), [(3, 5, 0), (1, 1, 1), (0, 2, 4), (1, 1, 1)]
    totals = [sum(counts) for counts in zip(*rounds, strict=True)]
    inputs = hidden(max(totals))
    expected = module(inputs, causal=True).output
    done = [0] * BATCH
    for counts in rounds:
        length = max(counts)
        step = torch.full((BATCH, length, WIDTH), torch.nan, dtype=torch.float64)
        for sequence, count in enumerate(counts):
            step[sequence, :count] = inputs[sequence, done[sequence] : done[sequence] + count]
        output = module(step, causal=True, cache=cache, lengths=counts).output
        for sequence, count in enumerate(counts):
            start = done[sequence]
            assert_same(output[sequence, :count], expected[sequence, start : start + count])
            done[sequence] += count
    assert cache.lengths.tolist() == totals == done


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_padding_mask_speaks_of_each_sequences_own_positions(make: Maker) -> None:
    module, cache, first, second = made(), make(), hidden(4), hidden(2)
    real = torch.ones(BATCH, 6, dtype=torch.bool)
    real[1, :2] = False
    module(first, causal=True, cache=cache, lengths=[1, 4, 2], key_mask=real[:, :4])
    output = module(second, causal=True, cache=cache, key_mask=real).output
    for sequence, held in enumerate((1, 4, 2)):
        alone = torch.cat([first[sequence, :held], second[sequence]])[None]
        row = module(alone.expand(BATCH, -1, -1), causal=True, key_mask=real[[sequence] * 3, : held + 2]).output
        assert_same(output[sequence], row[sequence, held:])


def test_the_mask_of_a_padded_query_is_found_where_it_stands() -> None:
    module, cache = made(), dense()
    module(hidden(3), causal=True, cache=cache, lengths=[3, 1, 2])
    real = torch.ones(BATCH, 4, dtype=torch.bool)
    real[1, :2] = False  # all that sequence 1 holds, and its new token at position 1
    assert module(hidden(1), causal=True, cache=cache, key_mask=real).output[1].eq(0).all()
    assert cache.lengths.tolist() == [4, 2, 3]
    real = torch.ones(BATCH, 5, dtype=torch.bool)
    real[1, :2] = False
    mask = torch.ones(BATCH, 1, 1, 5, dtype=torch.bool)
    mask[1, :, :, 2] = False  # the new token of sequence 1, at position 2, is no padding
    with pytest.raises(ValueError, match=r"^mask: expected every query that is no padding to see a key, got none for "):
        module(hidden(1), causal=True, cache=cache, key_mask=real, mask=mask)
    assert cache.lengths.tolist() == [4, 2, 3]


WRONG: dict[str, dict[str, Any]] = {
    "mask": {"mask": torch.ones(3, 3, dtype=torch.bool)},
    "mask of another kind": {"mask": torch.ones(1, dtype=torch.float64)},
    "bias": {"bias": torch.ones(2, 2, dtype=torch.float64)},
    "bias of another kind": {"bias": torch.ones(1, dtype=torch.int64)},
    "key mask": {"key_mask": torch.ones(BATCH, 4, dtype=torch.bool)},
    "query mask": {"query_mask": torch.ones(BATCH, 9, dtype=torch.bool)},
    "nothing to see": {"mask": torch.zeros(1, dtype=torch.bool)},
    "unknown backend": {"backend": "magic"},
    "backend that can't": {"backend": "sdpa"},
    "positions": {"positions": torch.arange(9)},
    "lengths": {"lengths": [1, 2]},
    "lengths out of range": {"lengths": [1, 2, 7]},
    "window": {"window": (1, 0)},
    "not causal": {"causal": False},
    "packed": {"cu_seqlens": [0, 5]},
}


@pytest.mark.parametrize("tokens", [1, 2, 5, 6])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_refused_call_leaves_the_cache_as_it_was(wrong: dict[str, Any], make: Maker, tokens: int) -> None:
    module, cache, twin = made(), make(), make()
    fill_both(module, cache, twin)
    with pytest.raises((ValueError, TypeError)):
        module(hidden(tokens), **{"causal": True, "cache": cache} | wrong)
    assert_twins(module, cache, twin)


def fill_both(module: GroupedQueryAttention, *caches: KeyValueCache) -> None:
    prefix = hidden(7)
    for cache in caches:
        module(prefix, causal=True, cache=cache, lengths=[7, 5, 6])


def assert_twins(module: GroupedQueryAttention, cache: KeyValueCache, twin: KeyValueCache) -> None:
    """The caches are equally long, and the next tokens see the same in both."""
    assert cache.lengths.tolist() == twin.lengths.tolist()
    inputs = hidden(2)
    assert_same(module(inputs, causal=True, cache=cache).output, module(inputs, causal=True, cache=twin).output)


def test_a_failure_that_cannot_be_taken_back_is_still_the_one_that_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window without margin can't take back a single token; its refusal must not stand in the failure's place."""
    cache, module = windowed(), made()
    with torch.no_grad():
        module(hidden(9), causal=True, cache=cache)

    def interrupted(*_: Any, **__: Any) -> Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr("headwise.nn.calls.attend", interrupted)
    with torch.no_grad(), pytest.raises(KeyboardInterrupt):
        module(hidden(1), causal=True, cache=cache)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_failure_in_the_middle_of_attention_is_taken_back(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    module, cache, twin = made(), make(), make()
    fill_both(module, cache, twin)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("headwise.nn.calls.attend", interrupted)
        with pytest.raises(KeyboardInterrupt):
            module(hidden(5), causal=True, cache=cache)
    assert_twins(module, cache, twin)


def test_a_cache_that_drops_what_a_head_sees_is_refused() -> None:
    message = (
        "cache: expected KV head 2 to keep what its query heads see (windows [4, 1] before their own position), got a "
        "window of 3; give the layer or the call that window"
    )
    short = WindowCache(BATCH, KV_HEADS, [2, None, 3], HEAD_DIM, capacity=CAPACITY, dtype=torch.float64)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        made()(hidden(2), causal=True, cache=short)
    assert short.length == 0
    all_short = WindowCache(BATCH, KV_HEADS, 3, HEAD_DIM, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"KV head 0 to keep what its query heads see \(windows \[None\] before"):
        made(window=None)(hidden(2), causal=True, cache=all_short)
    inputs, plain = hidden(9), made(window=None)
    steps = [plain(part, causal=True, cache=all_short, window=(3, 0)).output for part in inputs.split(2, 1)]
    assert_same(torch.cat(steps, 1), plain(inputs, causal=True, window=(3, 0)).output)


def test_a_quantized_cache_is_read_as_it_was_written() -> None:
    """What the layer adds to the rounding of the cache is nothing: attention over the rounded keys and values."""
    module, inputs = made(window=None), hidden(9)
    cache, numbers = (
        QuantizedCache(BATCH, KV_HEADS, CAPACITY, HEAD_DIM, bits=8, residual=2, dtype=torch.float64) for _ in range(2)
    )
    steps = [module(part, causal=True, cache=cache).output for part in inputs.split([6, 1, 1, 1], 1)]
    key, value = module.project_context(inputs)
    turned = module.rope(key, torch.arange(9))
    for tokens in zip(*(tensor.split([6, 1, 1, 1], 2) for tensor in (turned, value)), strict=True):
        (part,) = numbers.append(*tokens)
    query = module.rope(module.q_proj(inputs).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2), torch.arange(9))
    heads = attention(query[:, :, -1:], part.keys, part.values, sinks=module.sinks)
    assert_same(steps[-1], module.o_proj(heads.transpose(1, 2).flatten(2)))
    assert not torch.allclose(steps[-1], module(inputs, causal=True).output[:, -1:], atol=1e-6)


def test_another_batch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^cache: expected batch_size 2 as in hidden, got 3$"):
        made()(hidden(2)[:2], causal=True, cache=dense())


def test_numbers_of_new_tokens_are_checked() -> None:
    message = (
        r"^lengths: expected numbers from 0 to 2 \(the tokens that came\), got \[0, 1, 3\]; they count the leading"
    )
    with pytest.raises(ValueError, match=message):
        made()(hidden(2), causal=True, cache=dense(), lengths=torch.tensor([0, 1, 3]))
    with pytest.raises(ValueError, match=r"^cu_seqlens: expected none with a cache, whose sequences are the batch; "):
        made()(hidden(2)[:1], causal=True, cache=dense(), cu_seqlens=[0, 2])
