"""What is particular about the quantized cache: how far a number may be from what it was, and when it changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.cache import QuantizedCache
from headwise.cache.quantization import dequantize, quantize

B, G, D, DV = 2, 3, 7, 5
LIMITS = {8: 127, 4: 7}


def tokens(count: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return torch.randn(B, G, count, D).to(dtype), torch.randn(B, G, count, DV).to(dtype)


def make(bits: int = 8, residual: int = 3, **options: Any) -> QuantizedCache:
    return QuantizedCache(B, G, 29, D, DV, bits=bits, residual=residual, **({"dtype": torch.float64} | options))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("width", [1, 2, 7, 8])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_number_moves_by_half_a_scale_at_most(bits: int, width: int, dtype: torch.dtype) -> None:
    spread = torch.logspace(-3, 3, 61, dtype=torch.float64)[:, None]
    vectors = (torch.randn(61, width, dtype=torch.float64) * spread).to(dtype)
    codes, scales = quantize(vectors, bits)
    back = dequantize(codes, scales, width, bits, dtype)
    assert back.dtype == dtype
    # Half a scale, what dividing and multiplying round (codes of up to `limit` scales), and the rounding to the dtype.
    arithmetic = 2 * LIMITS[bits] * torch.finfo(scales.dtype).eps
    allowed = scales.double() * (0.5 + arithmetic) + back.double().abs() * torch.finfo(dtype).eps
    assert ((back.double() - vectors.double()).abs() <= allowed).all()
    largest = vectors.double().abs().amax(-1, keepdim=True)
    assert torch.allclose(scales.double(), largest / LIMITS[bits], rtol=2 * torch.finfo(scales.dtype).eps, atol=0)


@pytest.mark.parametrize("bits", [8, 4])
def test_zero_vectors_and_the_largest_number_are_exact(bits: int) -> None:
    zeros = torch.zeros(3, 7)
    assert torch.equal(dequantize(*quantize(zeros, bits), 7, bits, torch.float32), zeros)
    vectors = torch.tensor([[0.0, 0.5, -2.0]])
    back = dequantize(*quantize(vectors, bits), 3, bits, torch.float32)
    assert back[0, 0] == 0
    assert abs(float(back[0, 2]) + 2) <= 2 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_tiny_and_huge_numbers_stay_finite(bits: int, dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    smallest = torch.tensor([limits.tiny * limits.eps, 0.0, limits.tiny]).to(dtype)
    huge = torch.tensor([limits.max, -limits.max, 1.0], dtype=dtype)
    for vector in (smallest, huge):
        codes, scales = quantize(vector, bits)
        back = dequantize(codes, scales, 3, bits, dtype)
        error = (back.double() - vector.double()).abs()
        assert (
            error
            <= scales.double() * (0.5 + 2 * LIMITS[bits] * torch.finfo(scales.dtype).eps)
            + vector.double().abs() * limits.eps
        ).all()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_what_has_no_scale_reads_as_nan_and_nothing_else_does(bits: int, poison: float) -> None:
    vectors = torch.randn(3, 7)
    vectors[1, 2] = poison
    back = dequantize(*quantize(vectors, bits), 7, bits, torch.float32)
    assert back[1].isnan().all()
    assert back[[0, 2]].isfinite().all()


def test_two_codes_of_four_bits_share_a_byte() -> None:
    codes, _ = quantize(torch.tensor([[-7.0, 7.0, 0.0, 1.0, -1.0]]), 4)
    assert codes.dtype == torch.uint8
    assert codes.tolist() == [[(7 + 8) << 4 | (-7 + 8), (1 + 8) << 4 | (0 + 8), -1 + 8]]
    codes, _ = quantize(torch.tensor([[-127.0, 3.0]]), 8)
    assert codes.dtype == torch.int8
    assert codes.tolist() == [[-127, 3]]


@pytest.mark.parametrize(("bits", "code_bytes"), [(8, D + DV), (4, 4 + 3)])
@pytest.mark.parametrize(
    ("dtype", "size", "scale"), [(torch.bfloat16, 2, 4), (torch.float32, 4, 4), (torch.float64, 8, 8)]
)
def test_bytes_are_those_of_codes_scales_and_the_latest(
    bits: int, code_bytes: int, dtype: torch.dtype, size: int, scale: int
) -> None:
    cache = make(bits, residual=3, dtype=dtype)
    token = code_bytes + 2 * scale
    assert cache.nbytes == B * G * ((29 - 3) * token + 3 * (D + DV) * size)
    cache.append(*tokens(5, dtype), [5, 2])
    assert cache.nbytes_logical == G * (2 * token + (3 + 2) * (D + DV) * size)


def test_no_more_is_kept_in_full_precision_than_fits() -> None:
    cache = make(residual=100)
    assert cache.residual == 29
    assert cache.nbytes == B * G * 29 * (D + DV) * 8
    key, value = tokens(29)
    cache.append(key, value)
    assert torch.equal(cache.held()[0].keys, key)


def test_a_token_is_quantized_once_when_it_is_no_longer_among_the_latest() -> None:
    cache, (key, value) = make(residual=3), tokens(10)
    changed_at: list[int | None] = [None] * 10
    settled: dict[int, Tensor] = {}
    for position in range(10):
        cache.append(key[:, :, position : position + 1], value[:, :, position : position + 1])
        (part,) = cache.held()
        for earlier in range(position + 1):
            now = part.keys[:, :, earlier]
            if earlier in settled:
                assert torch.equal(now, settled[earlier])  # to the bit, ever after
            elif not torch.equal(now, key[:, :, earlier]):
                changed_at[earlier], settled[earlier] = position, now
    assert changed_at == [3, 4, 5, 6, 7, 8, 9, None, None, None]


def test_new_tokens_are_handed_out_as_they_came() -> None:
    cache, (key, value) = make(residual=2), tokens(9)
    (part,) = cache.append(key[:, :, :6], value[:, :, :6])
    assert torch.equal(part.keys, key[:, :, :6])  # more than the residual, and yet nothing was rounded
    before = cache.held()[0].values.clone()
    (part,) = cache.append(key[:, :, 6:], value[:, :, 6:])
    assert torch.equal(part.values[:, :, :6], before)
    assert torch.equal(part.values[:, :, 6:], value[:, :, 6:])


def test_what_a_rollback_leaves_reads_as_before() -> None:
    cache = make(residual=3)
    cache.append(*tokens(12))
    before = cache.held()[0].keys.clone()
    cache.rollback([2, 7])
    (part,) = cache.held()
    assert torch.equal(part.keys[0, :, :10], before[0, :, :10])
    assert torch.equal(part.keys[1, :, :5], before[1, :, :5])
    cache.append(*tokens(4))
    (part,) = cache.held()
    assert torch.equal(part.keys[1, :, :5], before[1, :, :5])


def test_bits_are_eight_or_four() -> None:
    with pytest.raises(ValueError, match=r"^QuantizedCache: expected bits to be 8 or 4, got 2$"):
        make(bits=2)
    with pytest.raises(ValueError, match=r"^QuantizedCache: expected residual to be an integer of at least 0, got -1$"):
        make(residual=-1)


def test_repr_tells_bits_and_residual() -> None:
    cache = make(4)
    assert (cache.bits, cache.capacity) == (4, 29)
    assert "capacity=29, bits=4, residual=3, head_dim=7" in repr(cache)
