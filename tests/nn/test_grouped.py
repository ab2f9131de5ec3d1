"""The layer against the per-head oracle: grouping, order of time, caches, counts, refusals."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise.nn
from headwise.cache import DenseCache
from headwise.nn import GroupedQueryAttention
from tests.helpers.compare import assert_same, assert_same_function
from tests.nn.by_hand import by_hand

BATCH, LENGTH, WIDTH, HEADS = 2, 5, 12, 4


def hidden(length: int = LENGTH) -> Tensor:
    return torch.randn(BATCH, length, WIDTH, dtype=torch.float64)


def layer(*sizes: int, **options: Any) -> GroupedQueryAttention:
    return GroupedQueryAttention(*sizes, dtype=torch.float64, **options)


def test_public_names() -> None:
    assert set(headwise.nn.__all__) >= {
        "GroupedQueryAttention", "LatentAttention", "LatentForm", "LayerOutput", "ProjectedContext", "RMSNorm",
        "RotaryEmbedding", "TorchMasks", "masks_from_torch", "to_half_split", "to_interleaved",
    }  # fmt: skip
    assert all(hasattr(headwise.nn, name) for name in headwise.nn.__all__)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("head_dim", [None, 5])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_every_divisor_equals_the_oracle(kv_heads: int, head_dim: int | None, bias: bool, causal: bool) -> None:
    module = layer(WIDTH, HEADS, kv_heads, head_dim, bias=bias)

    def actual(inputs: Tensor, **weights: Tensor) -> tuple[Tensor, Tensor]:
        result = torch.func.functional_call(module, weights, (inputs,), {"causal": causal, "need_weights": True})
        return result.output, result.weights

    def expected(inputs: Tensor, **weights: Tensor) -> tuple[Tensor, Tensor]:
        for name, weight in weights.items():
            owner, kind = name.split(".")
            delattr(getattr(twin, owner), kind)
            setattr(getattr(twin, owner), kind, weight)
        return by_hand(twin, inputs, causal=causal)

    twin = layer(WIDTH, HEADS, kv_heads, head_dim, bias=bias)
    named = {name: parameter.detach() for name, parameter in module.named_parameters()}
    renamed_inputs = {"inputs": hidden(), **named}
    assert_same_function(actual, expected, renamed_inputs)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_cross_attention_equals_the_oracle(kv_heads: int) -> None:
    module, inputs, context = layer(WIDTH, HEADS, kv_heads), hidden(), hidden(7)
    mask = torch.rand(BATCH, 1, LENGTH, 7) < 0.7
    mask[..., 0] = True
    result = module(inputs, context, mask=mask, need_weights=True)
    expected = by_hand(module, inputs, context, mask=mask)
    assert_same(result.output, expected.output)
    assert_same(result.weights, expected.weights)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("steps", [(2, 3), (1, 1, 1, 1, 1), (0, 5), (4, 0, 1)])
@pytest.mark.parametrize("window", [None, (1, 0), [(1, 0), None, (0, 0), (3, 0)]])
def test_decoding_with_a_cache_equals_the_full_pass(kv_heads: int, steps: tuple[int, ...], window: Any) -> None:
    module, inputs = layer(WIDTH, HEADS, kv_heads), hidden()
    full = by_hand(module, inputs, causal=True, window=window)
    cache = DenseCache(BATCH, kv_heads, 7, WIDTH // HEADS, dtype=torch.float64)
    cache.append(*(torch.full((BATCH, kv_heads, 7, 3), torch.nan, dtype=torch.float64) for _ in range(2)))
    cache.reset()  # what lies beyond the length is NaN now
    outputs, start = [], 0
    with torch.no_grad():
        for step in steps:
            part = inputs[:, start : start + step]
            result = module(part, causal=True, window=window, cache=cache, need_weights=True)
            outputs.append(result.output)
            start += step
            assert_same(result.weights, full.weights[:, :, start - step : start, :start])
    assert_same(torch.cat(outputs, 1), full.output)
    assert cache.keys.shape == (BATCH, kv_heads, LENGTH, WIDTH // HEADS)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_no_query_looks_ahead(kv_heads: int) -> None:
    module, inputs = layer(WIDTH, HEADS, kv_heads), hidden()
    changed = inputs.clone()
    changed[:, 3:] += 100
    before, after = module(inputs, causal=True).output, module(changed, causal=True).output
    assert_same(after[:, :3], before[:, :3])
    assert not torch.allclose(after[:, 3:], before[:, 3:])
    assert not torch.allclose(module(changed).output[:, :3], module(inputs).output[:, :3])


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_padding_changes_no_real_token(kv_heads: int) -> None:
    module, inputs = layer(WIDTH, HEADS, kv_heads), hidden()
    padded = torch.cat([torch.full((BATCH, 2, WIDTH), 1e30, dtype=torch.float64), inputs], 1)
    real = torch.ones(BATCH, LENGTH + 2, dtype=torch.bool)
    real[:, :2] = False
    result = module(padded, causal=True, key_mask=real, need_weights=True)
    expected = module(inputs, causal=True, need_weights=True)
    assert_same(result.output[:, 2:], expected.output)
    assert_same(result.weights[:, :, 2:, 2:], expected.weights)
    assert result.output[:, :2].eq(0).all()  # left padding sees nothing


def test_a_padding_mask_spans_cached_and_new_tokens() -> None:
    module, inputs = layer(WIDTH, HEADS, 2), hidden()
    real = torch.tensor([[True] * 5, [False, True, True, True, True]])
    full = module(inputs, causal=True, key_mask=real).output
    cache = DenseCache(BATCH, 2, 7, 3, dtype=torch.float64)
    with torch.no_grad():
        first = module(inputs[:, :2], causal=True, key_mask=real[:, :2], cache=cache).output
        second = module(inputs[:, 2:], causal=True, key_mask=real, cache=cache).output
    assert_same(torch.cat([first, second], 1), full.detach())


def test_gradients_of_a_padded_batch_are_finite() -> None:
    module, inputs = layer(WIDTH, HEADS, 2), hidden()
    inputs[:, :2] = 1e30
    real = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    real[:, :2] = False
    module(inputs.requires_grad_(), causal=True, key_mask=real).output[:, 2:].square().sum().backward()
    assert inputs.grad is not None
    assert inputs.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_parameters_are_counted_by_the_formula(kv_heads: int) -> None:
    module = layer(WIDTH, HEADS, kv_heads)
    assert count(module) == 2 * WIDTH**2 + 2 * WIDTH * kv_heads * (WIDTH // HEADS)


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(("kv_heads", "parameters"), [(8, 16_640), (4, 12_480), (2, 10_400), (1, 9_360)])
def test_counts_of_width_64_with_biases(kv_heads: int, parameters: int) -> None:
    assert count(GroupedQueryAttention(64, 8, kv_heads, bias=True)) == parameters


@pytest.mark.parametrize("heads", [4, 8, 16, 32])
def test_the_number_of_heads_costs_no_parameters(heads: int) -> None:
    assert count(GroupedQueryAttention(64, heads, bias=True)) == 16_640
    assert count(GroupedQueryAttention(64, heads)) == 4 * 64**2 == 16_384


def test_what_one_shared_head_saves() -> None:
    full, shared = GroupedQueryAttention(64, 4), GroupedQueryAttention(64, 4, 1)
    key_value = [count(module.k_proj) + count(module.v_proj) for module in (full, shared)]
    assert 1 - key_value[1] / key_value[0] == 0.75
    assert 1 - count(shared) / count(full) == 0.375
    # Eight heads: 0.5625 without biases. With biases on one side only it reads 0.571, which compares unlike things.
    assert count(GroupedQueryAttention(64, 8, 1)) / count(GroupedQueryAttention(64, 8)) == 0.5625
    assert round(count(GroupedQueryAttention(64, 8, 1, bias=True)) / count(GroupedQueryAttention(64, 8)), 3) == 0.571


def test_full_width_heads_cost_more() -> None:
    assert count(GroupedQueryAttention(512, 8, device="meta")) == 1_048_576
    assert count(GroupedQueryAttention(512, 8, head_dim=512, device="meta")) == 8_388_608


def test_the_wrong_reshape_is_another_tensor() -> None:
    raw = torch.arange(BATCH * LENGTH * WIDTH).reshape(BATCH, LENGTH, WIDTH)
    right = layer(WIDTH, HEADS)._heads_of(raw, None)
    assert torch.equal(right, torch.stack(raw.split(3, -1), 1))
    wrong = raw.reshape(BATCH, HEADS, LENGTH, 3)
    assert right.shape == wrong.shape
    assert not torch.equal(right, wrong)


def test_the_same_weights_with_another_head_count_are_another_function() -> None:
    four, one, inputs = layer(WIDTH, 4), layer(WIDTH, 1), hidden()
    one.load_state_dict(four.state_dict())
    assert not torch.allclose(one(inputs, causal=True).output, four(inputs, causal=True).output)


WRONG_SIZES: list[tuple[tuple[Any, ...], str]] = [
    ((12, 0, 1), "expected num_heads to be a positive integer, got 0"),
    ((0, 4), "expected embed_dim to be a positive integer, got 0"),
    ((12, 4, -2), "expected num_kv_heads to be a positive integer, got -2"),
    ((12, 4, 2, 0), "expected head_dim to be a positive integer, got 0"),
    ((12, 4.0), "expected num_heads to be a positive integer, got 4.0"),
    ((13, 3, 1), "expected num_heads to divide embed_dim 13, got 3; or pass head_dim"),
    (
        (12, 3, 2),
        "expected num_kv_heads to divide num_heads 3, got 2; every KV head must serve equally many query heads",
    ),
]


@pytest.mark.parametrize(("sizes", "message"), WRONG_SIZES)
def test_sizes_that_do_not_fit_are_refused(sizes: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^GroupedQueryAttention: {re.escape(message)}$"):
        GroupedQueryAttention(*sizes)


def test_a_head_dim_of_its_own_needs_no_division() -> None:
    assert GroupedQueryAttention(13, 3, 1, 5)(torch.zeros(2, 3, 13)).output.shape == (2, 3, 13)


def test_a_real_query_that_sees_no_key_is_refused() -> None:
    module, inputs = layer(WIDTH, HEADS, 2), hidden()
    mask = torch.ones(BATCH, HEADS, LENGTH, LENGTH, dtype=torch.bool)
    mask[1, 2, 3] = False
    message = (
        "mask: expected every query that is no padding to see a key, got none for query 3 of sequence 1 (head 2); "
        "check mask, key_mask and window, or mark padding with query_mask"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        module(inputs, mask=mask)
    real = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    real[1, 3] = False
    assert module(inputs, mask=mask, query_mask=real).output.isfinite().all()
    nothing = torch.zeros(BATCH, 7, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"^key_mask: expected a token that is no padding, got none"):
        module(inputs, hidden(7), key_mask=nothing)
    nothing[0, 2] = True
    with pytest.raises(ValueError, match=r"^mask: expected every query that is no padding to see a key"):
        module(inputs, hidden(7), key_mask=nothing)
    with pytest.raises(ValueError, match=r"^mask: expected every query that is no padding to see a key"):
        module(inputs, hidden(0))


def test_inputs_that_do_not_fit_are_refused() -> None:
    module, inputs = layer(WIDTH, HEADS, 2), hidden()
    with pytest.raises(ValueError, match=r"^hidden: expected \[batch, length, embed_dim = 12\], got \[2, 5, 13\]$"):
        module(torch.zeros(2, 5, 13))
    with pytest.raises(ValueError, match=r"^context: expected \[batch, length, embed_dim = 12\], got \[2, 12\]$"):
        module(inputs, torch.zeros(2, 12))
    with pytest.raises(
        ValueError, match=r"^key_mask: expected bool \[batch, keys\] = \[2, 5\] with True = a real token"
    ):
        module(inputs, key_mask=torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"^key_mask: expected bool .* got torch.int64; turn 1 and 0 into"):
        module(inputs, key_mask=torch.ones(2, 5, dtype=torch.int64))
    with pytest.raises(
        ValueError, match=r"^query_mask: expected bool \[batch, queries\] = \[2, 5\] with True = a real"
    ):
        module(inputs, causal=True, query_mask=torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"^mask: expected dtype torch.bool \(True = may attend\), got torch.float64"):
        module(inputs, mask=torch.zeros(5, 5, dtype=torch.float64), key_mask=torch.ones(2, 5, dtype=torch.bool))


def test_a_cache_serves_causal_self_attention_without_gradients() -> None:
    module, inputs = layer(WIDTH, HEADS, 2), hidden()
    cache = DenseCache(BATCH, 2, 7, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"^cache: expected causal=True with a cache, got causal=False; "):
        module(inputs, cache=cache)
    with pytest.raises(ValueError, match=r"^cache: expected none with context, "):
        module(inputs, hidden(), causal=True, cache=cache)
    with pytest.raises(ValueError, match=r"^key: expected a tensor without gradient"):
        module(inputs, causal=True, cache=cache)
    assert cache.length == 0


def test_a_refused_call_leaves_the_cache_as_it_was() -> None:
    module, inputs = layer(WIDTH, HEADS, 2), hidden()
    cache = DenseCache(BATCH, 2, 7, 3, dtype=torch.float64)
    with torch.no_grad():
        module(inputs[:, :2], causal=True, cache=cache)
        held = cache.keys.clone()
        with pytest.raises(ValueError, match=r"^mask: "):
            module(inputs[:, 2:4], causal=True, cache=cache, mask=torch.ones(3, 3, dtype=torch.bool))
        with pytest.raises(ValueError, match=r"^DenseCache: expected at most 5 more tokens"):
            module(hidden(6), causal=True, cache=cache)
    assert torch.equal(cache.keys, held)


def test_print_tells_the_sizes() -> None:
    assert "embed_dim=12, num_heads=4, num_kv_heads=2, head_dim=3" in repr(layer(WIDTH, HEADS, 2))
