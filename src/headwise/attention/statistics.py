"""What a head attends to, reduced while the softmax streams by.

Symbols: B batch, L query length, S key length, H query heads, G KV heads, D head dim, N relations.

A study of heads needs a few numbers per query, never the map of all weights: memory grows with L and not with L·S. On a
CPU the compiled kernels reduce the weights as they compute attention (``compiled_statistics``); elsewhere, and for
relations that these don't know, PyTorch's operations do (``reduction``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import Parameter, signature
from numbers import Integral
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from headwise.attention import compiled_statistics, reduction
from headwise.attention.backends import BACKENDS, choose_backend
from headwise.attention.backends.table import wants_gradient
from headwise.attention.compiled import has_many_rows
from headwise.attention.functional import attention, attention_weights
from headwise.attention.precision import full_precision
from headwise.attention.problem import Problem
from headwise.attention.reduction import Fields
from headwise.attention.relation_checks import check_relations

__all__ = ["AttentionReading", "HeadStatistics", "Relation", "attention_with_statistics", "head_statistics"]

_MEANS = ("entropy", "largest", "distance", "lse")
_NAMED_ONLY = Parameter.KEYWORD_ONLY
_VISIBILITY = tuple(name for name, one in signature(attention_weights).parameters.items() if one.kind is _NAMED_ONLY)


class Relation(Protocol):
    """A set of keys for every query: the thing whose attention mass is measured.

    Concrete relations (``Offset``, ``Match``, ``Keys``, ``Target``) live in ``headwise.study.relations``; anything with
    a ``name`` and a ``keys`` method serves. With a method ``form(queries, key_length)`` as well, which says the same in
    one of the forms of :mod:`headwise.attention.forms`, the compiled kernels can read it. What they give is held to
    the shapes and dtypes told here.
    """

    @property
    def name(self) -> str:
        """The key under which the result is found."""
        ...

    def keys(self, queries: Tensor, key_length: int) -> Tensor:
        """Which keys belong to the relation.

        Args:
            queries: absolute positions of a block of queries, int64 ``[B or 1, rows]``.
            key_length: number of keys S.

        Returns:
            Boolean ``[B or 1, rows, S]``; True where the key belongs to the relation of that query.
        """
        ...


@dataclass(frozen=True)
class HeadStatistics:
    """Per query, what every head of one layer does. All tensors are float32 (float64 for float64 inputs) on the
    inputs' device.

    Attributes:
        names: the N relations, in the order of ``mass``.
        mass: ``[N, B, H, L]`` share of the softmax that falls on the relation's keys.
        uniform: ``[N, B, H, L]`` that share if the query attended evenly to every key it may see (H may be 1 when
            all heads see the same keys).
        informative: ``[N, B, H, L]`` True where the score could have gone either way: the relation holds at least one
            visible key and leaves out at least one. Elsewhere the mass is 0 or 1 whatever the head does.
        entropy: ``[B, H, L]`` in nats.
        largest: ``[B, H, L]`` the largest weight.
        distance: ``[B, H, L]`` mean of |query position − key position| under the weights, in tokens.
        lse: ``[B, H, L]`` log-sum-exp of the scores, natural logarithm, the sink included.
        seeing: ``[B, H, L]`` True where the query sees at least one key (H may be 1).

    A query that sees no key has weight 0 everywhere, entropy 0 and LSE −inf. With attention sinks the weights of a row
    sum to less than one, and the entropy is that of these weights as they stand.
    """

    names: tuple[str, ...]
    mass: Tensor
    uniform: Tensor
    informative: Tensor
    entropy: Tensor
    largest: Tensor
    distance: Tensor
    lse: Tensor
    seeing: Tensor

    def score(self, name: str) -> Tensor:
        """Mean mass on one relation over the informative queries: ``[B, H]``, NaN where there is none.

        Dividing by the informative queries only, rather than by all rows, lets a perfect head score exactly 1.

        Raises:
            KeyError: no relation has that name.
        """
        return self._over_informative(self.mass, name)

    def chance(self, name: str) -> Tensor:
        """The same mean under uniform attention over the visible keys: ``[B, H]`` (closed form, no sampling)."""
        return self._over_informative(self.uniform, name)

    def mean(self, field: str) -> Tensor:
        """Mean of ``entropy``, ``largest``, ``distance`` or ``lse`` over the queries that see a key: ``[B, H]``, NaN
        where there is none.

        Raises:
            KeyError: no such field.
        """
        if field not in _MEANS:
            raise KeyError(f"head_statistics: expected one of {', '.join(_MEANS)}, got {field!r}")
        values: Tensor = getattr(self, field)
        seeing = self.seeing.expand_as(values)
        return torch.where(seeing, values, values.new_zeros(())).sum(-1) / seeing.sum(-1)

    def _over_informative(self, values: Tensor, name: str) -> Tensor:
        if name not in self.names:
            raise KeyError(f"head_statistics: no relation is named {name!r}; there are {', '.join(self.names)}")
        index = self.names.index(name)
        informative = self.informative[index]
        values = values[index].expand_as(self.mass[index])
        counted = torch.where(informative, values, values.new_zeros(())).sum(-1)
        return counted / informative.expand_as(self.mass[index]).sum(-1)


def head_statistics(
    query: Tensor,
    key: Tensor,
    relations: Sequence[Relation],
    *,
    max_block_bytes: int | None = None,
    backend: str | None = None,
    **visibility: Any,
) -> HeadStatistics:
    """Reduce the attention weights of one layer to per-query statistics, without ever holding the map.

    Args:
        query: ``[B, H, L, D]``.
        key: ``[B, G, S, D]`` with H divisible by G; query head h reads KV head h // R.
        relations: what to measure; each has a name of its own.
        max_block_bytes: how many bytes one block of scores may take in PyTorch's operations (default about 32 MiB).
        backend: ``None`` (choose), ``"native"`` or ``"math"``, as in :func:`headwise.attention.attention`. The compiled
            kernels are chosen where they would be for attention, if every relation has a ``form``.
        **visibility: ``mask``, ``bias``, ``causal``, ``window``, ``offset``, ``key_lengths``, ``cu_seqlens``,
            ``scale``, ``softcap``, ``sinks`` and ``alibi_slopes``, as in :func:`headwise.attention.attention`. With
            packed documents a relation's positions are indices into all keys, and its tokens are the packed ones.

    Returns:
        HeadStatistics, see there for shapes and units.

    Raises:
        TypeError: there is no argument of that name, or something isn't a relation or gives no booleans.
        ValueError: two relations share a name, a relation gives another shape than asked for, the arguments of the
            attention do not fit together, or the named backend can't do what is asked.
    """
    relations = check_relations("head_statistics", relations)
    _check_options("head_statistics", max_block_bytes, visibility)
    with torch.no_grad(), full_precision(query.device):
        problem = Problem.of(query, key, **visibility)
        parts = [
            _document(document, relations, first_key, problem.key_length, max_block_bytes, backend)
            for document, first_key in zip(problem.documents(), problem.document_bounds()[1], strict=False)
        ]
        return _joined(relations, parts, problem)


class AttentionReading(NamedTuple):
    """What :func:`attention_with_statistics` returns.

    Attributes:
        output: ``[B, H, L, Dv]`` in the dtype of the query.
        statistics: see :class:`HeadStatistics`.
    """

    output: Tensor
    statistics: HeadStatistics


def attention_with_statistics(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    relations: Sequence[Relation],
    *,
    max_block_bytes: int | None = None,
    backend: str | None = None,
    **visibility: Any,
) -> AttentionReading:
    """Attention, and the statistics of its weights from the same pass where the compiled kernels can read them.

    Arguments, meaning and errors are those of :func:`headwise.attention.attention` and of :func:`head_statistics`, and
    so are the results, to the bit: few queries per key, which are decoded otherwise, are read in a pass of their own.
    The output carries gradients, the statistics do not.
    """
    relations = check_relations("attention_with_statistics", relations)
    _check_options("attention_with_statistics", max_block_bytes, visibility)
    problem = Problem.of(query, key, value, **visibility)
    together = value is not None and all(
        _is_native(part, relations, backend) and has_many_rows(part) for part in problem.documents()
    )
    if wants_gradient(problem) or not together:
        output = attention(query, key, value, backend=backend, **visibility)
        statistics = head_statistics(
            query, key, relations, max_block_bytes=max_block_bytes, backend=backend, **visibility
        )
        return AttentionReading(output, statistics)
    with torch.no_grad(), full_precision(query.device):
        parts = [
            compiled_statistics.with_output(document, relations, first_key, problem.key_length)
            for document, first_key in zip(problem.documents(), problem.document_bounds()[1], strict=False)
        ]
    outputs, fields = zip(*parts, strict=True)
    return AttentionReading(
        torch.cat(outputs, 2) if len(outputs) > 1 else outputs[0], _joined(relations, fields, problem)
    )


def _check_options(operation: str, max_block_bytes: Any, visibility: dict[str, Any]) -> None:
    for name in visibility:
        if name not in _VISIBILITY:
            close = [f"; did you mean {one}?" for one in get_close_matches(name, _VISIBILITY, n=1, cutoff=0.7)]
            told = ", ".join(_VISIBILITY)
            raise TypeError(f"{operation}: expected arguments of attention ({told}), got {name}{''.join(close)}")
    if max_block_bytes is None:
        return
    if not isinstance(max_block_bytes, Integral) or isinstance(max_block_bytes, bool):
        raise TypeError(f"{operation}: expected max_block_bytes as a whole number or None, got {max_block_bytes!r}")
    if max_block_bytes < 1:
        raise ValueError(f"{operation}: expected max_block_bytes of 1 or more, or None, got {max_block_bytes}")


def _is_native(problem: Problem, relations: Sequence[Relation], backend: str | None) -> bool:
    """Whether the compiled kernels read this document; the one place that decides.

    Raises:
        ValueError: the named backend can't do what is asked.
    """
    chosen = choose_backend(BACKENDS, backend, problem, need_lse=True)
    reason = compiled_statistics.refusal(relations)
    if backend == "native" and reason is not None:
        raise ValueError(f"backend 'native': {reason}; leave backend=None to let one be chosen")
    return chosen.name == "native" and reason is None


def _document(
    problem: Problem,
    relations: Sequence[Relation],
    first_key: int,
    key_length: int,
    max_block_bytes: int | None,
    backend: str | None,
) -> Fields:
    if _is_native(problem, relations, backend):
        return compiled_statistics.reduced(problem, relations, first_key, key_length)
    return reduction.reduced(problem, relations, first_key, key_length, max_block_bytes)


def _joined(relations: Sequence[Relation], parts: Sequence[Fields], problem: Problem) -> HeadStatistics:
    fields = {field: torch.cat([part[field] for part in parts], dim=-1) for field in parts[0]}
    batch, length = problem.batch_size, problem.query_length
    names = tuple(relation.name for relation in relations)
    for field in ("uniform", "informative"):
        fields[field] = fields[field].expand(len(names), batch, -1, length)
    fields["seeing"] = fields["seeing"].expand(batch, -1, length)
    return HeadStatistics(names=names, **fields)
