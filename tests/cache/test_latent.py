"""What is particular about the latent cache: keys and values are the same memory."""

from __future__ import annotations

import pytest
import torch

from headwise.cache import LatentCache

B, LATENT, ROTARY = 2, 7, 3


def test_values_are_columns_of_the_keys() -> None:
    cache = LatentCache(B, 13, LATENT, ROTARY)
    assert (cache.num_kv_heads, cache.head_dim, cache.value_head_dim) == (1, LATENT + ROTARY, LATENT)
    assert (cache.latent_dim, cache.rotary_dim) == (LATENT, ROTARY)
    latent, rotary_key = torch.randn(B, 1, 4, LATENT), torch.randn(B, 1, 4, ROTARY)
    (part,) = cache.append(latent, rotary_key)
    assert torch.equal(part.keys, torch.cat([latent, rotary_key], -1))
    assert torch.equal(part.values, latent)
    assert part.values.data_ptr() == part.keys.data_ptr()
    assert torch.equal(cache.latents, latent)
    assert torch.equal(cache.rotary_keys, rotary_key)
    assert cache.rotary_keys.untyped_storage().data_ptr() == part.keys.untyped_storage().data_ptr()


def test_nothing_is_counted_twice() -> None:
    cache = LatentCache(B, 13, LATENT, ROTARY, dtype=torch.bfloat16)
    (part,) = cache.append(torch.randn(B, 1, 4, LATENT).bfloat16(), torch.randn(B, 1, 4, ROTARY).bfloat16())
    assert cache.nbytes == B * 13 * (LATENT + ROTARY) * 2 == part.keys.untyped_storage().nbytes()
    assert cache.nbytes_logical == B * 4 * (LATENT + ROTARY) * 2


def test_bytes_of_a_published_layout() -> None:
    # DeepSeek-V2: 60 layers, latents of 512 and rotary keys of 64, two bytes: 69,120 bytes a token.
    cache = LatentCache(1, 1, 512, 64, dtype=torch.bfloat16, device="meta")
    assert cache.nbytes * 60 == 69_120


def test_sizes_must_be_positive_integers() -> None:
    with pytest.raises(ValueError, match=r"^LatentCache: expected rotary_dim to be a positive integer, got 0$"):
        LatentCache(B, 13, LATENT, 0)


def test_repr_tells_the_sizes() -> None:
    assert repr(LatentCache(B, 13, LATENT, ROTARY)) == (
        "LatentCache(batch_size=2, num_kv_heads=1, capacity=13, latent_dim=7, rotary_dim=3, head_dim=10, "
        "value_head_dim=7, dtype=torch.float32, device='cpu', length=0)"
    )
