"""Native quantizing: to the bit what ``headwise.cache.quantization`` computes in PyTorch, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise import native_caches
from headwise.cache.quantization import code_dtype, code_width, quantize, quantize_into
from tests.native.decoding import ISAS, built
from tests.native.test_decode import DTYPES

pytestmark = built

B, G, T, D = 2, 3, 5, 7


def room(vectors: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Memory for codes and scales, with other memory around each of them."""
    batch, heads, tokens, width = vectors.shape
    codes = torch.full((batch, heads, tokens + 2, code_width(width, bits) + 1), 77, dtype=code_dtype(bits))
    scales = torch.full((batch, heads, tokens + 2, 1), 77.0)
    return codes[:, :, 1:-1, :-1], scales[:, :, 1:-1]


def assert_same_bits(vectors: Tensor, bits: int, isa: str) -> None:
    codes, scales = room(vectors, bits)
    native_caches.quantize(vectors, codes, scales, bits=bits, threads=2, isa=isa)
    for ours, expected in zip((codes, scales), quantize(vectors, bits), strict=True):
        assert torch.equal(ours.nan_to_num(nan=-1.0), expected.nan_to_num(nan=-1.0))
    around = torch.cat([codes._base[:, :, [0, -1]].flatten(), codes._base[:, :, :, -1].flatten()])  # type: ignore[index]
    assert (around == 77).all(), "memory beside the codes was written"


@settings(max_examples=60)
@given(
    width=st.integers(1, 256),
    spread=st.integers(-44, 38),
    seed=st.integers(0, 2**31),
    bits=st.sampled_from([8, 4]),
    dtype=st.sampled_from(DTYPES),
    isa=st.sampled_from(ISAS),
)
def test_codes_and_scales_are_those_of_pytorch(
    width: int, spread: int, seed: int, bits: int, dtype: torch.dtype, isa: str
) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(B, G, T, width, generator=generator, dtype=torch.float64) * 10.0**spread
    vectors[torch.rand(vectors.shape, generator=generator) < 0.2] = 0.0
    assert_same_bits(vectors.to(dtype), bits, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_at_the_edges_of_what_a_dtype_holds(dtype: torch.dtype, bits: int, isa: str) -> None:
    limits = torch.finfo(dtype)
    odd = [0.0, -0.0, limits.max, -limits.max, limits.tiny, limits.tiny * limits.eps, torch.inf, -torch.inf, torch.nan]
    vectors = torch.zeros(1, 1, len(odd) ** 2, D, dtype=torch.float64)
    for row, (one, other) in enumerate((one, other) for one in odd for other in odd):
        vectors[0, 0, row, 1], vectors[0, 0, row, D - 1] = one, other
    assert_same_bits(vectors.to(dtype), bits, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", [8, 4])
def test_halves_round_to_even(bits: int, isa: str) -> None:
    limit = 127 if bits == 8 else 7
    vectors = torch.cat([torch.arange(-limit, limit) + 0.5, torch.tensor([float(limit)])])  # a scale of 1
    assert_same_bits(vectors[None, None, None], bits, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", [8, 4])
def test_vectors_of_any_stride(bits: int, isa: str) -> None:
    vectors = torch.randn(T, B, 1, D + 2)[..., 1:-1].permute(1, 2, 0, 3).expand(-1, G, -1, -1)
    assert_same_bits(vectors, bits, isa)


def test_without_stride_one_it_is_still_right() -> None:
    vectors = torch.randn(B, G, D, T).transpose(2, 3)
    codes, scales = room(vectors, 4)
    quantize_into(vectors, codes, scales, 4)
    assert all(map(torch.equal, (codes, scales), quantize(vectors, 4)))


def arguments(**changed: Any) -> dict[str, Any]:
    codes, scales = torch.zeros(B, G, T, D, dtype=torch.int8), torch.zeros(B, G, T, 1)
    return {"vectors": torch.randn(B, G, T, D), "codes": codes, "scales": scales, "bits": 8} | changed


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bits": 5}, "bits: expected 8 or 4, got 5"),
        ({"bits": 4}, "codes: expected uint8, got int8"),
        ({"threads": 0}, "threads: expected at least 1, got 0"),
        ({"vectors": torch.zeros(B, G, T)}, "vectors: expected [B, G, T, D], got [2, 3, 5]"),
        (
            {"vectors": torch.zeros(B, G, T, D, dtype=torch.int8)},
            "vectors: expected float32, bfloat16 or float16, got int8",
        ),
        (
            {"codes": torch.zeros(B, G, T, D + 1, dtype=torch.int8)},
            "codes: expected [B, G, T, width] = [2, 3, 5, 7], got [2, 3, 5, 8]",
        ),
        ({"scales": torch.zeros(B, G, T)}, "scales: expected [B, G, T, width] = [2, 3, 5, 1], got [2, 3, 5]"),
        (
            {"scales": torch.zeros(B, G, 1, 1).expand(B, G, T, 1)},
            "scales: expected elements that share no memory, got strides [3, 1, 0, 1]",
        ),
        (
            {"codes": torch.zeros(B, G, D, T, dtype=torch.int8).transpose(2, 3)},
            "codes: expected a last axis with stride 1, got strides [105, 35, 1, 5]; call .contiguous() on it",
        ),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], message: str) -> None:
    given = arguments(**changed)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        native_caches.quantize(**given)
    assert not given["codes"].any()


def test_dtypes_that_no_kernel_knows() -> None:
    message = (
        "headwise.native_caches: expected a tensor of one of float32, bfloat16, float16, bool, int64, int8, uint8, "
        "int32, got torch.float64; convert it first"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        native_caches.quantize(**arguments(vectors=torch.zeros(B, G, T, D, dtype=torch.float64)))
    with pytest.raises(ValueError, match=r"^vectors: expected a tensor on the CPU, got one on meta$"):
        native_caches.quantize(**arguments(vectors=torch.zeros(B, G, T, D, device="meta")))
