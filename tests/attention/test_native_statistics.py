"""Statistics by the compiled kernels: when they are chosen, what they refuse, and that both ways say the same."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor

from headwise.attention import (
    HeadStatistics,
    attention,
    attention_with_lse,
    attention_with_statistics,
    compiled,
    compiled_statistics,
    head_statistics,
    reduction,
)
from headwise.attention.forms import EqualIds
from headwise.study.relations import Keys, Match, Offset, Target
from tests.attention.cases import Case, cases, make_case
from tests.helpers.compare import assert_same
from tests.helpers.operations import Operations


class Formless(NamedTuple):
    """A relation that says its keys and nothing more: those an even number of places behind the query."""

    name: str = "even"

    def keys(self, queries: Tensor, key_length: int) -> Tensor:
        return (queries[..., None] - torch.arange(key_length)) % 2 == 0


class Even(Formless):
    """The same with a form."""

    def form(self, queries: Tensor, key_length: int) -> EqualIds:
        return EqualIds(queries % 2, torch.arange(key_length)[None] % 2)


def test_a_relation_means_the_same_with_and_without_a_form() -> None:
    case = single(make_case(2, 6, 2, 37, 41, 5))
    formless = head_statistics(case.query, case.key, [Formless()], causal=True)
    formed = head_statistics(case.query, case.key, [Even()], causal=True, backend="native")
    assert_same(formed.mass, formless.mass, atol=1e-5)
    assert torch.equal(formed.informative, formless.informative)
    assert formless.mass[0, :, :, 20:].min() > 0


def single(case: Case) -> Case:
    """The same call in float32."""
    options = {
        name: one.float() if isinstance(one, Tensor) and one.dtype == torch.float64 else one
        for name, one in case.options.items()
    }
    return Case(case.query.float(), case.key.float(), case.value.float(), options)


def known(case: Case) -> list[Any]:
    """Relations of every form that the kernels know."""
    batch, keys = case.key.shape[0], case.key.shape[2]
    generator = torch.Generator().manual_seed(19)
    tokens = torch.randint(-2, 2, (batch, keys), generator=generator)
    labels = torch.randint(-1, max(keys, 1), (batch, keys), generator=generator)
    members = torch.rand(batch, keys, generator=generator) < 0.4
    return [
        Offset(1),
        Offset(-2),
        Match(0, tokens),
        Match(1, tokens),
        Match(2, tokens[:1]),
        Keys(members),
        Keys(torch.arange(keys) == 0, "first"),
        Target(labels),
        Target(labels[0], "one for all"),
    ]


MEASURED = ("mass", "entropy", "largest", "distance", "lse")
COUNTED = ("uniform", "informative", "seeing")


def assert_both_ways(case: Case, relations: list[Any]) -> HeadStatistics:
    """The kernels give what PyTorch's operations give: counts to the bit, the rest as exactly."""
    native = head_statistics(case.query, case.key, relations, **case.options, backend="native")
    plain = head_statistics(case.query, case.key, relations, **case.options, backend="math")
    exact = head_statistics(case.query.double(), case.key.double(), relations, **case.options)
    assert native.names == plain.names
    for field in COUNTED:
        assert torch.equal(getattr(native, field), getattr(plain, field)), field
    for field in MEASURED:
        found, other, right = (getattr(one, field) for one in (native, plain, exact))
        assert found.shape == other.shape, field
        assert found.dtype == other.dtype, field
        # What both lose of scores of up to 100 and of distances of up to 20, in float32.
        assert_same(found.double(), right, atol=100 * 20 * torch.finfo(torch.float32).eps, what=field)
    return native


@hypothesis_settings(max_examples=60)
@given(cases().map(single))
def test_the_kernels_say_what_pytorch_says(case: Case) -> None:
    assert_both_ways(case, known(case))


@pytest.mark.parametrize("packed", [[0, 7, 7, 19], ([0, 3, 3, 19], [0, 5, 11, 19])])
def test_the_kernels_read_packed_documents(packed: Any) -> None:
    """Positions count through all documents, and a relation may point into another: none of its keys is visible."""
    case = single(make_case(1, 6, 2, 19, 19, 5))
    case.options.update(cu_seqlens=packed, causal=True, window=[(4, 0), None] * 3)
    tokens = torch.randint(0, 3, (1, 19), generator=torch.Generator().manual_seed(5))
    starts = packed if isinstance(packed, list) else packed[1]
    got = assert_both_ways(case, [*known(case), Match(1, tokens, "within", cu_seqlens=starts)])
    assert got.mass[0].max() > 0


@pytest.mark.parametrize(("rows", "keys"), [(0, 5), (3, 0), (0, 0)])
def test_the_kernels_take_empty_inputs(rows: int, keys: int) -> None:
    case = single(make_case(2, 6, 2, rows, keys, 3))
    got = assert_both_ways(case, known(case))
    assert got.mass.shape == (9, 2, 6, rows)


