"""The freedom in one layer's heads: other weights that compute the same function.

A head's basis is free. Values may pass through any invertible map that the output projection undoes. Queries and keys
meet in a scalar product only; where positions turn pairs of their dimensions, only maps that commute with every turn
leave it alone: in each pair one complex factor ``c`` for the key and ``1 / conj(c)`` for the query.

All functions compute in float64 and give the dtype that came.

Symbols: H query heads, G KV heads, R = H / G, D head dim, Dv value head dim, E model width, m rotary pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwise.models.head_weights import HeadWeights
from headwise.models.weights import Rotary
from headwise.surgery.sharing.pairs import join_pairs, split_pairs

__all__ = [
    "GaugeMaps", "apply_maps", "degrouped", "draw_maps", "random_orthogonal", "reordered", "value_bias_folded",
]  # fmt: skip

_WORST = 1e8  # condition number from which a map loses half the digits of float64


@dataclass(frozen=True)
class GaugeMaps:
    """Maps for the KV heads of one layer; what is None stays as it is.

    Attributes:
        turns: complex ``[G, m]``, the factor of each rotary pair of the keys.
        keys: ``[G, D - 2 m, D - 2 m]``, for the dimensions of the keys that positions don't turn.
        values: ``[G, Dv, Dv]``.
    """

    turns: Tensor | None = None
    keys: Tensor | None = None
    values: Tensor | None = None


def random_orthogonal(count: int, width: int, generator: torch.Generator) -> Tensor:
    """``[count, width, width]`` float64, uniform over all orthogonal maps (Mezzadri 2007)."""
    rotation, triangle = torch.linalg.qr(torch.randn(count, width, width, dtype=torch.float64, generator=generator))
    return rotation * triangle.diagonal(dim1=-2, dim2=-1).sign()[:, None]


def draw_maps(weights: HeadWeights, rotary: Rotary, generator: torch.Generator, *, general: bool = False) -> GaugeMaps:
    """Random maps for all that is free.

    Args:
        weights: tell the sizes.
        rotary: which dimensions of queries and keys are turned by position.
        generator: on the CPU.
        general: also stretch, by factors from 1/2 to 2; otherwise turns have modulus 1 and the other maps are
            orthogonal.
    """
    groups, head_dim, value_dim = weights.num_kv_heads, weights.key.shape[1], weights.value.shape[1]

    def stretches(*shape: int) -> Tensor:
        drawn = torch.rand(*shape, dtype=torch.float64, generator=generator)
        return 2 ** (2 * drawn - 1) if general else torch.ones_like(drawn)

    def maps(width: int) -> Tensor:
        left, right = (random_orthogonal(groups, width, generator) for _ in range(2))
        return left * stretches(groups, 1, width) @ right

    phases = 2 * math.pi * torch.rand(groups, rotary.dims // 2, dtype=torch.float64, generator=generator)
    turns = torch.polar(stretches(*phases.shape), phases)
    return GaugeMaps(turns, maps(head_dim - rotary.dims), maps(value_dim))


def apply_maps(weights: HeadWeights, maps: GaugeMaps, rotary: Rotary) -> HeadWeights:
    """The same layer in other bases.

    Args:
        weights: of the layer.
        maps: for its KV heads; the query heads of each undo them.
        rotary: which dimensions of queries and keys are turned by position, and in what pairs.

    Raises:
        ValueError: a map has another shape, or can't be undone.
    """
    dtype, result = weights.query.dtype, weights.to(torch.float64)
    if maps.turns is not None:
        result = _turned(result, maps.turns.to(torch.complex128), rotary)
    if maps.keys is not None:
        result = _mapped_keys(result, maps.keys.to(torch.float64), rotary)
    if maps.values is not None:
        result = _mapped_values(result, maps.values.to(torch.float64))
    return result.to(dtype)


def _turned(weights: HeadWeights, turns: Tensor, rotary: Rotary) -> HeadWeights:
    _check("turns", turns, (weights.num_kv_heads, rotary.dims // 2))
    if not bool((turns.isfinite() & (turns != 0)).all()):
        raise ValueError("turns: expected factors that can be undone, got 0, NaN or infinity")

    def turned(rows: Tensor, factors: Tensor) -> Tensor:
        pairs, rest = split_pairs(rows.reshape(*rows.shape[:2], -1), rotary)
        return join_pairs(pairs * factors[..., None], rest, rotary).view_as(rows)

    return _with_keys(weights, turned, turns, 1 / turns.conj())


def _mapped_keys(weights: HeadWeights, maps: Tensor, rotary: Rotary) -> HeadWeights:
    width = weights.key.shape[1] - rotary.dims
    _check("keys", maps, (weights.num_kv_heads, width, width))
    inverse = _inverse("keys", maps).transpose(1, 2)

    def mapped(rows: Tensor, factors: Tensor) -> Tensor:
        free = torch.einsum("hij,hj...->hi...", factors, rows[:, rotary.dims :])
        return torch.cat([rows[:, : rotary.dims], free], 1)

    return _with_keys(weights, mapped, maps, inverse)


def _with_keys(
    weights: HeadWeights, change: Callable[[Tensor, Tensor], Tensor], of_keys: Tensor, of_queries: Tensor
) -> HeadWeights:
    """Keys and queries changed by ``change(rows, factors)``, with one entry of ``factors`` a KV head."""
    of_queries = of_queries.repeat_interleave(weights.group_size, 0)
    key_bias, query_bias = weights.key_bias, weights.query_bias
    return replace(
        weights,
        key=change(weights.key, of_keys),
        key_bias=None if key_bias is None else change(key_bias, of_keys),
        query=change(weights.query, of_queries),
        query_bias=None if query_bias is None else change(query_bias, of_queries),
    )


def _mapped_values(weights: HeadWeights, maps: Tensor) -> HeadWeights:
    width = weights.value.shape[1]
    _check("values", maps, (weights.num_kv_heads, width, width))
    inverse = _inverse("values", maps).repeat_interleave(weights.group_size, 0)
    bias = weights.value_bias
    return replace(
        weights,
        value=maps @ weights.value,
        output=weights.output @ inverse,
        value_bias=None if bias is None else torch.einsum("gij,gj->gi", maps, bias),
    )


def _check(name: str, maps: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(maps.shape) != shape:
        raise ValueError(f"{name}: expected maps {list(shape)}, got {list(maps.shape)}")


def _inverse(name: str, maps: Tensor) -> Tensor:
    if maps.numel() and not bool(torch.linalg.cond(maps).max() < _WORST):
        raise ValueError(f"{name}: expected maps that can be undone, with condition numbers below {_WORST:g}, got more")
    return torch.linalg.inv(maps)


def reordered(weights: HeadWeights, order: Sequence[int]) -> HeadWeights:
    """Query head ``order[i]`` at place i, and the KV heads where their query heads are.

    Raises:
        ValueError: this is no order of the query heads, or query heads of one KV head don't stay together.
    """
    order, size = list(order), weights.group_size
    if sorted(order) != list(range(weights.num_heads)):
        raise ValueError(f"expected each of the query heads 0 to {weights.num_heads - 1} once, got {order}")
    groups = [[head // size for head in order[at : at + size]] for at in range(0, len(order), size)]
    torn = next((at for at, group in enumerate(groups) if len(set(group)) > 1), None)
    if torn is not None:
        together = order[torn * size : torn * size + size]
        raise ValueError(
            f"expected the {size} query heads of a KV head to stay together, got {together} of KV heads {groups[torn]} "
            "in one group; degroup first, or move whole groups"
        )
    return weights.select(order, [group[0] for group in groups])


def degrouped(weights: HeadWeights, num_kv_heads: int) -> HeadWeights:
    """Every KV head as often as needed for ``num_kv_heads`` of them.

    Raises:
        ValueError: no multiple of G, or no divisor of H.
    """
    heads, groups = weights.num_heads, weights.num_kv_heads
    if num_kv_heads < 1 or num_kv_heads % groups or heads % num_kv_heads:
        possible = [str(count) for count in range(groups, heads + 1, groups) if heads % count == 0]
        raise ValueError(
            f"expected a multiple of its {groups} KV heads that divides its {heads} query heads, got {num_kv_heads}; "
            f"use one of {', '.join(possible)}"
        )
    copies = num_kv_heads // groups
    return weights.select(range(heads), [group // copies for group in range(num_kv_heads)])


def value_bias_folded(weights: HeadWeights) -> HeadWeights:
    """The value bias in the output bias, and zeros in its place.

    Attention weights of a query sum to one, so that each head's output holds its value bias once, whatever it attends
    to.

    Raises:
        ValueError: there is no bias to move, or none to move it into.
    """
    value_bias, output_bias = weights.value_bias, weights.output_bias
    if value_bias is None:
        raise ValueError("expected a value bias, got none; there is nothing to fold")
    if output_bias is None:
        raise ValueError("expected an output bias to take the value bias, got none: the format has no place for one")
    repeated = value_bias.double().repeat_interleave(weights.group_size, 0)  # [H, Dv]
    moved = torch.einsum("hev,hv->e", weights.output.double(), repeated)
    folded = (output_bias.double() + moved).to(output_bias.dtype)
    return replace(weights, value_bias=torch.zeros_like(value_bias), output_bias=folded)
