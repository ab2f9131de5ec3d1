"""Arguments of the wrong kind are refused by name, and layers without memory."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from headwise.cache import DenseCache, LatentCache
from headwise.nn import GroupedQueryAttention, RotaryEmbedding

REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "norm as a flag": (
        {"qk_norm": True},
        TypeError,
        "qk_norm: expected the eps of the norms, such as 1e-6, or None for no norms, got bool",
    ),
    "norm as a word": (
        {"qk_norm": "rms"},
        TypeError,
        "qk_norm: expected the eps of the norms, such as 1e-6, or None for no norms, got str",
    ),
    "norm too large": ({"qk_norm": 1.0}, ValueError, "qk_norm: expected an eps of at least 0 and below 1, got 1.0"),
    "rope as a flag": ({"rope": True}, TypeError, "rope: expected a RotaryEmbedding or None, got bool"),
    "sinks as numbers": (
        {"sinks": torch.zeros(6)},
        TypeError,
        "sinks: expected True or False, got Tensor; load numbers as a state dict",
    ),
}


@pytest.mark.parametrize(("options", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_options_of_another_kind_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        GroupedQueryAttention(24, 6, 2, **options)


@pytest.mark.parametrize("cache", [True, DenseCache, (torch.zeros(1),)], ids=["flag", "class", "tensors"])
def test_a_cache_of_another_kind_is_refused(cache: Any) -> None:
    kind = type(cache).__name__
    with pytest.raises(TypeError, match=f"^cache: expected a cache of headwise.cache, got {kind}; build one$"):
        GroupedQueryAttention(24, 6, 2)(torch.zeros(1, 3, 24), causal=True, cache=cache)


def test_a_cache_of_latents_is_refused() -> None:
    message = "cache: expected one of keys and values, got a LatentCache, which serves LatentAttention"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        GroupedQueryAttention(24, 6, 1)(torch.zeros(1, 3, 24), causal=True, cache=LatentCache(1, 5, 2, 2))


def test_tokens_that_are_no_tensor_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^hidden: expected a torch.Tensor, got list; convert it first$"):
        GroupedQueryAttention(24, 6, 2)([[1.0]])  # type: ignore[arg-type]


def test_shapes_alone_can_be_computed() -> None:
    layer = GroupedQueryAttention(24, 6, 2, rope=RotaryEmbedding(4), device="meta")
    assert layer(torch.zeros(2, 5, 24, device="meta"), causal=True).output.shape == (2, 5, 24)


def test_a_layer_built_without_memory_knows_its_angles_once_it_has_weights() -> None:
    torch.manual_seed(0)
    real = GroupedQueryAttention(24, 6, 2, rope=RotaryEmbedding(4, 100.0))
    with torch.device("meta"):
        built = GroupedQueryAttention(24, 6, 2, rope=RotaryEmbedding(4, 100.0))
    built.load_state_dict(real.state_dict(), assign=True)
    tokens = torch.randn(2, 5, 24)
    assert torch.equal(built(tokens, causal=True).output, real(tokens, causal=True).output)


def test_print_tells_of_sinks() -> None:
    assert "sinks=True" in repr(GroupedQueryAttention(24, 6, 2, sinks=True))
    assert "sinks" not in repr(GroupedQueryAttention(24, 6, 2))
