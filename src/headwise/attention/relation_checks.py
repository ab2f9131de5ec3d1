"""What a relation must be and what its methods must give, checked where they are asked.

Symbols: ``B`` batch, ``rows`` queries, ``S`` key length.

Anybody may write a relation. What it gives is read by matrix products and by compiled kernels, which would make a
number of nearly everything: of floats, of a single row that is spread over all, of a column too many.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwise.attention.forms import EqualIds, Members, RelationForm, SingleKey
from headwise.attention.validation import holds_integers, shape_text

if TYPE_CHECKING:
    from headwise.attention.statistics import Relation

__all__ = ["check_relations", "form_of", "has_form", "keys_of"]


def check_relations(operation: str, relations: Any) -> tuple[Relation, ...]:
    """The relations of a call of ``operation``, each with a method ``keys`` and a ``name`` of its own.

    Raises:
        TypeError: they are no sequence, or one of them is no relation.
        ValueError: two share a name.
    """
    if callable(getattr(relations, "keys", None)) or not isinstance(relations, Iterable):
        raise TypeError(
            f"{operation}: expected a sequence of relations, got {type(relations).__name__}; put a single one in a list"
        )
    listed = tuple(relations)
    for relation in listed:
        _check_relation(operation, relation)
    names = [relation.name for relation in listed]
    if len(set(names)) != len(names):
        raise ValueError(f"{operation}: relations need names of their own, got {', '.join(names)}")
    return listed


def _check_relation(operation: str, relation: Any) -> None:
    form = getattr(relation, "form", None)
    if isinstance(relation, type):
        lacks = "an object and not its class"
    elif not isinstance(getattr(relation, "name", None), str):
        lacks = "a name that is a string"
    elif not callable(getattr(relation, "keys", None)):
        lacks = "a method keys(queries, key_length)"
    elif form is not None and not callable(form):
        lacks = "a form that is a method or None"
    else:
        return
    told = relation.__name__ if isinstance(relation, type) else type(relation).__name__
    raise TypeError(f"{operation}: expected of every relation {lacks}, got {told}; see headwise.study.relations")


def has_form(relation: Relation) -> bool:
    """Whether it can be asked for a form; ``form = None`` takes back the one that a class inherits."""
    return getattr(relation, "form", None) is not None


def keys_of(relation: Relation, queries: Tensor, batch: int, key_length: int) -> Tensor:
    """The relation's keys, boolean ``[B or 1, rows, S]``, for absolute positions ``[B or 1, rows]`` of queries.

    Raises:
        TypeError: it gives something else than booleans.
        ValueError: it gives them in another shape or on another device.
    """
    keys = relation.keys(queries, key_length)
    _check_array(relation, "keys()", keys, (batch, queries.shape[1], key_length), "queries, keys", queries)
    return keys


def form_of(relation: Relation, queries: Tensor, batch: int, key_length: int) -> RelationForm:
    """The same as a form, of a relation that has one.

    Raises:
        TypeError: it gives no form, or arrays of the wrong kind in it.
        ValueError: arrays have another shape or lie on another device.
    """
    form = relation.form(queries, key_length)  # type: ignore[attr-defined]
    if not isinstance(form, (SingleKey, EqualIds, Members)):
        raise TypeError(
            f"relation {relation.name!r}: expected form() to give a SingleKey, EqualIds or Members of "
            f"headwise.attention.forms, got {type(form).__name__}; without a form set form = None"
        )
    rows = queries.shape[1]
    widths = {"queries": rows, "keys": key_length}
    for name, (array, axis) in _arrays(form).items():
        _check_array(relation, name, array, (batch, widths[axis]), axis, queries)
    if isinstance(form, Members) and form.rows != rows:
        raise ValueError(f"relation {relation.name!r}: expected rows of form() to be {rows}, got {form.rows}")
    return form


_BOOLEAN = ("keys()", "members of form()")


def _arrays(form: RelationForm) -> dict[str, tuple[Any, str]]:
    """What a form holds, and of what it has an entry for each."""
    if isinstance(form, SingleKey):
        return {"index of form()": (form.index, "queries")}
    if isinstance(form, Members):
        return {"members of form()": (form.members, "keys")}
    arrays = {"query_ids of form()": (form.query_ids, "queries"), "key_ids of form()": (form.key_ids, "keys")}
    return arrays if form.excluded is None else {**arrays, "excluded of form()": (form.excluded, "queries")}


def _check_array(relation: Relation, what: str, array: Any, shape: tuple[int, ...], axes: str, queries: Tensor) -> None:
    booleans = what in _BOOLEAN
    who, kind = f"relation {relation.name!r}", "booleans" if booleans else "integers"
    if not isinstance(array, Tensor):
        raise TypeError(f"{who}: expected {what} as a tensor of {kind}, got {type(array).__name__}")
    if not (array.dtype == torch.bool if booleans else holds_integers(array)):
        raise TypeError(f"{who}: expected {what} as a tensor of {kind}, got {array.dtype}")
    if array.dim() != len(shape) or array.shape[1:] != shape[1:] or array.shape[0] not in (1, shape[0]):
        raise ValueError(
            f"{who}: expected {what} of shape {list(shape)} = [batch or 1, {axes}], got {shape_text(array)}"
        )
    if array.device != queries.device:
        raise ValueError(f"{who}: expected {what} on {queries.device} as the queries, got {array.device}; move it")
