"""No kernel touches memory beyond its tensors: each tensor lies beside a page that ends whoever touches it.

This sees what a sanitizer can't: the masked loads and stores of AVX-512 are no memory accesses to the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import native
from headwise.native_statistics import Results, head_statistics
from tests.attention.cases import Case
from tests.native.decoding import ISAS, built
from tests.native.guarded import SIDES, ending_of, forking, guarded
from tests.native.statistics_calls import random_forms, told, unwritten

pytestmark = [built, forking]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
WIDTHS = [(1, 3), (7, 5), (15, 17), (16, 31), (33, 8), (67, 130)]  # (D, Dv)
SIZES = [(1, 1), (3, 67), (19, 31)]  # (L, S)
HEADS, KV_HEADS = 6, 2
Call = dict[str, Any]  # the arguments of a kernel, tensors and numbers


def vectors(heads: int, length: int, width: int, dtype: torch.dtype, *, heads_last: bool) -> Tensor:
    """`[1, heads, length, width]`, in memory as `[1, length, heads, width]` on request."""
    if heads_last:
        return torch.randn(1, length, heads, width).to(dtype).transpose(1, 2)
    return torch.randn(1, heads, length, width).to(dtype)


def calls(dtype: torch.dtype) -> Iterator[tuple[str, Call]]:
    """Calls by name: odd widths, both orders of the axes, with and without everything that is read beside the keys."""
    for queries, keys in SIZES:
        for width, value_width in WIDTHS:
            heads_last = width % 2 == 1
            call: Call = {
                "query": vectors(HEADS, queries, width, dtype, heads_last=heads_last),
                "key": vectors(KV_HEADS, keys, width, dtype, heads_last=heads_last),
                "value": vectors(KV_HEADS, keys, value_width, dtype, heads_last=heads_last),
                "output": vectors(HEADS, queries, value_width, dtype, heads_last=heads_last),
                "lse": torch.zeros(1, HEADS, queries),
                "offsets": [keys - queries],
                "scale": width**-0.5,
            }
            name = f"L={queries} S={keys} D={width} Dv={value_width}"
            yield name, call
            yield f"{name} with a mask and a bias", call | added(queries, keys, dtype)


def added(queries: int, keys: int, dtype: torch.dtype) -> Call:
    return {
        "mask": torch.rand(1, HEADS, queries, keys) < 0.7,
        "bias": torch.randn(1, HEADS, queries, keys).to(dtype),
        "sinks": torch.randn(HEADS),
        "slopes": torch.rand(HEADS),
        "left": [-1, 0, 3, 40, 7, 1],
        "right": [0] * HEADS,
    }


def beside_pages(call: Call, side: str) -> Call:
    """The same call with every tensor beside a forbidden page."""
    return {name: guarded(given, side) if isinstance(given, Tensor) else given for name, given in call.items()}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kernel", [native.decode_attention, native.prefill_attention])
def test_nothing_beyond_a_tensor_is_touched(
    kernel: Callable[..., None], isa: str, dtype: torch.dtype, side: str
) -> None:
    def work(say: Callable[[str], None]) -> None:
        torch.manual_seed(13)
        for name, call in calls(dtype):
            say(name)
            kernel(**call, isa=isa)
            beside = beside_pages(call, side)
            beside["output"].fill_(torch.nan)
            kernel(**beside, isa=isa)
            assert torch.equal(beside["output"], call["output"]), f"another output than elsewhere in {name}"
            assert torch.equal(beside["lse"], call["lse"]), f"another LSE than elsewhere in {name}"

    assert ending_of(work) == ""


def beside_pages_too(relations: list[tuple[Any, ...]], side: str) -> list[tuple[Any, ...]]:
    """The arrays of relations beside forbidden pages."""
    return [
        (form, *(guarded(array, side) if isinstance(array, Tensor) else array for array in arrays))
        for form, *arrays in relations
    ]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_statistics_touch_nothing_beyond_a_tensor(isa: str, dtype: torch.dtype, side: str) -> None:
    def work(say: Callable[[str], None]) -> None:
        torch.manual_seed(17)
        for name, call in calls(dtype):
            say(name)
            queries, keys = call["query"].shape[2], call["key"].shape[2]
            relations = [told(form) for form in random_forms(1, queries, keys, seed=19)]
            masked = {"mask": call["mask"]} if "mask" in call else {}
            results, _, _ = unwritten(Case(call["query"], call["key"], call["value"], masked), len(relations))
            head_statistics(**call, relations=relations, results=results, isa=isa)
            beside = Results(*(guarded(torch.full_like(one, -5), side) for one in results))
            given = beside_pages_too(relations, side)
            head_statistics(**beside_pages(call, side), relations=given, results=beside, isa=isa)
            for field, one, other in zip(Results._fields, beside, results, strict=True):
                assert torch.equal(one, other), f"another {field} than elsewhere in {name}"

    assert ending_of(work) == ""


class Longer:
    """A tensor that claims one key more than its memory holds."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self.shape = (*tensor.shape[:2], tensor.shape[2] + 1, tensor.shape[3])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)


@pytest.mark.parametrize("kernel", [native.decode_attention, native.prefill_attention])
@pytest.mark.parametrize("isa", ISAS)
def test_a_step_beyond_is_noticed(kernel: Callable[..., None], isa: str) -> None:
    """A call that says of its keys that there are more than there are dies of it, else the test above means nothing."""

    def work(say: Callable[[str], None]) -> None:
        say("the planted error")
        key, value, query = (guarded(torch.randn(1, 1, length, 7), "before") for length in (5, 6, 1))
        kernel(query, Longer(key), value, torch.empty(1, 1, 1, 7), offsets=[5], scale=1.0, isa=isa)

    assert ending_of(work) == "SIGSEGV in the planted error"
