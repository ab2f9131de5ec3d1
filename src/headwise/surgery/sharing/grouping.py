"""Which KV heads become one: those that lose least together.

The cost of a group is what :func:`headwise.surgery.sharing.methods.pca` loses of its keys and of its values, each as a
share of the layer's whole, so that neither side drowns the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations

from torch import Tensor

from headwise.models.head_weights import HeadWeights
from headwise.models.weights import Rotary
from headwise.surgery.sharing.merge import Parts, groups_of
from headwise.surgery.sharing.methods import factor_cost, pair_cost

__all__ = ["adjacent", "choose_groups"]

Grouping = list[list[int]]
_FEW = 400  # partitions that are all tried; beyond, neighbours of the best found so far
_ROUNDS = 20


def adjacent(num_kv_heads: int, groups: int) -> Grouping:
    """Groups of neighbouring KV heads, in order."""
    size = num_kv_heads // groups
    return [list(range(start, start + size)) for start in range(0, num_kv_heads, size)]


def choose_groups(weights: HeadWeights, moments: Tensor, rotary: Rotary, groups: int) -> Grouping:
    """The grouping of KV heads into ``groups`` of equal size that loses least.

    All of them are tried where there are few. Otherwise adjacent groups, and groups gathered from the closest pairs,
    are improved by exchanging two heads as long as that helps: a local optimum, never worse than adjacent groups.
    """
    kv_heads = weights.num_kv_heads
    size = kv_heads // groups
    if size == 1 or groups == 1:
        return adjacent(kv_heads, groups)
    cost = _cost_of(weights, moments, rotary)
    if _count(kv_heads, size) <= _FEW:
        return min(_partitions(list(range(kv_heads)), size), key=lambda grouping: sum(map(cost, grouping)))
    starts = [adjacent(kv_heads, groups), _gathered(kv_heads, size, cost)]
    return min((_improved(start, cost) for start in starts), key=lambda grouping: sum(map(cost, grouping)))


def _cost_of(weights: HeadWeights, moments: Tensor, rotary: Rotary) -> Callable[[Sequence[int]], float]:
    whole = groups_of(weights, moments, rotary, [range(weights.num_kv_heads)])[0]
    keys = _energy(whole.turned, moments) + _energy(whole.plain, moments)
    values = _energy(whole.values, moments)
    known: dict[tuple[int, ...], float] = {}

    def cost(group: Sequence[int]) -> float:
        name = tuple(sorted(group))
        if name not in known:
            turned, plain, value = (_some(parts, name) for parts in (whole.turned, whole.plain, whole.values))
            lost = pair_cost(turned, moments) + factor_cost(plain, moments)
            known[name] = lost / (keys or 1.0) + factor_cost(value, moments) / (values or 1.0)
        return known[name]

    return cost


def _some(parts: Parts, heads: Sequence[int]) -> Parts:
    return Parts(parts.heads[list(heads)], parts.readers[list(heads)])


def _energy(parts: Parts, moments: Tensor) -> float:
    """What the readers get of the heads, as a mean square."""
    seen = parts.heads @ moments.to(parts.heads.dtype)
    if parts.heads.is_complex():
        return float((parts.readers * (seen * parts.heads.conj()).sum(-1).real).sum())
    return float((parts.readers * (seen @ parts.heads.mT)).sum())


def _count(heads: int, size: int) -> int:
    return math.factorial(heads) // math.factorial(size) ** (heads // size) // math.factorial(heads // size)


def _partitions(heads: list[int], size: int) -> list[Grouping]:
    if not heads:
        return [[]]
    found = []
    for others in combinations(heads[1:], size - 1):
        rest = [head for head in heads[1:] if head not in others]
        found += [[[heads[0], *others], *grouping] for grouping in _partitions(rest, size)]
    return found


def _gathered(kv_heads: int, size: int, cost: Callable[[Sequence[int]], float]) -> Grouping:
    """Each group grows from the first head that is left by the one that is closest to it."""
    left, found = list(range(kv_heads)), []
    while left:
        group = [left.pop(0)]
        while len(group) < size:
            nearest = min(left, key=lambda head: sum(cost([member, head]) for member in group))
            left.remove(nearest)
            group.append(nearest)
        found.append(sorted(group))
    return found


def _improved(grouping: Grouping, cost: Callable[[Sequence[int]], float]) -> Grouping:
    """Exchange two heads of different groups wherever that lowers the cost, until nothing does."""
    grouping = [list(group) for group in grouping]
    for _ in range(_ROUNDS):
        better = False
        for one, other in combinations(range(len(grouping)), 2):
            for first in range(len(grouping[one])):
                for second in range(len(grouping[other])):
                    a, b = list(grouping[one]), list(grouping[other])
                    a[first], b[second] = b[second], a[first]
                    if cost(a) + cost(b) < (cost(grouping[one]) + cost(grouping[other])) * (1 - 1e-9):
                        grouping[one], grouping[other], better = sorted(a), sorted(b), True
        if not better:
            break
    return grouping