def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Filled with who reads, from now on."""
    ran: list[str] = []
    for module, name in ((compiled_statistics, "native"), (reduction, "math")):

        def noted(*arguments: Any, run: Any = module.reduced, name: str = name) -> Any:
            ran.append(name)
            return run(*arguments)

        monkeypatch.setattr(module, "reduced", noted)
    return ran


def test_the_kernels_read_where_they_would_attend_and_know_every_relation(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = ways(monkeypatch)
    double = make_case(1, 2, 1, 3, 5, 3)
    case = single(double)
    head_statistics(case.query, case.key, [Offset(1)])
    head_statistics(case.query.bfloat16(), case.key.bfloat16(), [])
    head_statistics(case.query.requires_grad_(), case.key, [Offset(1)])  # nothing of it has a gradient
    head_statistics(case.query, case.key, [Offset(1)], cu_seqlens=([0, 1, 3], [0, 2, 5]))
    fast = "native" if compiled.INSTRUCTION_SET not in (None, "baseline") else "math"
    assert ran == [fast] * 5
    del ran[:]
    head_statistics(double.query, double.key, [Offset(1)])
    head_statistics(case.query, case.key, [Offset(1), Formless()])
    head_statistics(case.query, case.key, [Offset(1)], backend="math")
    assert ran == ["math"] * 3


_UNTRUSTED = "it gives no log-sum-exp that can be trusted, which statistics need too; 'native' and 'math' give one"
REFUSED: dict[str, tuple[Any, list[Any], str, str]] = {
    "relation": (torch.float32, [Offset(1), Formless()], "native", "relation 'even' has no form that it knows"),
    "dtype": (torch.float64, [], "native", "it sums in float32, which float64 inputs expect more of"),
    "no statistics": (torch.float32, [], "sdpa", _UNTRUSTED),
}


@pytest.mark.parametrize(("dtype", "relations", "backend", "reason"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("with_output", [False, True])
def test_a_named_backend_that_cannot_says_why(
    dtype: torch.dtype, relations: list[Any], backend: str, reason: str, with_output: bool
) -> None:
    case = make_case(1, 2, 1, 3, 5, 3)
    query, key, value = case.query.to(dtype), case.key.to(dtype), case.value.to(dtype)
    message = f"backend {backend!r}: {reason}; leave backend=None to let one be chosen"
    tensors = (query, key, value) if with_output else (query, key)
    operation: Any = attention_with_statistics if with_output else head_statistics
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        operation(*tensors, relations, backend=backend)


def many_rows(case: Case) -> Case:
    """The same options for so many queries that they go to the tiled kernel."""
    queries = 32
    longer = case.query[:, :, :1].repeat(1, 1, queries, 1) * torch.rand(queries, 1)
    kept = {
        name: one
        for name, one in case.options.items()
        if not isinstance(one, Tensor) or one.dim() < 2 or one.shape[-2] == 1 or name == "alibi_slopes"
    }
    return Case(longer, case.key, case.value, kept)


@hypothesis_settings(max_examples=40)
@given(case=cases().map(single) | cases().map(single).map(many_rows), backend=st.sampled_from([None, "native", "math"]))
def test_attention_and_its_statistics_from_one_pass_are_both_of_them(case: Case, backend: str | None) -> None:
    got = attention_with_statistics(case.query, case.key, case.value, known(case), **case.options, backend=backend)
    output = attention_with_lse(case.query, case.key, case.value, **case.options, backend=backend).output
    read = head_statistics(case.query, case.key, known(case), **case.options, backend=backend)
    assert torch.equal(got.output, output)
    for field in (*MEASURED, *COUNTED):
        assert torch.equal(getattr(got.statistics, field), getattr(read, field)), field


def test_many_queries_are_attended_and_read_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = ways(monkeypatch)
    case = single(make_case(1, 6, 2, 37, 37, 3))
    packed = single(make_case(1, 6, 2, 74, 74, 3))

    def refused(*given: Any, **options: Any) -> None:
        raise AssertionError("attention was computed a second time")

    expected = attention(packed.query, packed.key, packed.value, cu_seqlens=[0, 37, 74], causal=True)
    monkeypatch.setattr("headwise.attention.statistics.attention", refused)
    attention_with_statistics(case.query, case.key, case.value, [Offset(1)], causal=True, backend="native")
    options: dict[str, Any] = {"cu_seqlens": [0, 37, 74], "causal": True, "backend": "native"}
    got = attention_with_statistics(packed.query, packed.key, packed.value, [Offset(1)], **options)
    assert ran == []
    if compiled.INSTRUCTION_SET != "baseline":
        assert torch.equal(got.output, expected)


@pytest.mark.parametrize("backend", [None, "native", "math"])
def test_the_output_beside_statistics_keeps_its_gradient(backend: str | None) -> None:
    case = single(make_case(1, 2, 1, 37, 37, 3))
    query = case.query.requires_grad_()
    got = attention_with_statistics(query, case.key, case.value, [Offset(1)], causal=True, backend=backend)
    assert not got.statistics.mass.requires_grad
    (gradient,) = torch.autograd.grad(got.output.sum(), query)
    expected = attention(query, case.key, case.value, causal=True)
    assert_same(got.output, expected, atol=1e-6)
    assert_same(gradient, torch.autograd.grad(expected.sum(), query)[0], atol=1e-5)


def test_attention_with_statistics_wants_values() -> None:
    case = single(make_case(1, 2, 1, 3, 5, 3))
    with pytest.raises(TypeError, match=r"^value: expected a torch\.Tensor, got NoneType"):
        attention_with_statistics(case.query, case.key, None, [])  # type: ignore[arg-type]


def test_the_kernels_make_nothing_that_grows_with_the_square_of_the_length() -> None:
    sizes = []
    for length in (256, 512):
        query, key = torch.randn(1, 6, length, 2), torch.randn(1, 2, length, 2)
        with Operations(query, key) as ran:
            head_statistics(query, key, [Offset(1), Keys(torch.arange(length) == 0)], causal=True, backend="native")
        sizes.append(ran.largest_bytes)
    assert sizes[1] <= 2 * sizes[0] < 6 * 256 * 256
