"""One layer of grouped heads as latent attention: which parts of its keys stay rotary, and what its latents hold.

In multi-head latent attention positions turn only ``p`` features of a key, which all heads share. Grouped heads have
rotary keys of their own, so that they are latent attention exactly where ``p`` holds the rotary dimensions of all KV
heads side by side, each query head reading those of its own, and the latents hold the values. Anything less is a
truncation, here in three steps, each the best of its kind in the norm that the model itself sees:

1. Each rotary pair is a complex number ``z`` per KV head, and queries see it through one complex number ``u`` each.
   Their principal directions across the KV heads commute with rotation; the directions with the most energy stay
   rotary.
2. What isn't kept turns no more. It is read with the mean turn that the head's attention sees, which is about 1 for
   slow pairs and 0 for fast ones.
3. These keys and the values of all KV heads go into one latent, by a truncated singular value decomposition under the
   covariance of the inputs, weighted by the queries that read a key and by the output projection that reads a value.

All is computed in float64 on the CPU.

Sources: Meng et al. 2025 (arXiv:2502.07864, TransMLA) and Ji et al. 2025 (arXiv:2502.14837, MHA2MLA), which choose
rotary parts by the energy of keys alone, drop the rotation of the rest, and decompose without the weights.

Symbols: H query heads, G KV heads, R = H / G, D head dim, Dv value head dim, E model width, m rotary pairs, p rotary
dims kept, n dims of a head that turn no more, r rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.models.head_weights import HeadWeights
from headwise.models.weights import Rotary
from headwise.surgery.mla.statistics import LayerStatistics
from headwise.surgery.sharing.pairs import split_pairs

__all__ = ["LatentFactors", "factorise", "most_dims"]

_FLOOR = 1e-10  # of the mean weight: keeps weights that are to be undone away from zero


@dataclass(frozen=True)
class LatentFactors:
    """The projections of a :class:`headwise.nn.LatentAttention`, in float64.

    Attributes:
        pairs: which rotary pair of the original each kept direction is from, ``p / 2``.
        query: ``[H, n + p, E]``, what turns last.
        down: ``[r + p, E]``, likewise.
        up: ``[H, n + Dv, r]``.
        output: ``[H, E, Dv]``.
        nope_head_dim: n.
    """

    pairs: tuple[int, ...]
    query: Tensor
    down: Tensor
    up: Tensor
    output: Tensor
    nope_head_dim: int


@dataclass(frozen=True)
class _Split:
    """Queries and keys in a part that turns and one that doesn't."""

    pairs: tuple[int, ...]
    turning_query: Tensor  # [H, p, E]
    turning_key: Tensor  # [p, E]
    query: Tensor  # [H, n, E]
    key: Tensor  # [G, n, E]


def most_dims(weights: HeadWeights, rotary: Rotary, rope_dims: int) -> int:
    """The rank from which on the latents of ``rope_dims`` rotary dims lose nothing more."""
    groups, head_dim = weights.num_kv_heads, weights.key.shape[1]
    plain = head_dim - (rotary.dims if rope_dims == groups * rotary.dims else 0)
    return groups * (plain + weights.value.shape[1])


def factorise(
    weights: HeadWeights, rotary: Rotary, statistics: LayerStatistics, *, rank: int, rope_dims: int, scale: float
) -> LatentFactors:
    """Projections of latent attention for one layer.

    Args:
        weights: of the layer, without biases.
        rotary: which dimensions of queries and keys are turned by position.
        statistics: of its inputs.
        rank: r, at most what :func:`most_dims` gives.
        rope_dims: p, even, from 2 to ``G * 2 m``.
        scale: of the scores.
    """
    weights = weights.to(torch.float64).mapped(Tensor.cpu)
    split = _split(weights, rotary, statistics, rope_dims)
    down, up = _truncate(weights, split, statistics, rank, scale)
    return LatentFactors(
        pairs=split.pairs,
        query=torch.cat([split.query, split.turning_query], 1),
        down=torch.cat([down, split.turning_key]),
        up=up.repeat_interleave(weights.group_size, 0),
        output=weights.output,
        nope_head_dim=split.key.shape[1],
    )


def _importance(weights: HeadWeights, statistics: LayerStatistics) -> Tensor:
    """How much a head's output moves per unit of error in its scores, squared: its values' spread behind the output
    projection, ``[H]``."""
    values = weights.value.repeat_interleave(weights.group_size, 0)  # [H, Dv, E]
    spread = values @ statistics.centred @ values.mT  # [H, Dv, Dv]
    return torch.einsum("hev,hvw,hew->h", weights.output, spread, weights.output)


