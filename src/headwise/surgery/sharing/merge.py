"""One key head and one value head for a group of them, and what the group's query heads must become.

Every method gives, for each group, new keys and values and the maps by which each old head is read from them:
``old_i ≈ maps_i @ new``. The maps are folded into the queries (keys) and the output projection (values), so the layer
keeps its form. Keys that positions turn only allow one complex factor per rotary pair; all else allows any map.

Symbols: H query heads, G KV heads, g KV heads of one group, R query heads of each of them, D head dim, P rotary pairs,
U dimensions that are not turned, E model width, F = E + 1 (the input and a 1, for biases).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headwise.models.head_weights import HeadWeights
from headwise.models.weights import Rotary
from headwise.surgery.sharing.pairs import join_pairs, split_pairs

__all__ = ["Group", "Merged", "Parts", "covariance", "groups_of", "merge_groups"]


@dataclass(frozen=True)
class Parts:
    """The KV heads of one group, and who reads them.

    Attributes:
        heads: ``[g, n, F]``, the projections.
        readers: ``[g, n, n]``: the second moment of what multiplies each head's output, queries for keys and rows of
            the output projection for values. For rotary pairs (complex heads) ``[g, n]``: pairs are independent.
    """

    heads: Tensor
    readers: Tensor


@dataclass(frozen=True)
class Merged:
    """What stands for a group: ``new [n, F]`` and ``maps``, ``[g, n, n]``, or ``[g, n]`` for rotary pairs."""

    new: Tensor
    maps: Tensor


@dataclass(frozen=True)
class Group:
    """One group of KV heads in three parts: turned keys as complex pairs, keys that are not turned, values."""

    turned: Parts
    plain: Parts
    values: Parts


# What a layer has for each head, in contrast to its output bias.
BY_HEAD = ("query", "key", "value", "output", "query_bias", "key_bias", "value_bias")
Method = Callable[[Group, Tensor], tuple[Merged, Merged, Merged]]


def covariance(inputs: Tensor) -> Tensor:
    """The second moment ``[F, F]`` of inputs ``[..., E]`` with a 1 after them, in float64.

    Its last row is the mean, so that biases take part like weights.
    """
    total = torch.zeros(inputs.shape[-1] + 1, inputs.shape[-1] + 1, dtype=torch.float64)
    rows = inputs.flatten(0, -2)
    for part in rows.split(8_192):
        longer = torch.cat([part, part.new_ones(len(part), 1)], 1).double().cpu()
        total += longer.T @ longer
    return total / len(rows)


def merge_groups(
    weights: HeadWeights, moments: Tensor, rotary: Rotary, groups: Sequence[Sequence[int]], method: Method
) -> HeadWeights:
    """The layer with one KV head for each group of KV heads; query heads come in the order of the groups.

    Args:
        weights: of the layer.
        moments: ``[F, F]``, see :func:`covariance`.
        rotary: how positions enter.
        groups: KV heads, each in one group, groups of equal size.
        method: makes one of a group.
    """
    given, size = weights.to(torch.float64), weights.group_size
    made = [
        _merge(given, group, method(part, moments), rotary, size)
        for group, part in zip(groups, groups_of(given, moments, rotary, groups), strict=True)
    ]
    names = [name for name in BY_HEAD if getattr(weights, name) is not None]
    joined: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in made]) for name in names}
    return replace(given, **joined).to(weights.query.dtype)


def groups_of(weights: HeadWeights, moments: Tensor, rotary: Rotary, groups: Sequence[Sequence[int]]) -> list[Group]:
    """The parts of each group, in float64."""
    weights = weights.to(torch.float64)
    size, kv_heads = weights.group_size, weights.num_kv_heads
    turned, plain = split_pairs(_with_bias(weights.key, weights.key_bias), rotary)
    asked_turned, asked_plain = split_pairs(_with_bias(weights.query, weights.query_bias), rotary)
    mixed = moments.to(turned.dtype)
    energy = ((asked_turned @ mixed) * asked_turned.conj()).sum(-1).real.unflatten(0, (kv_heads, size)).sum(1)  # [G, P]
    asked = (asked_plain @ moments @ asked_plain.mT).unflatten(0, (kv_heads, size)).sum(1)  # [G, U, U]
    written = (weights.output.mT @ weights.output).unflatten(0, (kv_heads, size)).sum(1)  # [G, Dv, Dv]
    values = _with_bias(weights.value, weights.value_bias)
    return [
        Group(
            Parts(turned[list(group)], energy[list(group)]),
            Parts(plain[list(group)], asked[list(group)]),
            Parts(values[list(group)], written[list(group)]),
        )
        for group in groups
    ]


def _with_bias(weight: Tensor, bias: Tensor | None) -> Tensor:
    """``[heads, D, E]`` to ``[heads, D, F]``."""
    column = weight.new_zeros(weight.shape[:2]) if bias is None else bias
    return torch.cat([weight, column[..., None]], -1)


def _merge(
    weights: HeadWeights, group: Sequence[int], merged: tuple[Merged, Merged, Merged], rotary: Rotary, size: int
) -> HeadWeights:
    """One group's layer: its query heads, folded, and one KV head."""
    turned, plain, values = merged
    heads = [kv_head * size + place for kv_head in group for place in range(size)]
    part = weights.select(heads, [group[0]])
    asked_turned, asked_plain = split_pairs(_with_bias(part.query, part.query_bias), rotary)
    # conj(q) k with k = a s is conj(conj(a) q) s.
    asked_turned = asked_turned * turned.maps.conj().repeat_interleave(size, 0)[..., None]
    asked_plain = plain.maps.mT.repeat_interleave(size, 0) @ asked_plain
    query = join_pairs(asked_turned, asked_plain, rotary)
    key = join_pairs(turned.new[None], plain.new[None], rotary)
    output = part.output @ values.maps.repeat_interleave(size, 0)

    def bias(made: Tensor, old: Tensor | None) -> Tensor | None:
        return None if old is None else made[..., -1]

    return replace(
        part,
        query=query[..., :-1],
        key=key[..., :-1],
        value=values.new[None, :, :-1],
        output=output,
        query_bias=bias(query, part.query_bias),
        key_bias=bias(key, part.key_bias),
        value_bias=bias(values.new[None], part.value_bias),
    )
