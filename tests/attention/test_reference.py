"""The oracle itself: worked examples, PyTorch's own attention, and its independence."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from headwise.attention import reference
from headwise.attention.reference import reference_attention, reference_visible
from tests.attention.cases import make_case
from tests.helpers.compare import assert_same

PACKAGE = Path(reference.__file__).parents[1]


def imported_names(path: Path) -> set[str]:
    """Every module that a file imports, and every name that it takes from one, as dotted text."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module or ''}.{alias.name}" for alias in node.names}
    return names


def test_it_shares_no_code_with_what_it_judges() -> None:
    own = {name for name in imported_names(Path(reference.__file__)) if name.startswith((".", "headwise"))}
    assert own == set()
    judged = [path for part in ("attention", "cache", "nn") for path in (PACKAGE / part).rglob("*.py")]
    assert len(judged) > 10
    for path in judged:
        assert not any("reference" in name for name in imported_names(path)), path


def test_four_worked_numbers() -> None:
    # Scores ln 1, ln 2 and ln 5; the sink adds ln 2 to the denominator: shares 1/10, 2/10, 5/10.
    query = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    key = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64).log().reshape(1, 1, 3, 1)
    value = torch.tensor([[10.0, 1.0], [20.0, 1.0], [40.0, 1.0]], dtype=torch.float64).reshape(1, 1, 3, 2)
    sinks = torch.tensor([2.0], dtype=torch.float64).log()
    result = reference_attention(query, key, value, sinks=sinks)
    assert_same(result.weights[0, 0, 0], torch.tensor([0.1, 0.2, 0.5], dtype=torch.float64))
    assert_same(result.output[0, 0, 0], torch.tensor([25.0, 0.8], dtype=torch.float64))
    assert result.lse.item() == pytest.approx(torch.tensor(10.0).log().item(), abs=1e-6)


def test_a_query_that_sees_nothing() -> None:
    case = make_case(1, 2, 1, 3, 5, 7)
    result = reference_attention(case.query, case.key, case.value, causal=True, offset=-2, sinks=torch.ones(2))
    assert result.lse[:, :, :2].eq(-torch.inf).all()
    assert result.output[:, :, :2].eq(0).all()
    assert result.weights[:, :, :2].eq(0).all()
    assert result.lse[:, :, 2].isfinite().all()


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 3), (6, 2), (6, 1), (6, 6)])
def test_it_agrees_with_pytorch_on_repeated_heads(heads: int, kv_heads: int) -> None:
    case = make_case(2, heads, kv_heads, 5, 7, 11, 13)
    mask = torch.rand(2, heads, 5, 7) < 0.7
    bias = torch.randn(5, 7, dtype=torch.float64)
    key, value = (tensor.repeat_interleave(heads // kv_heads, 1) for tensor in (case.key, case.value))
    with sdpa_kernel(SDPBackend.MATH):
        expected = scaled_dot_product_attention(
            case.query, key, value, attn_mask=bias.masked_fill(~mask, -torch.inf), scale=0.3
        )
    result = reference_attention(case.query, case.key, case.value, mask=mask, bias=bias, scale=0.3)
    assert_same(result.output, expected)


def test_weights_and_lse_belong_together() -> None:
    case = make_case(2, 6, 3, 5, 7, 11)
    result = reference_attention(case.query, case.key, case.value, causal=True)
    logits = torch.einsum("bhld,bhsd->bhls", case.query, case.key.repeat_interleave(2, 1)) / 11**0.5
    seen = reference_visible(case.query, case.key, causal=True)
    assert_same(result.weights, (logits - result.lse[..., None]).exp() * seen)
    assert_same(result.weights.sum(-1), torch.ones(2, 6, 5, dtype=torch.float64))
