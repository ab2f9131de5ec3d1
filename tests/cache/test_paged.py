"""What is particular about the paged cache: who holds which block, and that none is ever lost."""

from __future__ import annotations

import copy
import gc
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.cache import BlockPool, CacheFullError, DenseCache, PagedCache

B, G, D, DV, BLOCK = 2, 3, 7, 5, 4


def make(blocks: int = 20) -> BlockPool:
    """A pool whose memory is NaN."""
    pool = BlockPool(blocks, BLOCK, G, D, DV, dtype=torch.float64)
    for tensor in pool.planes.tensors:
        tensor.fill_(torch.nan)
    return pool


def tokens(count: int, batch: int = B) -> tuple[Tensor, Tensor]:
    one, other = (torch.randn(batch, G, count, width, dtype=torch.float64) for width in (D, DV))
    return one, other


def keys_of(cache: PagedCache, sequence: int = 0) -> Tensor:
    (part,) = cache.held()
    return part.keys[sequence, :, : int(cache.lengths[sequence])]


def test_blocks_are_taken_as_they_are_needed() -> None:
    pool = make()
    cache = PagedCache(pool, B)
    for count, lengths, used in ((3, None, 2), (1, None, 2), (1, [1, 0], 3), (3, None, 4), (9, [0, 9], 6)):
        cache.append(*tokens(count), lengths)
        assert pool.num_blocks - pool.num_free == used == sum(map(len, cache.block_tables))
        assert cache.nbytes == pool.nbytes_logical == used * BLOCK * G * (D + DV) * 8
        assert cache.nbytes_logical == sum(cache.lengths.tolist()) * G * (D + DV) * 8
    assert pool.nbytes == 20 * BLOCK * G * (D + DV) * 8


def test_everything_comes_back() -> None:
    pool = make()
    first, second = PagedCache(pool, B), PagedCache(pool, 3)
    first.append(*tokens(10))
    second.share(first, 7, sequence=1)
    second.append(*tokens(3, 3), [3, 0, 1])
    snapshots = [first.snapshot(), second.snapshot()]
    first.rollback([1, 6])
    first.reorder([1, 1])
    first.append(*tokens(5))
    second.select([2, 0])
    first.restore(snapshots[0])
    first.append(*tokens(1))
    assert pool.num_free < pool.num_blocks
    first.reset()
    snapshots[0].release()
    snapshots.clear()
    second.rollback([8, 10])
    assert pool.num_free == pool.num_blocks
    assert pool._holders == [0] * pool.num_blocks
    assert sorted(pool._free) == list(range(pool.num_blocks))


def test_caches_and_snapshots_that_nobody_has_any_more_hold_nothing() -> None:
    pool = make()
    cache = PagedCache(pool, B)
    cache.append(*tokens(9))
    snapshot = cache.snapshot()
    cache.append(*tokens(1))  # copies the last blocks, which the snapshot holds as well
    assert pool.num_blocks - pool.num_free == 8
    del snapshot
    gc.collect()
    assert pool.num_blocks - pool.num_free == 6
    del cache
    gc.collect()
    assert pool.num_free == pool.num_blocks


def test_rollback_gives_blocks_back() -> None:
    pool = make()
    cache = PagedCache(pool, B)
    cache.append(*tokens(9))
    for back, used in ((1, 4), ([0, 4], 3), ([3, 3], 3), ([1, 1], 1), (0, 1)):
        cache.rollback(back)
        assert pool.num_blocks - pool.num_free == used


def test_sharing_copies_no_token() -> None:
    pool = make()
    cache = PagedCache(pool, B)
    cache.append(*tokens(9))
    used = pool.num_free
    snapshot = cache.snapshot()
    cache.reorder([1, 0])
    cache.select([0, 1, 1, 0, 0])
    cache.restore(snapshot)
    assert pool.num_free == used
    assert pool.holders(cache.block_tables[0][0]) == 2


