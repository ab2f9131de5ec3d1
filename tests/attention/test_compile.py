"""``torch.compile`` takes every call as one graph and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.attention import attention, attention_with_lse
from headwise.nn import GroupedQueryAttention
from tests.attention.cases import make_case
from tests.helpers.compare import assert_same_function

CALLS: dict[str, dict[str, Any]] = {
    "windows": {"causal": True, "window": [(2, 0), None] * 3, "mask": torch.tensor([True, False, True] + [True] * 4)},
    "lengths": {"key_lengths": torch.tensor([3, 7]), "offset": torch.tensor([0, 2]), "causal": True},
}


@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
def test_one_graph_and_the_same_results(options: dict[str, Any]) -> None:
    case = make_case(2, 6, 3, 5, 7, 11)
    torch.compiler.reset()

    def eager(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        result = attention_with_lse(query, key, value, **options)
        return attention(query, key, value, **options), result.output, result.lse

    compiled = torch.compile(eager, backend="aot_eager", fullgraph=True)
    assert_same_function(compiled, eager, case.inputs())


def test_the_layer_is_one_graph() -> None:
    torch.compiler.reset()
    layer = GroupedQueryAttention(12, 4, 2, dtype=torch.float64)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    real = torch.tensor([[True] * 5, [False] * 2 + [True] * 3])

    def run(module: Any) -> Any:
        return lambda hidden: (module(hidden, causal=True, key_mask=real).output,)

    assert_same_function(run(compiled), run(layer), {"hidden": torch.randn(2, 5, 12, dtype=torch.float64)})
