"""The compiled kernels as a backend: when they are chosen, what they refuse, and that they compute the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from headwise.attention import (
    attention,
    attention_with_lse,
    attention_with_statistics,
    compiled,
    head_statistics,
)
from headwise.attention.backends import BACKENDS, choose_backend
from headwise.attention.problem import Problem
from headwise.attention.reference import reference_attention
from headwise.cache import BlockPool, PagedCache, attend
from headwise.errors import UserError
from headwise.native import instruction_sets
from tests.attention.cases import Case, cases, make_case
from tests.helpers.compare import assert_same

# float32 sums of what cases() draws, against float64: a hundred roundings of numbers up to 30.
CLOSE = 100 * 30 * torch.finfo(torch.float32).eps


def single(case: Case) -> Case:
    """The same call in float32."""
    options = {
        name: given.float() if isinstance(given, Tensor) and given.dtype == torch.float64 else given
        for name, given in case.options.items()
    }
    return Case(case.query.float(), case.key.float(), case.value.float(), options)


def chosen(case: Case, need_lse: bool = False, **options: Any) -> str:
    problem = Problem.of(case.query, case.key, case.value, **options)
    return choose_backend(BACKENDS, None, problem, need_lse).name


def test_it_is_chosen_where_it_was_measured_to_be_faster() -> None:
    case = single(make_case(2, 6, 3, 5, 7, 11, 13))
    assert compiled.INSTRUCTION_SET is not None
    expected = "native" if compiled.INSTRUCTION_SET != "baseline" else "math"
    assert chosen(case, need_lse=True) == chosen(case, softcap=3.0) == expected
    assert chosen(make_case(2, 6, 3, 5, 7, 11)) == "sdpa"  # float64
    leaf = case.query.clone().requires_grad_()
    assert chosen(Case(leaf, case.key, case.value), softcap=3.0) == "math"
    with torch.no_grad():
        assert chosen(Case(leaf, case.key, case.value), softcap=3.0) == expected


@settings(max_examples=80)
@given(case=cases().map(single))
def test_it_equals_the_oracle(case: Case) -> None:
    actual = attention_with_lse(case.query, case.key, case.value, **case.options, backend="native")
    expected = reference_attention(case.query, case.key, case.value, **case.options)
    assert_same(actual.output.double(), expected.output, atol=CLOSE)
    assert_same(actual.lse.double(), expected.lse, atol=CLOSE)
    assert torch.equal(attention(case.query, case.key, case.value, **case.options, backend="native"), actual.output)


def with_leaves(case: Case) -> tuple[dict[str, Tensor], dict[str, Any]]:
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in case.inputs().items()}
    return leaves, case.fixed()


@settings(max_examples=40)
@given(case=cases().map(single))
def test_its_gradients_are_those_of_the_same_weights(case: Case) -> None:
    """The forward pass is compiled, the backward pass starts from its log-sum-exp."""
    results = []
    for precise in (True, False):
        given = Case(*(t.double() for t in (case.query, case.key, case.value)), case.options) if precise else case
        leaves, fixed = with_leaves(given)
        output, lse = attention_with_lse(**leaves, **fixed, backend="math" if precise else "native")
        (output.sum() + lse[lse > -torch.inf].sum()).backward()
        results.append({name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None})
    exact, own = results
    assert exact.keys() == own.keys()
    for name in exact:
        largest = max(1.0, float(exact[name].abs().max())) if exact[name].numel() else 1.0
        assert_same(own[name].double(), exact[name].double(), atol=CLOSE * largest, what=f"gradient of {name}")


@pytest.mark.parametrize("queries", [1, 37])
def test_a_compiled_graph_runs_it(queries: int) -> None:
    torch.compiler.reset()
    case = single(make_case(2, 6, 3, queries, 41, 11))

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention(query, key, value, causal=True, window=(13, 0), softcap=3.0)

    with torch.inference_mode():
        compiled_run = torch.compile(run, backend="aot_eager", fullgraph=True)
        actual = compiled_run(case.query, case.key, case.value)
        expected = attention(
            case.query, case.key, case.value, causal=True, window=(13, 0), softcap=3.0, backend="native"
        )
    assert torch.equal(actual, expected)


REFUSED: dict[str, tuple[Case, dict[str, Any], str]] = {
    "float64": (make_case(2, 6, 3, 5, 7, 11), {}, "it sums in float32, which float64 inputs expect more of"),
    "width": (
        single(make_case(1, 2, 1, 3, 5, 257)),
        {},
        "it takes keys and values of up to 256 elements, got 257",
    ),
    "value width": (
        single(make_case(1, 2, 1, 3, 5, 7, 263)),
        {},
        "it takes keys and values of up to 256 elements, got 263",
    ),
}


@pytest.mark.parametrize(("case", "options", "reason"), REFUSED.values(), ids=REFUSED)
def test_it_says_what_it_cannot_do(case: Case, options: dict[str, Any], reason: str) -> None:
    message = f"backend 'native': {reason}; leave backend=None to let one be chosen"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        attention(case.query, case.key, case.value, **options, backend="native")
    attention(case.query, case.key, case.value, **options)  # another one is chosen


def test_functional_transforms_go_another_way() -> None:
    case = single(make_case(1, 2, 1, 3, 5, 7))
    gradient = torch.func.grad(lambda query: attention(query, case.key, case.value, softcap=2.0).sum())(case.query)
    assert gradient.isfinite().all()


SETTINGS = """
import torch
from headwise import native
from headwise.attention import attention, compiled
from headwise.attention.backends import BACKENDS, choose_backend
from headwise.attention.problem import Problem
tensor, one = torch.ones(1, 2, 3, 5), {"offsets": [0], "scale": 1.0}
for call in (
    lambda: choose_backend(BACKENDS, None, Problem.of(tensor, tensor, tensor), False).name,
    lambda: str(attention(tensor, tensor, tensor, backend="native").shape),
    lambda: str(native.decode_attention(tensor, tensor, tensor, torch.empty_like(tensor), **one)),
    native.used_instruction_set,
):
    try:
        print(call())
    except ValueError as error:
        print(error)