def test_a_shared_block_is_copied_when_it_is_written() -> None:
    pool = make()
    cache = PagedCache(pool, 1)
    cache.append(*tokens(6, 1))
    before = keys_of(cache).clone()
    cache.select([0, 0, 0])
    (full, half), *_ = cache.block_tables
    new = tokens(1, 3)
    cache.append(*new)
    tables = cache.block_tables
    assert [table[0] for table in tables] == [full] * 3  # what nobody writes stays shared
    assert len({table[1] for table in tables}) == 3
    assert half in {table[1] for table in tables}  # the last holder needs no copy
    for sequence in range(3):
        assert torch.equal(keys_of(cache, sequence), torch.cat([before, new[0][sequence]], 1))


def test_a_snapshot_is_not_reached_by_what_is_written_later() -> None:
    pool = make()
    cache = PagedCache(pool, 1)
    cache.append(*tokens(6, 1))
    before, snapshot = keys_of(cache).clone(), cache.snapshot()
    cache.rollback(1)
    cache.append(*tokens(2, 1))
    assert not torch.equal(keys_of(cache)[:, :6], before)
    cache.restore(snapshot)
    assert torch.equal(keys_of(cache), before)


def test_a_system_prompt_is_counted_once() -> None:
    pool = make()
    prompt = PagedCache(pool, 1)
    prompt.append(*tokens(10, 1))
    text = keys_of(prompt).clone()
    cache = PagedCache(pool, 3)
    cache.share(prompt)
    assert pool.nbytes_logical == cache.nbytes == 3 * pool.block_nbytes
    assert cache.nbytes_logical == 10 * G * (D + DV) * 8
    assert cache.lengths.tolist() == [10, 10, 10]
    new = tokens(2, 3)
    cache.append(*new)  # the half-filled last block is copied three times
    assert pool.nbytes_logical == 6 * pool.block_nbytes
    for sequence in range(3):
        assert torch.equal(keys_of(cache, sequence), torch.cat([text, new[0][sequence]], 1))
    assert torch.equal(keys_of(prompt), text)
    del prompt
    gc.collect()
    assert pool.nbytes_logical == 5 * pool.block_nbytes
    assert torch.equal(keys_of(cache)[:, :10], text)


def test_some_sequences_may_share_a_part_of_a_prefix() -> None:
    pool = make()
    cache = PagedCache(pool, 3)
    cache.append(*tokens(6, 3), [6, 2, 0])
    text = keys_of(cache).clone()
    cache.rollback([0, 2, 0])
    cache.share(cache, 5, into=[2, 1])
    assert cache.lengths.tolist() == [6, 5, 5]
    cache.append(*tokens(1, 3))
    for sequence in range(3):
        assert torch.equal(keys_of(cache, sequence)[:, :5], text[:, :5])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 7}, "share: expected 0 to 6 tokens (those of sequence 0), got 7"),
        ({"tokens": -1}, "share: expected 0 to 6 tokens (those of sequence 0), got -1"),
        ({"sequence": 2}, "share: expected sequences from 0 to 1, got 2 in [2]"),
        ({"into": [0, 3]}, "share: expected sequences from 0 to 2, got 3 in [0, 3]"),
        ({"into": [0, 2]}, "share: expected empty sequences, each named once, got sequence 2 with 1 tokens in [0, 2]"),
        ({"into": [0, 0]}, "share: expected empty sequences, each named once, got sequence 0 with 0 tokens in [0, 0]"),
    ],
)
def test_what_cannot_be_shared_is_refused(options: dict[str, Any], message: str) -> None:
    pool = make()
    other, cache = PagedCache(pool, B), PagedCache(pool, 3)
    other.append(*tokens(6))
    cache.append(*tokens(1, 3), [0, 0, 1])
    free = pool.num_free
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        cache.share(other, **options)
    assert (cache.lengths.tolist(), pool.num_free) == ([0, 0, 1], free)
    with pytest.raises(ValueError, match=r"^share: expected a cache of the same pool, got one of another"):
        PagedCache(make(), 1).share(other)


