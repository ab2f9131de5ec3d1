"""Statistics of heads by the compiled kernels: read off the weights while attention is computed, at no map's cost.

Symbols: ``B`` batch, ``L`` query length, ``S`` key length, ``H`` query heads, ``Dv`` value head dim, ``N`` relations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwise import native_statistics
from headwise.attention.compiled import call_options, dense
from headwise.attention.forms import EqualIds, RelationForm, SingleKey
from headwise.attention.problem import Problem
from headwise.attention.reduction import Fields
from headwise.attention.relation_checks import form_of, has_form
from headwise.native_statistics import Results

if TYPE_CHECKING:
    from headwise.attention.statistics import Relation

__all__ = ["reduced", "refusal", "with_output"]


def refusal(relations: Sequence[Relation]) -> str | None:
    """Why the kernels can't read these relations, or None if they can."""
    if torch.compiler.is_compiling():
        return "a graph that is being compiled can't follow its statistics"
    formless = [relation.name for relation in relations if not has_form(relation)]
    return f"relation {formless[0]!r} has no form that it knows" if formless else None


def reduced(problem: Problem, relations: Sequence[Relation], first_key: int, key_length: int) -> Fields:
    """The fields of one document, whose keys start at ``first_key`` of all ``key_length``."""
    # Values without width: there is nothing to mix.
    value = problem.key.new_empty((*problem.key.shape[:3], 0))
    return _run(problem, value, relations, first_key, key_length)[1]


def with_output(
    problem: Problem, relations: Sequence[Relation], first_key: int, key_length: int
) -> tuple[Tensor, Fields]:
    """Output ``[B, H, L, Dv]`` and the fields of one document, from one computation of the weights."""
    assert problem.value is not None  # the public door asks for a value
    return _run(problem, problem.value, relations, first_key, key_length)


def _run(
    problem: Problem, value: Tensor, relations: Sequence[Relation], first_key: int, key_length: int
) -> tuple[Tensor, Fields]:
    rows = problem.query.shape[:3]
    output = problem.query.new_empty((*rows, value.shape[3]))
    lse = torch.empty(rows, dtype=torch.float32)
    results = _results(problem, len(relations))
    native_statistics.head_statistics(
        dense(problem.query),
        dense(problem.key),
        dense(value),
        output,
        [_told(form) for form in _forms(problem, relations, first_key, key_length)],
        results,
        lse=lse,
        key_lengths=None if problem.reach.key_lengths is None else problem.reach.key_lengths.tolist(),
        **call_options(problem),
    )
    return output, _fields(results, lse)


def _forms(problem: Problem, relations: Sequence[Relation], first_key: int, key_length: int) -> list[RelationForm]:
    queries = problem.positions(0, problem.query_length) + first_key
    reached = (first_key, first_key + problem.key_length)
    asked = (queries, problem.batch_size, key_length)
    return [form_of(relation, *asked).within(*reached) for relation in relations]


def _told(form: RelationForm) -> tuple[Any, ...]:
    """A form as the kernels number it, with its arrays."""
    if isinstance(form, SingleKey):
        return native_statistics.SINGLE, _indices(form.index)
    if isinstance(form, EqualIds):
        excluded = None if form.excluded is None else _indices(form.excluded)
        return native_statistics.EQUAL, _indices(form.query_ids), _indices(form.key_ids), excluded
    return native_statistics.MEMBERS, dense(form.members)


def _indices(tensor: Tensor) -> Tensor:
    return dense(tensor.long())


def _results(problem: Problem, relations: int) -> Results:
    batch, heads, queries = problem.query.shape[:3]
    alike = len(problem.reach.spans) == 1 and (problem.mask is None or problem.mask.shape[1] == 1)
    seeing = (batch, 1 if alike else heads, queries)
    entropy, largest, distance = torch.empty((3, batch, heads, queries))
    return Results(
        mass=torch.empty((relations, batch, heads, queries)),
        entropy=entropy,
        largest=largest,
        distance=distance,
        hits=torch.empty((relations, *seeing), dtype=torch.int64),
        seen=torch.empty(seeing, dtype=torch.int64),
    )


def _fields(results: Results, lse: Tensor) -> Fields:
    hits, seen = results.hits, results.seen
    return {
        "lse": lse,
        "seeing": seen > 0,
        "entropy": results.entropy,
        "largest": results.largest,
        "distance": results.distance,
        "mass": results.mass,
        "uniform": hits.float() / seen.clamp(min=1),
        "informative": (hits > 0) & (hits < seen),
    }
