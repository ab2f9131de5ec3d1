"""Claims of docs/claims/caches.md: bytes of keys and values, and what follows from them."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from headwise.attention import attention_weights
from headwise.cache import BlockPool, DenseCache, PagedCache, WindowCache
from headwise.nn import GroupedQueryAttention
from headwise.plan import plan
from headwise.plan.compare import compare
from tests.claims.published import fields_of, told

GIB = 1 << 30
F64 = torch.float64
LLAMA = "meta-llama/Llama-2-7b"
# 6,738,415,616 parameters of two bytes, as published.
WEIGHTS = 13_476_831_232


@pytest.mark.parametrize(("kv_heads", "expected"), [(64, Fraction(5)), (8, Fraction(5, 8))])
def test_the_worked_cache_in_memory_that_is_really_allocated(kv_heads: int, expected: Fraction) -> None:
    """80 layers, 2,048 tokens, width 128, two bytes: one layer is allocated and 80 of them counted."""
    layer = DenseCache(1, kv_heads, 2048, 128, dtype=torch.bfloat16)
    assert Fraction(80 * layer.nbytes, GIB) == expected
    assert 80 * layer.nbytes == 2 * 1 * 80 * kv_heads * 2048 * 128 * 2
    assert DenseCache(3, kv_heads, 2048, 128, dtype=torch.bfloat16).nbytes == 3 * layer.nbytes
    named = fields_of("meta-llama/Llama-2-70b") | {"num_key_value_heads": kv_heads}
    assert plan(named, context=2048).total == 80 * layer.nbytes


def test_the_cache_shrinks_by_the_group_and_the_scores_do_not() -> None:
    rows = compare(told(LLAMA), "mha,gqa:16,gqa:8,gqa:2,mqa").rows[1:]
    for row, groups in zip(rows, (32, 16, 8, 2, 1), strict=True):
        assert row.share == Fraction(groups, 32)
        assert row.plan.decode.scores == rows[0].plan.decode.scores
        assert row.plan.prefill.softmax == rows[0].plan.prefill.softmax
    query = torch.randn(1, 6, 3, 5)
    assert {attention_weights(query, torch.randn(1, groups, 7, 5)).shape for groups in (6, 3, 2, 1)} == {(1, 6, 3, 7)}


def test_a_thirty_second_of_the_cache_is_not_thirty_two_times_the_requests() -> None:
    """24 GiB with 13.5 GB of weights, sequences of 4,096: 5 with all heads, 183 with one. Contexts: 32 times, but for
    rounding to whole tokens."""
    whole, one = (
        row.plan for row in compare(told(LLAMA, context=4096, budget="24GiB", weights=WEIGHTS), "mha,mqa").rows[1:]
    )
    room = 24 * GIB - WEIGHTS
    assert whole.total == 32 * one.total == 2 * GIB
    assert (whole.max_batch, one.max_batch) == (room // (2 * GIB), room // (2 * GIB // 32)) == (5, 183)
    assert Fraction(one.max_batch, whole.max_batch) > 36
    assert 32 * whole.max_context <= one.max_context < 32 * (whole.max_context + 1)
    assert one.max_context > 4096  # which is what the model was trained with
    # Fewer matrices leave room too: 2 x 32 layers x 4,096 x 31 heads x 128 numbers.
    assert whole.parameters.total - one.parameters.total == 2 * 32 * 4096 * 31 * 128


@pytest.mark.parametrize(("ranks", "ratio"), [(1, 32), (4, 8), (8, 4), (32, 1)])
def test_one_kv_head_is_copied_to_every_rank(ranks: int, ratio: int) -> None:
    """With tensor parallelism a rank holds a head at least, so that sharing beyond the ranks saves it nothing."""
    whole, one = (row.plan for row in compare(told(LLAMA, tp=ranks), "mha,mqa").rows[1:])
    assert Fraction(whole.total, one.total) == ratio


def test_a_quarter_of_the_cache_is_four_times_the_sequences_but_for_whole_ones() -> None:
    asked = {"context": 4096, "budget": "24GiB", "weights": WEIGHTS}
    whole, grouped = (row.plan for row in compare(told(LLAMA, **asked), "mha,gqa:8").rows[1:])
    assert whole.total == 4 * grouped.total
    assert (whole.max_batch, grouped.max_batch) == (5, 22)
    assert 4 * whole.max_batch <= grouped.max_batch < 4 * (whole.max_batch + 1)


def test_the_table_of_llama_3_8b() -> None:
    """32 layers, 32 heads, 8 KV heads of 128: 1 GiB of 8,192 tokens in bfloat16, 4 GiB with all heads."""
    for context, gib in ((2_048, Fraction(1, 4)), (8_192, Fraction(1)), (131_072, Fraction(16))):
        own, whole = compare(told("meta-llama/Meta-Llama-3-8B", context=context), "mha").rows
        assert Fraction(own.plan.total, GIB) == gib
        assert Fraction(whole.plan.total, GIB) == 4 * gib
        assert own.plan.total == 2 * 32 * 8 * context * 128 * 2


def test_a_cache_belongs_to_the_order_of_its_batch() -> None:
    layer, inputs = GroupedQueryAttention(30, 6, 2, dtype=F64), torch.randn(2, 7, 30, dtype=F64)
    with torch.no_grad():
        whole = layer(inputs, causal=True).output
        caches = [DenseCache(2, 2, 7, 5, dtype=F64) for _ in range(2)]
        for cache in caches:
            layer(inputs[:, :6], causal=True, cache=cache)
        wrong = layer(inputs[[1, 0], 6:], causal=True, cache=caches[0]).output
        assert (wrong - whole[[1, 0], 6:]).abs().amax((1, 2)).min() > 1e-3
        caches[1].reorder([1, 0])
        right = layer(inputs[[1, 0], 6:], causal=True, cache=caches[1]).output
    assert torch.allclose(right, whole[[1, 0], 6:], atol=1e-12)


def test_a_cache_belongs_to_the_weights_that_filled_it() -> None:
    layer, other = (GroupedQueryAttention(30, 6, 2, dtype=F64) for _ in range(2))
    inputs, cache = torch.randn(1, 7, 30, dtype=F64), DenseCache(1, 2, 7, 5, dtype=F64)
    with torch.no_grad():
        layer(inputs[:, :6], causal=True, cache=cache)
        assert (
            other(inputs[:, 6:], causal=True, cache=cache).output - other(inputs, causal=True).output[:, 6:]
        ).abs().max() > 1e-3
    narrow = DenseCache(1, 2, 7, 5, dtype=torch.float32)
    with pytest.raises((TypeError, ValueError), match="float32"), torch.no_grad():
        layer(inputs, causal=True, cache=narrow)


def test_gradients_are_not_kept_through_a_cache() -> None:
    layer, cache = GroupedQueryAttention(30, 6, 2), DenseCache(1, 2, 7, 5)
    with pytest.raises(ValueError, match="grad"):
        layer(torch.randn(1, 3, 30), causal=True, cache=cache)
    with torch.no_grad():
        assert not layer(torch.randn(1, 3, 30), causal=True, cache=cache).output.requires_grad


def test_windows_groups_and_pages_save_different_things() -> None:
    """A window bounds the tokens, a group the bytes of a token, pages what is allocated and not used."""
    dense, grouped = DenseCache(1, 6, 101, 5), DenseCache(1, 2, 101, 5)
    assert dense.nbytes == 3 * grouped.nbytes
    window = {length: WindowCache(1, 6, 17, 5) for length in (50, 101)}
    pools = {length: BlockPool(13, 8, 6, 5) for length in (50, 101)}
    used = {}
    for length, pool in pools.items():
        paged = PagedCache(pool, 1)
        tokens = torch.randn(1, 6, length, 5)
        paged.append(tokens, tokens)
        window[length].append(tokens, tokens)
        used[length] = pool.num_blocks - pool.num_free
    assert window[50].nbytes == window[101].nbytes < dense.nbytes
    assert used == {50: 7, 101: 13}  # blocks of 8 tokens: at most 7 places stay empty
    assert pools[101].block_nbytes == 8 * dense.nbytes // 101


def test_rejected_drafts_are_taken_back_from_the_cache() -> None:
    """Speculative decoding: the layout of heads stays, the cache is rolled back."""
    layer, inputs = GroupedQueryAttention(30, 6, 2, dtype=F64), torch.randn(1, 9, 30, dtype=F64)
    cache = DenseCache(1, 2, 9, 5, dtype=F64)
    with torch.no_grad():
        layer(inputs[:, :4], causal=True, cache=cache)
        layer(torch.randn(1, 3, 30, dtype=F64), causal=True, cache=cache)  # drafts, of which none is taken
        cache.rollback(3)
        after = layer(inputs[:, 4:], causal=True, cache=cache).output
        assert torch.allclose(after, layer(inputs, causal=True).output[:, 4:], atol=1e-12)


def test_an_encoder_keeps_nothing_and_a_decoder_all() -> None:
    assert told("google-bert/bert-base-uncased", context=512).total == 0
    assert told("openai-community/gpt2", context=512).total == 512 * 2 * 12 * 12 * 64 * 2