def test_exhaustion_loses_nothing() -> None:
    pool = make(5)
    cache, other = PagedCache(pool, B), PagedCache(pool, 1)
    cache.append(*tokens(6))
    held, tables = [keys_of(cache, sequence).clone() for sequence in range(B)], cache.block_tables
    message = (
        "PagedCache: expected to need at most 1 blocks (those that are free of 5 in the pool), got a need of 2; roll "
        "back or reset a cache of the pool, drop snapshots, or build a larger BlockPool"
    )
    for lengths in (None, [3, 3]):  # one sequence would fit, both don't
        with pytest.raises(CacheFullError, match=f"^{re.escape(message)}$"):
            cache.append(*tokens(3), lengths)
    snapshot = cache.snapshot()
    with pytest.raises(CacheFullError, match=r"got a need of 2;"):  # for copies of two shared blocks
        cache.append(*tokens(1))
    assert (cache.block_tables, pool.num_free, cache.length) == (tables, 1, 6)
    assert [keys_of(cache, sequence).equal(held[sequence]) for sequence in range(B)] == [True, True]
    snapshot.release()
    cache.append(*tokens(3), [3, 2])
    assert pool.num_free == 0
    with pytest.raises(CacheFullError, match=r"at most 0 blocks .* got a need of 1;"):
        other.append(*tokens(1, 1))
    cache.reset()
    other.append(*tokens(20, 1))


def test_blocks_may_lie_anywhere() -> None:
    pool = make(6)
    first, second = PagedCache(pool, 1), PagedCache(pool, 1)
    texts = [[], []]  # type: list[list[Tensor]]
    for _ in range(3):
        for cache, text in zip((first, second), texts, strict=True):
            new = tokens(4, 1)
            cache.append(*new)
            text.append(new[0][0])
    assert first.block_tables == ((0, 2, 4),)
    for cache, text in zip((first, second), texts, strict=True):
        assert torch.equal(keys_of(cache), torch.cat(text, 1))


def test_sizes_must_be_positive_integers() -> None:
    with pytest.raises(ValueError, match=r"^BlockPool: expected block_size to be a positive integer, got 0$"):
        BlockPool(2, 0, G, D)
    with pytest.raises(ValueError, match=r"^PagedCache: expected batch_size to be a positive integer, got 0$"):
        PagedCache(make(), 0)


def test_repr_tells_the_sizes() -> None:
    pool = make(5)
    assert repr(pool) == (
        "BlockPool(num_blocks=5, block_size=4, num_kv_heads=3, head_dim=7, value_head_dim=5, dtype=torch.float64, "
        "device='cpu', num_free=5)"
    )
    assert "num_kv_heads=3, block_size=4, head_dim=7" in repr(PagedCache(pool, 2))


def same_blocks(first: PagedCache, second: PagedCache) -> bool:
    return first.block_tables == second.block_tables and torch.equal(first.held()[0].keys, second.held()[0].keys)


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda whole: pickle.loads(pickle.dumps(whole))], ids=["copy", "pickle"]
)
def test_a_copied_cache_brings_its_pool_along(again: Callable[[Any], Any]) -> None:
    """transformers recommends a deep copy of the cache of a prefix for each prompt that begins with it."""
    pool = make(6)
    cache = PagedCache(pool, B)
    cache.append(*tokens(6))
    copied = again(cache)
    assert copied.pool is not pool
    assert (copied.pool.num_free, pool.num_free) == (2, 2)
    assert same_blocks(copied, cache)
    before = keys_of(cache).clone()
    copied.rollback(1)
    copied.append(*tokens(5))
    assert (copied.pool.num_free, pool.num_free) == (0, 2)
    assert torch.equal(keys_of(cache), before)
    others = copied.pool
    del copied
    gc.collect()
    assert (others.num_free, pool.num_free) == (6, 2)
    PagedCache(others, 1).append(*tokens(6 * BLOCK, 1))  # and every block can be taken again
    assert sorted(others._free) == list(range(6))


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda whole: pickle.loads(pickle.dumps(whole))], ids=["copy", "pickle"]
)
def test_caches_that_are_copied_together_share_a_copied_pool(again: Callable[[Any], Any]) -> None:
    pool = make(9)
    prompt, cache = PagedCache(pool, 1), PagedCache(pool, B)
    prompt.append(*tokens(6, 1))
    cache.share(prompt)
    snapshot = prompt.snapshot()
    copies = again([prompt, cache, snapshot])
    other_pool = copies[0].pool
    assert other_pool is copies[1].pool
    assert other_pool._holders == pool._holders
    assert (other_pool.num_free, other_pool.holders(prompt.block_tables[0][1])) == (7, 4)
    prompt.append(*tokens(3, 1))
    copies[1].append(*tokens(1))  # two copies of the block that four hold
    assert other_pool.num_free == 5
    copies[0].reset()
    copies[0].restore(copies[2])
    assert torch.equal(keys_of(copies[0]), keys_of(prompt)[:, :6])
    copies.clear()
    gc.collect()
    assert (other_pool.num_free, pool.num_free) == (9, 5)


