"""Every backend, against the per-head oracle, over random calls with every option of the signature."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise.attention import attention, attention_weights, attention_with_lse, blocks
from headwise.attention.reference import reference_attention, reference_visible
from tests.attention.cases import HEADS, Case, cases, make_case
from tests.helpers.compare import EXACT, assert_same, assert_same_function

BLOCK_BYTES = st.sampled_from([1, 600, blocks.DEFAULT_BLOCK_BYTES])  # one row, a few rows, everything
DEFAULT = blocks.DEFAULT_BLOCK_BYTES
# Scores grow with the width and cancel against the maximum; float64 leaves this much.
CLOSE = 10 * EXACT


def fit_for_sdpa(case: Case) -> Case:
    """Without what the backend refuses."""
    case = case.without("softcap", "sinks")
    return Case(case.query, case.key, case.key.flip(-1), case.options)


@settings(max_examples=50)
@given(case=cases(), block_bytes=BLOCK_BYTES)
def test_math_equals_oracle_forward_and_backward(case: Case, block_bytes: int) -> None:
    def actual(**inputs: Tensor) -> tuple[Tensor, Tensor]:
        return attention_with_lse(**inputs, **case.fixed(), backend="math")

    def expected(**inputs: Tensor) -> tuple[Tensor, Tensor]:
        return reference_attention(**inputs, **case.fixed())[:2]

    with patch.object(blocks, "DEFAULT_BLOCK_BYTES", block_bytes):
        assert_same_function(actual, expected, case.inputs(), atol=CLOSE)


@settings(max_examples=50)
@given(case=cases().map(fit_for_sdpa))
def test_sdpa_equals_oracle_forward_and_backward(case: Case) -> None:
    def actual(**inputs: Tensor) -> tuple[Tensor]:
        return (attention(**inputs, **case.options, backend="sdpa"),)

    def expected(**inputs: Tensor) -> tuple[Tensor]:
        return (reference_attention(**inputs, **case.options).output,)

    inputs = {"query": case.query, "key": case.key, "value": case.value}
    assert_same_function(actual, expected, inputs, atol=CLOSE)


@settings(max_examples=50)
@given(case=cases().map(fit_for_sdpa), block_bytes=BLOCK_BYTES)
def test_sdpa_equals_oracle_in_blocks(case: Case, block_bytes: int) -> None:
    with patch.object(blocks, "DEFAULT_BLOCK_BYTES", block_bytes):
        actual = attention(case.query, case.key, case.value, **case.options, backend="sdpa")
    expected = reference_attention(case.query, case.key, case.value, **case.options).output
    assert_same(actual, expected, atol=CLOSE)


@settings(max_examples=40)
@given(case=cases(), block_bytes=BLOCK_BYTES)
def test_weights_equal_oracle(case: Case, block_bytes: int) -> None:
    inputs = case.inputs()
    value = inputs.pop("value")

    def actual(**inputs: Tensor) -> tuple[Tensor]:
        return (attention_weights(**inputs, **case.fixed()),)

    def expected(**inputs: Tensor) -> tuple[Tensor]:
        return (reference_attention(**inputs, value=value, **case.fixed()).weights,)

    with patch.object(blocks, "DEFAULT_BLOCK_BYTES", block_bytes):
        assert_same_function(actual, expected, inputs, atol=CLOSE)


@settings(max_examples=30)
@given(case=cases(), poison=st.sampled_from([torch.nan, torch.inf, 1e30]), block_bytes=BLOCK_BYTES)
def test_unread_memory_changes_nothing(case: Case, poison: float, block_bytes: int) -> None:
    read = reference_visible(case.query, case.key, **case.options)
    with patch.object(blocks, "DEFAULT_BLOCK_BYTES", block_bytes):
        for backend, fit in (("math", case), ("sdpa", fit_for_sdpa(case))):
            # sdpa gives no gradients in blocks
            backward = backend == "math" or block_bytes == DEFAULT
            clean, poisoned = (results(some, backend, backward) for some in (fit, fit.poisoned(read, poison)))
            for name in clean:
                assert_same(poisoned[name], clean[name], atol=0.0, what=f"{backend}: {name}")
        weights = attention_weights(case.query, case.key, **case.options)
        poisoned_key = case.poisoned(read, poison).key
        assert_same(attention_weights(case.query, poisoned_key, **case.options), weights, atol=0.0, what="weights")


def results(case: Case, backend: str, backward: bool) -> dict[str, Tensor]:
    """Output, and gradients on request."""
    if not backward:
        return {"output": attention(**case.inputs(), **case.fixed(), backend=backend)}
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in case.inputs().items()}
    if backend == "sdpa":
        leaves = {name: leaf if name in ("query", "key", "value") else leaf.detach() for name, leaf in leaves.items()}
    output = attention(**leaves, **case.fixed(), backend=backend)
    output.square().sum().backward()
    gradients = {f"gradient of {name}": leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    return {"output": output.detach(), **gradients}


@pytest.mark.parametrize("scale", [0.0, -0.3, 0.25])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window": (2, 0)}], ids=str)
@pytest.mark.parametrize("backend", ["math", "sdpa", None])
def test_a_scale_of_any_sign(scale: float, options: dict[str, Any], backend: str | None) -> None:
    """PyTorch's fused kernel scales after its own causal mask: 0 times -inf is NaN, and a negative scale shows what is
    hidden."""
    case = make_case(2, 6, 3, 7, 7, 5)

    def actual(**inputs: Tensor) -> tuple[Tensor]:
        return (attention(**inputs, **options, scale=scale, backend=backend),)

    def expected(**inputs: Tensor) -> tuple[Tensor]:
        return (reference_attention(**inputs, **options, scale=scale).output,)

    assert_same_function(actual, expected, case.inputs(), atol=CLOSE)


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("backend", ["math", "sdpa", None])
def test_heads_read_their_own_kv_head(heads: int, kv_heads: int, backend: str | None) -> None:
    case = make_case(2, heads, kv_heads, 3, 5, 7)
    expected = reference_attention(case.query, case.key, case.value, causal=True)
    assert_same(attention(case.query, case.key, case.value, causal=True, backend=backend), expected.output)


@pytest.mark.parametrize("queries", [1, 2, 16, 17, 37])
@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"causal": True, "window": (5, 0)}, {"window": [(3, 1)] * 6}]
)
def test_both_sides_of_every_switch_of_sdpa(queries: int, options: dict[str, Any]) -> None:
    # 16 queries are folded with their mask, 17 are not; 37 queries over 37 keys are plainly causal.
    case = make_case(2, 6, 3, queries, 37, 11)
    expected = reference_attention(case.query, case.key, case.value, **options).output
    assert_same(attention(case.query, case.key, case.value, **options, backend="sdpa"), expected)