"""


def told_with(isa: str) -> list[str]:
    environment = {**os.environ, "HEADWISE_ISA": isa}
    done = subprocess.run([sys.executable, "-c", SETTINGS], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_forced_instruction_set_is_used() -> None:
    # It runs by name, but it isn't the fastest.
    assert told_with("baseline") == ["sdpa", "torch.Size([1, 2, 3, 5])", "None", "baseline"]


@pytest.mark.parametrize("isa", ["bogus", "AVX2", " "])
def test_a_wrong_instruction_set_is_an_error_of_calls_in_the_words_of_the_kernels(isa: str) -> None:
    expected = (
        "HEADWISE_ISA: expected one of the instruction sets that were built and that this processor has "
        f"({', '.join(instruction_sets())}), got {isa}"
    )
    assert told_with(isa) == [expected] * 4


DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("queries", [1, 37])
def test_no_call_on_a_cpu_goes_elsewhere_without_a_word(
    dtype: torch.dtype, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever would have been chosen: every dtype, few and many queries, gradients, widths that kernels don't take."""
    query, key, value = torch.randn(2, 6, queries, 5), torch.randn(2, 3, 41, 5), torch.randn(2, 3, 41, 5)
    given = [tensor.to(dtype) for tensor in (query, key, value)]
    wide = [torch.randn(1, 1, queries, 257, dtype=dtype)] * 3
    leaves = [tensor.clone().requires_grad_() for tensor in given]
    expected = attention(*given, backend="math")
    monkeypatch.setattr(compiled, "_WRONG", "the wrong name")
    monkeypatch.setattr(compiled, "INSTRUCTION_SET", None)  # as an import leaves it
    calls: list[Any] = [
        lambda backend: attention(*given, backend=backend),
        lambda backend: attention(*leaves, softcap=3.0, backend=backend),
        lambda backend: attention(*wide, backend=backend),
        lambda backend: attention_with_lse(*given, backend=backend),
        lambda backend: attention_with_statistics(*given, [], backend=backend),
        lambda backend: head_statistics(*given[:2], [], backend=backend),
        lambda backend: attention(*(tensor[:1] for tensor in wide), cu_seqlens=[0, queries], backend=backend),
    ]
    for call in calls:
        for backend in (None, "native"):
            with pytest.raises(compiled.InstructionSetError, match=r"^the wrong name$") as refused:
                call(backend)
            assert isinstance(refused.value, UserError)  # the command line prints its line
            assert isinstance(refused.value, ValueError)
        call("math")
    assert torch.equal(attention(*given, backend="math"), expected)
    attention(*given, backend="sdpa")
    assert attention(*(tensor.to("meta") for tensor in given)).device.type == "meta"


def test_caches_that_are_read_in_place_say_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    held = PagedCache(BlockPool(5, 4, 3, 5), 1).append(torch.randn(1, 3, 7, 5), torch.randn(1, 3, 7, 5))
    monkeypatch.setattr(compiled, "_WRONG", "the wrong name")
    monkeypatch.setattr(compiled, "INSTRUCTION_SET", None)
    for backend in (None, "native"):
        with pytest.raises(compiled.InstructionSetError, match=r"^the wrong name$"):
            attend(torch.randn(1, 6, 7, 5), held, causal=True, backend=backend)