def test_those_who_are_not_copied_hold_nothing_in_the_copy() -> None:
    pool = make(6)
    first, second = PagedCache(pool, 1), PagedCache(pool, 1)
    first.append(*tokens(6, 1))
    second.append(*tokens(3, 1))
    snapshot = first.snapshot()
    copied = copy.deepcopy(first)
    assert (pool.num_free, copied.pool.num_free) == (3, 4)
    copied.append(*tokens(1, 1))  # no copy of the half-filled block: nobody else holds it there
    assert copied.pool.num_free == 4
    assert copy.deepcopy(pool).num_free == 6
    assert snapshot.lengths == (6,)


def test_a_shallow_copy_of_a_pool_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^BlockPool: expected copy.deepcopy, got copy.copy; two pools can't deal"):
        copy.copy(make())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda pool: pool.holders(20), "holders: expected blocks from 0 to 19, got 20"),
        (lambda pool: pool.holders(-1), "holders: expected blocks from 0 to 19, got -1"),
        (lambda pool: pool.holders(True), "holders: expected blocks from 0 to 19, got True"),
        (lambda pool: pool.hold([0, 99]), "hold: expected blocks from 0 to 19, got 99"),
        (
            lambda pool: pool.hold([0, 3]),
            "hold: expected blocks with 1 or more holders, got block 3 with 0; take",
        ),
        (lambda pool: pool.drop([0, -20]), "drop: expected blocks from 0 to 19, got -20"),
        (
            lambda pool: pool.drop([0, 3]),
            "drop: expected blocks with 1 or more holders, got block 3 with 0; take",
        ),
        (lambda pool: pool.drop([1, 0, 0]), "drop: expected blocks with 2 or more holders, got block 0 with 1; take"),
        (lambda pool: pool.adopt([4, 20]), "adopt: expected blocks from 0 to 19, got 20"),
        (lambda pool: pool.copy([0], [20]), "copy: expected blocks from 0 to 19, got 20"),
        (lambda pool: pool.copy([-1], [0]), "copy: expected blocks from 0 to 19, got -1"),
        (lambda pool: pool.take(-1, "me"), "take: expected count to be an integer of at least 0, got -1"),
        (lambda pool: pool.take(1.0, "me"), "take: expected count to be an integer of at least 0, got 1.0"),
        (lambda pool: pool.take(True, "me"), "take: expected count to be an integer of at least 0, got True"),
    ],
)
def test_blocks_that_are_not_there_to_be_changed_are_refused(call: Callable[[BlockPool], Any], message: str) -> None:
    pool = make()
    cache = PagedCache(pool, B)
    cache.append(*tokens(3))
    before = list(pool._holders), list(pool._free), keys_of(cache).clone()
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        call(pool)
    assert (pool._holders, pool._free) == before[:2]
    assert torch.equal(keys_of(cache), before[2])


def test_what_is_no_pool_and_no_paged_cache_is_refused() -> None:
    for given, name in ((None, "NoneType"), (DenseCache(1, G, 5, D), "DenseCache")):
        with pytest.raises(TypeError, match=f"^PagedCache: expected pool to be a BlockPool, got {name}; build one fir"):
            PagedCache(given, 1)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=f"^share: expected a PagedCache of the same pool, got {name}$"):
            PagedCache(make(), 1).share(given)  # type: ignore[arg-type]
