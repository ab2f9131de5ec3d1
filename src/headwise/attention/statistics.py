"""What a head attends to, reduced while the softmax streams by.

Symbols: B batch, L query length, S key length, H query heads, G KV heads, D head dim, N relations.

A study of heads needs a few numbers per query, never the map of all weights. ``head_statistics`` walks over blocks of
queries, turns each block of scores into weights, reduces the block and drops it, so that memory grows with L and not
with L·S.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from headwise.attention.blocks import Workspace
from headwise.attention.problem import Problem
from headwise.attention.softmax import Softmax, softmax_with_sink

__all__ = ["HeadStatistics", "Relation", "head_statistics"]

_MEANS = ("entropy", "largest", "distance", "lse")


class Relation(Protocol):
    """A set of keys for every query: the thing whose attention mass is measured.

    Concrete relations (``Offset``, ``Match``, ``Keys``, ``Target``) live in ``headwise.study.relations``; anything with
    a ``name`` and a ``keys`` method serves.
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
    query: Tensor, key: Tensor, relations: Sequence[Relation], *, max_block_bytes: int | None = None, **visibility: Any
) -> HeadStatistics:
    """Reduce the attention weights of one layer to per-query statistics, without ever holding the map.

    Args:
        query: ``[B, H, L, D]``.
        key: ``[B, G, S, D]`` with H divisible by G; query head h reads KV head h // R.
        relations: what to measure; each has a name of its own.
        max_block_bytes: how many bytes one block of scores may take (default about 32 MiB).
        **visibility: ``mask``, ``bias``, ``causal``, ``window``, ``offset``, ``key_lengths``, ``cu_seqlens``,
            ``scale``, ``softcap``, ``sinks`` and ``alibi_slopes``, as in :func:`headwise.attention.attention`. With
            packed documents a relation's positions are indices into all keys, and its tokens are the packed ones.

    Returns:
        HeadStatistics, see there for shapes and units.

    Raises:
        ValueError: two relations share a name, or the arguments of the attention do not fit together.
    """
    names = tuple(relation.name for relation in relations)
    if len(set(names)) != len(names):
        raise ValueError(f"head_statistics: relations need names of their own, got {', '.join(names)}")
    with torch.no_grad():
        problem = Problem.of(query, key, **visibility)
        parts = []
        for document, first_key in zip(problem.documents(), problem.document_bounds()[1], strict=False):
            workspace = document.workspace(max_block_bytes)
            for rows in list(document.blocks(max_block_bytes)) or [(0, 0)]:
                softmax = _softmax(document, rows, workspace)
                parts.append(_block(document, softmax, relations, rows, first_key, problem.key_length))
        return _joined(names, parts, problem)


def _softmax(problem: Problem, rows: tuple[int, int], workspace: Workspace) -> Softmax:
    scores = problem.scores(*rows, problem.key_range(*rows), workspace)
    return softmax_with_sink(scores, problem.sinks, in_place=True)


def _block(
    problem: Problem,
    softmax: Softmax,
    relations: Sequence[Relation],
    rows: tuple[int, int],
    first_key: int,
    key_length: int,
) -> dict[str, Tensor]:
    """Some queries of a document whose keys start at ``first_key`` of all ``key_length``."""
    low, high = keys = problem.key_range(*rows)
    weights = softmax.exponentials.div_(softmax.total)  # [B, H, rows, keys]
    visible = problem.visible(*rows, keys)  # [B or 1, H or 1, rows, keys]
    positions = problem.positions(*rows)  # [B or 1, rows]
    part = {
        "lse": softmax.lse,
        "seeing": visible.any(-1),
        "entropy": torch.special.entr(weights).sum(-1),
        "largest": weights.amax(-1) if weights.shape[-1] else softmax.lse.new_zeros(softmax.lse.shape),
        "distance": _mean_distance(weights, positions - low),
    }
    reached = slice(first_key + low, first_key + high)
    sets = [relation.keys(positions + first_key, key_length)[..., reached] for relation in relations]
    part.update(_masses(weights, visible, sets))
    return part


def _mean_distance(weights: Tensor, positions: Tensor) -> Tensor:
    keys = torch.arange(weights.shape[-1], device=weights.device)
    distance = (positions[:, None, :, None] - keys).abs().to(weights.dtype)  # [B or 1, 1, rows, S]
    return (weights * distance).sum(-1)


def _masses(weights: Tensor, visible: Tensor, sets: Sequence[Tensor]) -> dict[str, Tensor]:
    """Over all relations the mass, its value under uniform attention, and whether the row says anything.

    ``sets`` are the keys of each relation, ``[B or 1, rows, keys]``.
    """
    if not sets:
        empty = weights.new_zeros((0, *weights.shape[:-1]))
        return {"mass": empty, "uniform": empty, "informative": empty.bool()}
    # One matrix product reads the weights once for all relations: several times as fast as a masked sum for each.
    stacked = torch.stack(torch.broadcast_tensors(*sets), dim=2)  # [B or 1, rows, N, keys]
    keys = stacked.to(weights.dtype).transpose(-2, -1)
    mass = weights.transpose(1, 2) @ keys  # [B, rows, H, N]
    hits = visible.transpose(1, 2).to(weights.dtype) @ keys  # [B or 1, rows, H or 1, N]
    seen = visible.sum(-1).transpose(1, 2)[..., None]  # [B or 1, rows, H or 1, 1]
    per_row = {"mass": mass, "uniform": hits / seen.clamp(min=1), "informative": (hits > 0) & (hits < seen)}
    return {name: values.permute(3, 0, 2, 1) for name, values in per_row.items()}


def _joined(names: tuple[str, ...], parts: list[dict[str, Tensor]], problem: Problem) -> HeadStatistics:
    fields = {field: torch.cat([part[field] for part in parts], dim=-1) for field in parts[0]}
    batch, length = problem.batch_size, problem.query_length
    for field in ("uniform", "informative"):
        fields[field] = fields[field].expand(len(names), batch, -1, length)
    fields["seeing"] = fields["seeing"].expand(batch, -1, length)
    return HeadStatistics(names=names, **fields)
