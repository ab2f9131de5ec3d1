"""Gradients of first and second order, against finite differences, and what blocks keep for the backward pass."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from headwise.attention import attention, attention_weights, attention_with_lse, blocks
from tests.attention.cases import make_case

CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "blind rows": {"causal": True, "offset": -1},
    "everything": {
        "causal": True,
        "window": [(2, 0), None, (0, 0), (4, 4)],
        "softcap": 2.0,
        "scale": 0.7,
        "mask": torch.tensor([True, False, True, True, True]),
        "key_lengths": [5, 3],
    },
}


def leaves_of(**more: Tensor) -> dict[str, Tensor]:
    case = make_case(2, 4, 2, 3, 5, 2, 3)
    given = {"query": case.query, "key": case.key, "value": case.value, **more}
    return {name: tensor.requires_grad_() for name, tensor in given.items()}


def finite_outputs(leaves: dict[str, Tensor], options: dict[str, Any]) -> Any:
    def function(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        named = dict(zip(leaves, tensors, strict=True))
        output, lse = attention_with_lse(**named, **options, backend="math")
        return output, lse[lse > -torch.inf]

    return function


@pytest.mark.parametrize(
    ("name", "block_bytes"),
    [("plain", 2**25), ("causal", 1), ("blind rows", 2**25), ("everything", 1), ("everything", 2**25)],
)
def test_gradcheck_of_every_floating_input(name: str, block_bytes: int) -> None:
    options = CALLS[name]
    leaves = leaves_of(
        bias=torch.randn(4, 1, 5, dtype=torch.float64),
        sinks=torch.randn(4, dtype=torch.float64),
        alibi_slopes=torch.rand(4, dtype=torch.float64),
    )
    with patch.object(blocks, "DEFAULT_BLOCK_BYTES", block_bytes):
        assert torch.autograd.gradcheck(finite_outputs(leaves, options), tuple(leaves.values()))


@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
def test_gradgradcheck(options: dict[str, Any]) -> None:
    leaves = leaves_of()
    assert torch.autograd.gradgradcheck(finite_outputs(leaves, options), tuple(leaves.values()))


def test_gradcheck_of_sdpa_and_weights() -> None:
    leaves = leaves_of()
    leaves["value"] = torch.randn(2, 2, 5, 2, dtype=torch.float64, requires_grad=True)

    def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention(query, key, value, causal=True, window=[(1, 0), None, (2, 0), None], backend="sdpa")

    assert torch.autograd.gradcheck(fused, tuple(leaves.values()))

    def weights(query: Tensor, key: Tensor) -> Tensor:
        return attention_weights(query, key, causal=True)

    assert torch.autograd.gradcheck(weights, (leaves["query"], leaves["key"]))


@pytest.mark.parametrize("block_bytes", [1, blocks.DEFAULT_BLOCK_BYTES])
def test_nothing_as_large_as_the_map_is_kept(block_bytes: int) -> None:
    """What the backward pass needs grows with the lengths alone, however the call is cut into blocks."""
    case = make_case(1, 4, 2, 67, 67, 2)
    query, key, value = (tensor.requires_grad_() for tensor in (case.query, case.key, case.value))
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with (
        patch.object(blocks, "DEFAULT_BLOCK_BYTES", block_bytes),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        output = attention(query, key, value, causal=True, softcap=3.0, window=(13, 0), backend="math")
    lse_bytes = 4 * 67 * 8
    assert 0 < sum(kept.values()) <= query.nbytes + key.nbytes + value.nbytes + lse_bytes + output.nbytes
    assert output.nbytes < 4 * 67 * 67 * 8 / 10
