"""What relations and the calls that read them are held to, and the texts in which they are refused."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from headwise.attention import attention_with_statistics, head_statistics
from headwise.attention.forms import EqualIds, Members, SingleKey
from headwise.study.relations import Offset
from tests.attention.cases import make_case
from tests.helpers.compare import assert_same


class Behind(NamedTuple):
    """The key one place behind the query, of a relation that is a tuple too."""

    name: str = "behind"

    def keys(self, queries: Tensor, key_length: int) -> Tensor:
        return queries[..., None] - torch.arange(key_length) == 1


class Told:
    """A relation that gives what it was made with."""

    def __init__(self, keys: Any, form: Any = None, name: Any = "mine") -> None:
        self.given, self.name = keys, name
        self.form = None if form is None else lambda queries, key_length: form

    def keys(self, queries: Tensor, key_length: int) -> Any:
        return self.given


B, L, S = 2, 5, 7
YES = torch.ones(B, L, S, dtype=torch.bool)
WHO = "relation 'mine': expected "
KINDS = f"{WHO}keys() as a tensor of booleans, got "
SHAPE = f"{WHO}keys() of shape [2, 5, 7] = [batch or 1, queries, keys], got "
WRONG_KEYS: dict[str, tuple[Any, type[Exception], str]] = {
    "twos": (2 * torch.ones(B, L, S), TypeError, f"{KINDS}torch.float32"),
    "integers": (YES.long(), TypeError, f"{KINDS}torch.int64"),
    "nothing": (None, TypeError, f"{KINDS}NoneType"),
    "an array": (YES.numpy(), TypeError, f"{KINDS}ndarray"),
    "a key too many": (torch.ones(B, L, S + 1) > 0, ValueError, f"{SHAPE}[2, 5, 8]"),
    "a key too few": (YES[..., 1:], ValueError, f"{SHAPE}[2, 5, 6]"),
    "one key": (YES[..., :1], ValueError, f"{SHAPE}[2, 5, 1]"),
    "one row": (YES[:, :1], ValueError, f"{SHAPE}[2, 1, 7]"),
    "a row too many": (torch.ones(B, L + 1, S) > 0, ValueError, f"{SHAPE}[2, 6, 7]"),
    "two axes": (YES[0], ValueError, f"{SHAPE}[5, 7]"),
    "one axis": (YES[0, 0], ValueError, f"{SHAPE}[7]"),
    "four axes": (YES[:, None], ValueError, f"{SHAPE}[2, 1, 5, 7]"),
    "another batch": (torch.ones(3, L, S) > 0, ValueError, f"{SHAPE}[3, 5, 7]"),
    "another device": (YES.to("meta"), ValueError, "relation 'mine': expected keys() on cpu as the queries, got meta; "
                       "move it"),
}  # fmt: skip


@pytest.mark.parametrize("backend", [None, "math"])
@pytest.mark.parametrize(("keys", "kind", "message"), WRONG_KEYS.values(), ids=WRONG_KEYS)
def test_keys_of_another_kind_or_shape_are_refused(
    keys: Any, kind: type[Exception], message: str, backend: str | None
) -> None:
    made = make_case(B, 6, 3, L, S, 3)
    for one_sequence in (YES, YES[:1]):
        assert_same(head_statistics(made.query, made.key, [Told(one_sequence)]).mass, torch.ones(1, B, 6, L).double())
    for operation, tensors in ((head_statistics, 2), (attention_with_statistics, 3)):
        given: Any = (made.query.float(), made.key.float(), made.value.float())[:tensors]
        with pytest.raises(kind, match=f"^{re.escape(message)}$"):
            operation(*given, [Behind(), Told(keys)], backend=backend)


INDEX, IDS = torch.zeros(B, L, dtype=torch.int64), torch.zeros(B, S, dtype=torch.int64)
WRONG_FORMS: dict[str, tuple[Any, type[Exception], str]] = {
    "keys": (YES, TypeError, "form() to give a SingleKey, EqualIds or Members of headwise.attention.forms, got Tensor; "
             "without a form set form = None"),
    "floats": (SingleKey(INDEX + 0.7), TypeError, "index of form() as a tensor of integers, got torch.float32"),
    "booleans": (SingleKey(INDEX > 0), TypeError, "index of form() as a tensor of integers, got torch.bool"),
    "a row too many": (SingleKey(torch.zeros(1, L + 1).long()), ValueError, "index of form() of shape [2, 5] = "
                       "[batch or 1, queries], got [1, 6]"),
    "one axis": (SingleKey(INDEX[0]), ValueError, "index of form() of shape [2, 5] = [batch or 1, queries], got [5]"),
    "no ids": (EqualIds(INDEX, [0] * S), TypeError, "key_ids of form() as a tensor of integers, got list"),
    "an id too many": (EqualIds(INDEX, torch.zeros(B, S + 1).long()), ValueError, "key_ids of form() of shape [2, 7] = "
                       "[batch or 1, keys], got [2, 8]"),
    "ids of keys": (EqualIds(IDS, IDS), ValueError, "query_ids of form() of shape [2, 5] = [batch or 1, queries], got "
                    "[2, 7]"),
    "excluded keys": (EqualIds(INDEX, IDS, IDS), ValueError, "excluded of form() of shape [2, 5] = "
                      "[batch or 1, queries], got [2, 7]"),
    "numbers of members": (Members(IDS, L), TypeError, "members of form() as a tensor of booleans, got torch.int64"),
    "a member too many": (Members(torch.ones(1, S + 1) > 0, L), ValueError, "members of form() of shape [2, 7] = "
                          "[batch or 1, keys], got [1, 8]"),
    "rows": (Members(IDS == 0, L + 1), ValueError, "rows of form() to be 5, got 6"),
    "another device": (Members(IDS.to("meta") == 0, L), ValueError,
                       "members of form() on cpu as the queries, got meta; move it"),
}  # fmt: skip


@pytest.mark.parametrize(("form", "kind", "message"), WRONG_FORMS.values(), ids=WRONG_FORMS)
def test_forms_of_another_kind_or_shape_are_refused(form: Any, kind: type[Exception], message: str) -> None:
    made = make_case(B, 6, 3, L, S, 3)
    query, key = made.query.float(), made.key.float()
    right = head_statistics(query, key, [Told(YES, Members(IDS == 0, L))], backend="native")
    assert_same(right.mass, torch.ones(1, B, 6, L), atol=1e-6)
    with pytest.raises(kind, match=f"^{re.escape(WHO + message)}$"):
        head_statistics(query, key, [Told(YES, form)], backend="native")


def test_a_form_that_is_none_is_none() -> None:
    class Slow(Offset):
        form = None  # type: ignore[assignment]

        def keys(self, queries: Tensor, key_length: int) -> Tensor:
            return queries[..., None] == torch.arange(key_length) + 1

    made = make_case(B, 6, 3, L, S, 3)
    query, key = made.query.float(), made.key.float()
    expected = head_statistics(query, key, [Offset(1)], backend="math")
    assert torch.equal(head_statistics(query, key, [Slow(1)]).mass, expected.mass)
    with pytest.raises(ValueError, match=r"^backend 'native': relation 'offset 1' has no form that it knows; "):
        head_statistics(query, key, [Slow(1)], backend="native")


def lacking(what: str) -> Any:
    relation = Told(YES)
    if what == "keys":
        relation.keys = None  # type: ignore[assignment]
    else:
        delattr(relation, what)
    return relation


ARGUMENTS = "mask, bias, causal, window, offset, key_lengths, cu_seqlens, scale, softcap, sinks, alibi_slopes"
EVERY = "expected of every relation "
SEE = "; see headwise.study.relations"
WRONG_CALLS: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "one relation": (Offset(1), {}, TypeError,
                     "expected a sequence of relations, got Offset; put a single one in a list"),
    "a tuple that is a relation": (Behind(), {}, TypeError,
                                   "expected a sequence of relations, got Behind; put a single one in a list"),
    "relations by name": ({"one": Behind()}, {}, TypeError,
                          "expected a sequence of relations, got dict; put a single one in a list"),
    "no relations": (None, {}, TypeError, "expected a sequence of relations, got NoneType; put a single one in a list"),
    "names": ("ab", {}, TypeError, f"{EVERY}a name that is a string, got str{SEE}"),
    "a class": ([Behind], {}, TypeError, f"{EVERY}an object and not its class, got Behind{SEE}"),
    "no name": ([lacking("name")], {}, TypeError, f"{EVERY}a name that is a string, got Told{SEE}"),
    "a number as a name": ([Told(YES, name=3)], {}, TypeError, f"{EVERY}a name that is a string, got Told{SEE}"),
    "no keys": ([lacking("keys")], {}, TypeError, f"{EVERY}a method keys(queries, key_length), got Told{SEE}"),
    "a misspelt argument": ([], {"casual": True}, TypeError,
                            f"expected arguments of attention ({ARGUMENTS}), got casual; did you mean causal?"),
    "no argument of attention": ([], {"zebra": 1}, TypeError,
                                 f"expected arguments of attention ({ARGUMENTS}), got zebra"),
    "a block of -1 bytes": ([], {"max_block_bytes": -1}, ValueError,
                            "expected max_block_bytes of 1 or more, or None, got -1"),
    "a block of no bytes": ([], {"max_block_bytes": 0}, ValueError,
                            "expected max_block_bytes of 1 or more, or None, got 0"),
    "half a byte": ([], {"max_block_bytes": 0.5}, TypeError,
                    "expected max_block_bytes as a whole number or None, got 0.5"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "options", "kind", "message"), WRONG_CALLS.values(), ids=WRONG_CALLS)
def test_what_is_no_call_of_them_is_refused_in_their_name(
    given: Any, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    made = make_case(B, 6, 3, L, S, 3)
    for backend in (None, "math"):
        with pytest.raises(kind, match=f"^{re.escape(f'head_statistics: {message}')}$"):
            head_statistics(made.query, made.key, given, backend=backend, **options)
        with pytest.raises(kind, match=f"^{re.escape(f'attention_with_statistics: {message}')}$"):
            attention_with_statistics(made.query, made.key, made.value, given, backend=backend, **options)
    with pytest.raises(TypeError, match=r"^head_statistics: expected arguments of attention .*, got value$"):
        head_statistics(made.query, made.key, [], value=made.value)


def test_relations_that_can_be_gone_through_once_are_all_read() -> None:
    made = make_case(B, 6, 3, L, S, 3)
    expected = head_statistics(made.query, made.key, [Behind(), Told(YES, name="everything")])
    for got in (
        head_statistics(made.query, made.key, iter([Behind(), Told(YES, name="everything")])),  # type: ignore[arg-type]
        attention_with_statistics(
            made.query, made.key, made.value, iter([Behind(), Told(YES, name="everything")])
        ).statistics,  # type: ignore[arg-type]
    ):
        assert got.names == expected.names
        assert torch.equal(got.mass, expected.mass)