def _split(weights: HeadWeights, rotary: Rotary, statistics: LayerStatistics, rope_dims: int) -> _Split:
    key, plain_key = split_pairs(weights.key, rotary)  # [G, m, E], [G, D - 2 m, E]
    query, plain_query = split_pairs(weights.query, rotary)  # [H, m, E], [H, D - 2 m, E]
    cost = _cost_of_stopping(weights, query, statistics)  # [m, G]
    pairs, chosen = _directions(key, cost, statistics, rope_dims // 2)
    root = cost.sqrt()[pairs]  # [p / 2, G]
    turning_key = torch.einsum("pg,gpe->pe", chosen.conj() * root, key[:, pairs])
    back = chosen / root  # z of a KV head is the sum of back * turning_key over the directions of its pair
    turning_query = query[:, pairs] * back.repeat_interleave(weights.group_size, 1).T.conj()[..., None]
    remains = key.clone()
    remains.index_add_(1, pairs, -torch.einsum("pg,pe->gpe", back, turning_key))
    left = 0 if len(pairs) == key[..., 0].numel() else key.shape[1]  # nothing is left, or something of most pairs
    still = query * statistics.mean_turns[..., None].conj() * statistics.magnitude
    return _Split(
        pairs=tuple(pairs.tolist()),
        turning_query=_real(turning_query),
        turning_key=_real(turning_key[None])[0],
        query=torch.cat([_real(still[:, :left]), plain_query], 1),
        key=torch.cat([_real(remains[:, :left]), plain_key], 1),
    )


def _cost_of_stopping(weights: HeadWeights, query: Tensor, statistics: LayerStatistics) -> Tensor:
    """What the error is if a pair of a KV head is read with its mean turn, per unit of its energy, ``[m, G]``."""
    covariance = statistics.covariance.to(query.dtype)
    energy = torch.einsum("hme,ef,hmf->hm", query, covariance, query.conj()).real
    missed = (1 - statistics.mean_turns.abs().square()).clamp(min=0)
    cost = energy * missed * _importance(weights, statistics)[:, None]
    return _floored(cost.unflatten(0, (-1, weights.group_size)).sum(1).T)


def _directions(key: Tensor, cost: Tensor, statistics: LayerStatistics, count: int) -> tuple[Tensor, Tensor]:
    """The directions across KV heads that cost most: the pairs they belong to, in order, and ``[count, G]``."""
    root = cost.sqrt().to(key.dtype)  # [m, G]
    between = torch.einsum("gme,ef,hmf->mgh", key, statistics.covariance.to(key.dtype), key.conj())  # E[z z^H]
    energies, directions = torch.linalg.eigh(root[:, :, None] * between * root[:, None])  # [m, G], [m, G, G]
    order = energies.flatten().argsort(descending=True, stable=True)[:count].sort().values
    pairs, columns = order // len(key), order % len(key)
    return pairs, directions[pairs, :, columns]


def _real(rows: Tensor) -> Tensor:
    """``[heads, m, E]`` complex to ``[heads, 2 m, E]``, pairs interleaved."""
    return torch.stack([rows.real, rows.imag], 2).flatten(1, 2)


def _truncate(
    weights: HeadWeights, split: _Split, statistics: LayerStatistics, rank: int, scale: float
) -> tuple[Tensor, Tensor]:
    """``[r, E]`` to latents, and ``[G, n + Dv, r]`` from them to the keys that don't turn and the values.

    An error in a score moves the output by the spread of the values, an error in a value by itself, and attention
    averages both alike, so that the two need no other balance.
    """
    size, groups, plain = weights.group_size, weights.num_kv_heads, split.key.shape[1]
    importance = _importance(weights, statistics)[:, None, None]
    of_queries = split.query @ statistics.covariance @ split.query.mT * importance * scale**2  # [H, n, n]
    of_outputs = weights.output.mT @ weights.output  # [H, Dv, Dv]
    rows = torch.cat([split.key, weights.value], 1).flatten(0, 1)  # [G (n + Dv), E]
    reading = torch.zeros(groups, plain + weights.value.shape[1], plain + weights.value.shape[1], dtype=rows.dtype)
    reading[:, :plain, :plain] = _regular(of_queries.unflatten(0, (-1, size)).sum(1))
    reading[:, plain:, plain:] = _regular(of_outputs.unflatten(0, (-1, size)).sum(1))
    energies, basis = torch.linalg.eigh(reading)
    root = torch.block_diag(*(basis * energies.sqrt()[:, None] @ basis.mT))
    inverse = torch.block_diag(*(basis / energies.sqrt()[:, None] @ basis.mT))
    weighted = root @ rows
    kept = torch.linalg.eigh(weighted @ statistics.covariance @ weighted.T).eigenvectors[:, -rank:]  # [G (n + Dv), r]
    return kept.T @ weighted, (inverse @ kept).unflatten(0, (groups, -1))


def _floored(weights: Tensor) -> Tensor:
    """Positive weights, so that they can be undone."""
    floor = _FLOOR * weights.mean()
    return weights + (floor if floor > 0 else 1)


def _regular(grams: Tensor) -> Tensor:
    """Positive definite Gram matrices ``[G, n, n]``, so that they can be undone."""
    if not grams.shape[-1]:
        return grams
    floor = _FLOOR * grams.diagonal(dim1=1, dim2=2).mean()
    return grams + (floor if floor > 0 else 1) * torch.eye(grams.shape[-1], dtype=grams.dtype)
