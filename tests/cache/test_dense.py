"""What is particular about the dense cache: its memory. The rest stands in ``tests/contract``."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from headwise.attention import attention, attention_with_lse
from headwise.cache import DenseCache
from tests.helpers.operations import Operations

SIZES = {"batch_size": 2, "num_kv_heads": 3, "capacity": 13, "head_dim": 7}


def poisoned_cache(dtype: torch.dtype = torch.float32) -> DenseCache:
    """A cache whose unwritten memory is NaN."""
    cache = DenseCache(2, 3, 13, 7, 5, dtype=dtype)
    cache.append(torch.full((2, 3, 13, 7), torch.nan, dtype=dtype), torch.full((2, 3, 13, 5), torch.nan, dtype=dtype))
    cache.reset()
    return cache


@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 8), (torch.float32, 4), (torch.bfloat16, 2)])
def test_bytes_are_those_of_compact_heads(dtype: torch.dtype, size: int) -> None:
    cache = DenseCache(2, 3, 13, 7, 5, dtype=dtype)
    assert cache.nbytes == 2 * 3 * 13 * (7 + 5) * size
    cache.append(torch.zeros(2, 3, 4, 7, dtype=dtype), torch.zeros(2, 3, 4, 5, dtype=dtype), [4, 1])
    assert cache.nbytes_logical == 3 * (4 + 1) * (7 + 5) * size
    assert cache.nbytes == cache.keys.untyped_storage().nbytes() + cache.values.untyped_storage().nbytes()


def test_bytes_of_a_large_layout() -> None:
    # 80 layers, 2048 tokens, width 128, two bytes: 5 GiB with 64 heads, 0.625 GiB with 8. Meta memory is free.
    full, shared = (DenseCache(1, heads, 2048, 128, dtype=torch.bfloat16, device="meta") for heads in (64, 8))
    assert full.nbytes * 80 == 5_368_709_120
    assert shared.nbytes * 80 == 671_088_640


def test_it_never_moves() -> None:
    cache = DenseCache(**SIZES)
    parts = [cache.append(torch.zeros(2, 3, 2, 7), torch.zeros(2, 3, 2, 7))[0] for _ in range(3)]
    before = parts[0].keys.data_ptr(), parts[0].values.data_ptr()
    for part in parts:
        assert (part.keys.data_ptr(), part.values.data_ptr()) == before
    cache.reset()
    cache.append(torch.zeros(2, 3, 1, 7), torch.zeros(2, 3, 1, 7))
    assert (cache.keys.data_ptr(), cache.values.data_ptr()) == before


def test_equally_long_sequences_cost_slices_and_nothing_else() -> None:
    cache, (key, value) = DenseCache(**SIZES), torch.zeros(2, 2, 3, 1, 7)
    for _ in range(3):
        with Operations() as ran:
            (part,) = cache.append(key, value)
        # The first three only look at memory in another way.
        assert set(ran.names) == {"aten::detach", "aten::slice.Tensor", "aten::alias", "aten::copy_"}
        assert ran.names.count("aten::copy_") == 2
        assert part.key_lengths is None
        assert (part.start, part.offset) == (0, cache.length - 1)


def test_keys_and_values_are_what_is_held() -> None:
    cache, key, value = poisoned_cache(), torch.randn(2, 3, 4, 7), torch.randn(2, 3, 4, 5)
    cache.append(key, value)
    assert cache.capacity == 13
    assert torch.equal(cache.keys, key)
    assert torch.equal(cache.values, value)


def test_defaults_are_those_of_pytorch() -> None:
    cache = DenseCache(**SIZES)
    assert (cache.value_head_dim, cache.dtype, cache.device) == (7, torch.get_default_dtype(), torch.device("cpu"))


def test_unread_slots_never_show() -> None:
    cache = poisoned_cache()
    query = torch.randn(2, 6, 2, 7)
    cache.append(torch.randn(2, 3, 4, 7), torch.randn(2, 3, 4, 5))
    assert attention(query, cache.keys, cache.values, causal=True).isfinite().all()
    cache.append(torch.full((2, 3, 2, 7), torch.nan), torch.full((2, 3, 2, 5), torch.nan))
    cache.rollback(2)
    assert cache.keys.isfinite().all()
    assert cache.values.isfinite().all()
    output, lse = attention_with_lse(query, cache.keys, cache.values, causal=True)
    assert output.isfinite().all()
    assert lse.isfinite().all()


def test_sizes_must_be_positive_integers() -> None:
    wrong: list[tuple[str, Any]] = [("batch_size", 0), ("num_kv_heads", -1), ("capacity", 2.0), ("head_dim", True)]
    for name, size in wrong:
        message = f"DenseCache: expected {name} to be a positive integer, got {size!r}"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            DenseCache(**(SIZES | {name: size}))
    with pytest.raises(ValueError, match=r"^DenseCache: expected value_head_dim to be a positive integer, got 0$"):
        DenseCache(**SIZES, value_head_dim=0)


def test_repr_tells_the_sizes() -> None:
    assert repr(DenseCache(2, 3, 13, 7, 5)) == (
        "DenseCache(batch_size=2, num_kv_heads=3, capacity=13, head_dim=7, value_head_dim=5, dtype=torch.float32, "
        "device='cpu', length=0)"
    )
