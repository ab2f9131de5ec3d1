"""``headwise::attention`` before PyTorch's own judges: schema, fake tensors, autograd, compiled and exported graphs."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from headwise.attention import attention, attention_with_lse, operator
from headwise.attention.problem import Problem
from tests.attention.cases import Case, cases, make_case
from tests.helpers.compare import assert_same

CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "windows per head": {"causal": True, "window": [(2, 0), None] * 3, "softcap": 3.0},
    "ragged": {"causal": True, "key_lengths": torch.tensor([3, 7]), "offset": torch.tensor([0, 2])},
    "additive": {
        "bias": torch.randn(6, 1, 7, dtype=torch.float64, requires_grad=True),
        "sinks": torch.randn(6, dtype=torch.float64, requires_grad=True),
        "alibi_slopes": torch.rand(2, 6, dtype=torch.float64, requires_grad=True),
        "mask": torch.tensor([True, True, False, True, True, False, True]),
    },
}


def arguments(case: Case, **options: Any) -> tuple[Any, ...]:
    """What the public door hands to the operation."""
    seen: list[tuple[Any, ...]] = []
    real = operator.attention_operator

    def catch(*given: Any) -> tuple[Tensor, Tensor]:
        seen.append(given)
        return real(*given)

    with patch.object(operator, "attention_operator", catch):
        operator.call_operator(Problem.of(case.query, case.key, case.value, **options), "math")
    return seen[0]


def with_gradients(case: Case) -> Case:
    leaves = [tensor.requires_grad_() for tensor in (case.query, case.key, case.value)]
    return Case(*leaves, case.options)


@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
def test_opcheck(options: dict[str, Any]) -> None:
    case = with_gradients(make_case(2, 6, 3, 5, 7, 11, 13))
    given = arguments(case, **options)
    checks = torch.library.opcheck(torch.ops.headwise.attention.default, given)
    assert set(checks.values()) == {"SUCCESS"}
    assert len(checks) == 4


def test_opcheck_of_packed_documents() -> None:
    case = with_gradients(make_case(1, 6, 3, 12, 12, 7))
    given = arguments(case, causal=True, cu_seqlens=[0, 5, 12])
    checks = torch.library.opcheck(torch.ops.headwise.attention.default, given)
    assert set(checks.values()) == {"SUCCESS"}


def test_opcheck_of_the_backward_operation() -> None:
    case = make_case(2, 6, 3, 5, 7, 11, 13)
    given = arguments(case, causal=True, **CALLS["additive"])
    output, lse = torch.ops.headwise.attention(*given)
    detached = [tensor.detach() if isinstance(tensor, Tensor) else tensor for tensor in given]
    upstream = (torch.randn_like(output).detach(), torch.randn_like(lse).detach(), lse.detach(), [True] * 6)
    utilities = ("test_schema", "test_faketensor")  # it has no autograd of its own: second order goes another way
    checks = torch.library.opcheck(
        torch.ops.headwise.attention_backward.default, (*upstream, *detached), test_utils=utilities
    )
    assert set(checks.values()) == {"SUCCESS"}


@settings(max_examples=40)
@given(case=cases())
def test_the_operation_is_what_runs_without_gradients(case: Case) -> None:
    direct = attention_with_lse(case.query, case.key, case.value, **case.options, backend="math")
    output, lse = operator.call_operator(Problem.of(case.query, case.key, case.value, **case.options), "math")
    assert_same(output, direct.output, atol=0.0)
    assert_same(lse, direct.lse, atol=0.0)


class Exported(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        result = attention_with_lse(query, key, value, causal=True, window=(3, 0), softcap=2.0)
        return attention(query, key, value, causal=True), result.output, result.lse


def test_export_for_any_batch_and_lengths() -> None:
    batch, queries, keys = (torch.export.Dim(name) for name in ("batch", "queries", "keys"))
    case = make_case(2, 6, 3, 5, 7, 11)
    shapes = ({0: batch, 2: queries}, {0: batch, 2: keys}, {0: batch, 2: keys})
    program = torch.export.export(Exported(), (case.query, case.key, case.value), dynamic_shapes=shapes)
    assert any("headwise.attention" in str(node.target) for node in program.graph.nodes)
    for other in (make_case(3, 6, 3, 2, 13, 11), make_case(2, 6, 3, 11, 11, 11)):
        given = (other.query, other.key, other.value)
        for actual, expected in zip(program.module()(*given), Exported()(*given), strict=True):
            assert_same(actual, expected)


def test_wrong_lengths_are_refused_in_a_compiled_graph_too() -> None:
    """Nobody can look at them while the graph is made; without the check memory behind the keys would count."""
    torch.compiler.reset()
    case = make_case(2, 6, 3, 5, 7, 11)

    def run(lengths: Tensor) -> Tensor:
        return attention_with_lse(case.query, case.key, case.value, key_lengths=lengths).output

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    assert_same(compiled(torch.tensor([3, 7])), run(torch.tensor([3, 7])))
    message = r"^key_lengths: expected numbers from 0 to 7 \(the key length\), got \[3, 8\]"
    with pytest.raises(ValueError, match=message):
        compiled(torch.tensor([3, 8]))


@pytest.mark.parametrize("backend", ["math", None])
def test_autocast_reaches_neither_direction(backend: str | None) -> None:
    """Gradients too are accumulated in float32 where a model runs under autocast, backward pass included."""
    case = make_case(2, 6, 3, 5, 7, 11)
    results = []
    for enabled in (False, True):
        leaves = [t.float().clone().requires_grad_() for t in (case.query, case.key, case.value)]
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            output = attention(*leaves, causal=True, softcap=3.0, backend=backend)
            output.square().sum().backward()
        results.append([output.detach(), *(leaf.grad for leaf in leaves)])
    for expected, actual in zip(*results, strict=True):
        assert_same(actual, expected, atol=0.0)


def test_functional_transforms_differentiate_it() -> None:
    case = make_case(1, 2, 1, 3, 5, 7)

    def loss(query: Tensor) -> Tensor:
        return attention(query, case.key, case.value, softcap=2.0).square().sum()

    gradient = torch.func.grad(loss)(case.query)
    leaf = case.query.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    assert_same(gradient, expected)
