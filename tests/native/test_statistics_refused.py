"""What the native statistics refuse, before they touch memory, and the texts in which they do."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.native_statistics import EQUAL, MEMBERS, SINGLE, Results, head_statistics
from tests.native.decoding import built

pytestmark = built

B, H, G, L, S, D, DV = 2, 6, 3, 13, 7, 5, 11
INDEX, IDS, CLASS = torch.zeros(B, L, dtype=torch.int64), torch.zeros(1, S, dtype=torch.int64), torch.ones(B, S) > 0


def results(**changed: Tensor) -> Results:
    """Room for two relations."""
    rows = {name: torch.zeros(B, H, L) for name in ("entropy", "largest", "distance")}
    counts = {"hits": torch.zeros(2, B, 1, L, dtype=torch.int64), "seen": torch.zeros(B, 1, L, dtype=torch.int64)}
    return Results(**{"mass": torch.zeros(2, B, H, L), **rows, **counts} | changed)


def call(relations: list[tuple[Any, ...]], written: Results, **changed: Any) -> Tensor:
    output = torch.zeros(B, H, L, DV)
    given = {"query": torch.randn(B, H, L, D), "key": torch.randn(B, G, S, D), "value": torch.randn(B, G, S, DV)}
    options = {"offsets": [0] * B, "scale": 1.0}
    try:
        head_statistics(output=output, relations=relations, results=written, **(given | options | changed))
    except (ValueError, TypeError):
        assert not output.any(), "output was written before the call was refused"
        assert not any(tensor.any() for tensor in written), "results were written before the call was refused"
        raise
    return output


RIGHT = [(SINGLE, INDEX), (MEMBERS, CLASS)]


def test_the_call_is_right_without_a_change() -> None:
    written = results()
    assert call(RIGHT, written).all()
    assert (written.seen == S).all()
    assert (written.hits == torch.tensor([1, S])[:, None, None, None]).all()


@pytest.mark.parametrize(
    ("relation", "message"),
    [
        ((SINGLE, INDEX[:, 1:]), "index: expected [B, L] = [2, 13], or one row for all, got [2, 12]"),
        ((SINGLE, INDEX[0]), "index: expected [B, L] = [2, 13], or one row for all, got [13]"),
        ((SINGLE, INDEX.float()), "index: expected int64, got float32"),
        ((SINGLE, torch.zeros(L, B, dtype=torch.int64).T), "index: expected a last axis with stride 1, got strides "
         "[1, 2]; call .contiguous() on it"),
        ((SINGLE, torch.zeros(3, L, dtype=torch.int64)), "index: expected [B, L] = [2, 13], or one row for all, "
         "got [3, 13]"),
        ((SINGLE, None), "arrays: expected a tensor, got none"),
        ((SINGLE, INDEX, INDEX), "arrays: expected 1, got 2"),
        ((EQUAL, INDEX, IDS), "arrays: expected 3, got 2"),
        ((EQUAL, IDS, IDS, None), "query_ids: expected [B, L] = [2, 13], or one row for all, got [1, 7]"),
        ((EQUAL, INDEX, INDEX, None), "key_ids: expected [B, S] = [2, 7], or one row for all, got [2, 13]"),
        ((EQUAL, INDEX, IDS, IDS), "excluded: expected [B, L] = [2, 13], or one row for all, got [1, 7]"),
        ((EQUAL, None, IDS, None), "arrays: expected a tensor, got none"),
        ((MEMBERS, CLASS[:, :-1]), "members: expected [B, S] = [2, 7], or one row for all, got [2, 6]"),
        ((MEMBERS, CLASS.float()), "members: expected bool, got float32"),
    ],
)  # fmt: skip
def test_relations(relation: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape('relation 1, ' + message)}$"):
        call([RIGHT[0], relation], results())


COUNTS = torch.zeros(B, H, L, dtype=torch.int64)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("mass", torch.zeros(3, B, H, L), "mass: expected [N, B, H, L] = [2, 2, 6, 13], got [3, 2, 6, 13]"),
        ("entropy", torch.zeros(B, H, 1), "entropy: expected [B, H, L] = [2, 6, 13], got [2, 6, 1]"),
        ("largest", torch.zeros(B, H, L).bfloat16(), "largest: expected float32, got bfloat16"),
        (
            "distance",
            torch.zeros(H, B, L).transpose(0, 1),
            "distance: expected contiguous memory, got strides [13, 26, 1] for shape [2, 6, 13]",
        ),
        ("seen", torch.zeros(B, 1, L), "seen: expected int64, got float32"),
        ("hits", torch.zeros(2, B, H, L, dtype=torch.int64), "hits: expected [N, B, heads, L] = [2, 2, 1, 13], "
         "got [2, 2, 6, 13]"),
        ("seen", COUNTS[:, :2].contiguous(), "hits: expected [N, B, heads, L] = [2, 2, 6, 13], got [2, 2, 1, 13]"),
    ],
)  # fmt: skip
def test_results(name: str, tensor: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call(RIGHT, results(**{name: tensor}))


@pytest.mark.parametrize(
    "changed",
    [{"left": [0, 0, 0, 0, 0, 1]}, {"right": [0, 1, 0, 0, 0, 0]}, {"mask": torch.ones(1, H, 1, 1) > 0}],
    ids=["left", "right", "mask"],
)
def test_counts_for_all_heads_need_heads_that_see_alike(changed: dict[str, Any]) -> None:
    message = "hits: expected [N, B, heads, L] = [2, 2, 6, 13], got [2, 2, 1, 13]"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call(RIGHT, results(), **changed)


def test_numbers_of_tokens_are_no_queries() -> None:
    whole = torch.zeros(B, H, L, D, dtype=torch.int64)
    with pytest.raises(TypeError, match=r"^headwise\.native: expected a tensor of one of .*, got torch\.int64"):
        call(RIGHT, results(), query=whole)


def test_a_form_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"^expected a form from 0 to 2$"):
        call([(3, INDEX)], results())
