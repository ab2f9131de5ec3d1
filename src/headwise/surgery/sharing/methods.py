"""The ways of making one KV head of a group: ``first``, ``mean``, ``aligned`` and ``pca``.

Symbols: g KV heads of the group, n dimensions of a head, P rotary pairs, F width of the input and a 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headwise.surgery.sharing.merge import Group, Merged, Method, Parts

__all__ = ["METHODS", "aligned", "factor_cost", "first", "mean", "pair_cost", "pca"]

_NOTHING = 1e-12  # of the largest eigenvalue: below is rounding


def first(group: Group, moments: Tensor) -> tuple[Merged, Merged, Merged]:
    """The first head stands for all."""
    turned, plain, values = ((parts, parts.heads[0]) for parts in (group.turned, group.plain, group.values))
    return _as_it_is(*turned), _as_it_is(*plain), _as_it_is(*values)


def mean(group: Group, moments: Tensor) -> tuple[Merged, Merged, Merged]:
    """The mean of the heads' projections, as they stand (Ainslie et al. 2023)."""
    turned, plain, values = ((parts, parts.heads.mean(0)) for parts in (group.turned, group.plain, group.values))
    return _as_it_is(*turned), _as_it_is(*plain), _as_it_is(*values)


def _as_it_is(parts: Parts, new: Tensor) -> Merged:
    if parts.heads.is_complex():
        return Merged(new, torch.ones_like(parts.readers, dtype=new.dtype))
    return Merged(new, torch.eye(len(new), dtype=new.dtype).expand(len(parts.heads), -1, -1))


def aligned(group: Group, moments: Tensor) -> tuple[Merged, Merged, Merged]:
    """The mean after each head is turned as close to the others as a rotation can, with the norm restored.

    Rotations keep what a head computes: a phase for each rotary pair, an orthogonal map elsewhere.
    """
    return (
        _restored(group.turned, *_in_phase(group.turned, moments), moments),
        _restored(group.plain, *_rotated(group.plain, moments), moments),
        _restored(group.values, *_rotated(group.values, moments), moments),
    )


def _in_phase(parts: Parts, moments: Tensor) -> tuple[Tensor, Tensor]:
    _, vectors = torch.linalg.eigh(_products(parts.heads, moments))
    phases = torch.sgn(vectors[..., -1]).mT  # [g, P]
    return (parts.heads * phases.conj()[..., None]).mean(0), phases


def _rotated(parts: Parts, moments: Tensor) -> tuple[Tensor, Tensor]:
    """Procrustes onto the running mean, a few rounds (generalised Procrustes, Gower 1975)."""
    center = parts.heads[0]
    for _ in range(10):
        left, _, right = torch.linalg.svd(parts.heads @ moments @ center.mT)
        maps = left @ right  # old_i ≈ maps_i @ center
        center = (maps.mT @ parts.heads).mean(0)
    return center, maps


def _restored(parts: Parts, new: Tensor, maps: Tensor, moments: Tensor) -> Merged:
    """A mean is shorter than what it is the mean of; the new head gets the root mean square of the old ones."""
    wanted, got = (_energy(heads, moments) for heads in (parts.heads, new[None]))
    return Merged(new * (wanted / got).sqrt() if got > 0 else new, maps)


def _energy(heads: Tensor, moments: Tensor) -> Tensor:
    return ((heads @ moments.to(heads.dtype)) * heads.conj()).sum().real / len(heads)


def pca(group: Group, moments: Tensor) -> tuple[Merged, Merged, Merged]:
    """The head from which all others are read with the least error in what they are read for.

    Rotary pairs: with z ``[g]`` the group's complex keys, Σ = E[z zᴴ], and d the energy of the queries that read each,
    the top eigenvector of d^½ Σ d^½ gives the shared key and a complex factor for each head. All else: the truncation
    to n dimensions of the stacked heads, weighted by the input's covariance on one side and by the readers' second
    moment on the other. Both minimise the mean squared error of scores and outputs that are linear in the heads.
    """
    return _top_pair(group.turned, moments), _top_factor(group.plain, moments), _top_factor(group.values, moments)


def _products(heads: Tensor, moments: Tensor) -> Tensor:
    """E[z zᴴ] of every pair, ``[P, g, g]``, of complex heads ``[g, P, F]``."""
    each = heads.transpose(0, 1)
    return each @ moments.to(each.dtype) @ each.mH


def _weighted_pairs(parts: Parts, moments: Tensor) -> Tensor:
    root = parts.readers.mT.sqrt()  # [P, g]
    return root[:, :, None] * _products(parts.heads, moments) * root[:, None, :]


def _top_pair(parts: Parts, moments: Tensor) -> Merged:
    values, vectors = torch.linalg.eigh(_weighted_pairs(parts, moments))
    top, strength = vectors[..., -1], values[..., -1].clamp(min=0)  # [P, g], [P]
    root = parts.readers.mT.sqrt()
    # Half of the strength on either side, or keys would be large and queries small.
    scale = torch.where(strength > 0, strength, 1.0) ** 0.25
    shared = ((top.conj() * root).mT[..., None] * parts.heads).sum(0) / scale[:, None]
    factors = scale[:, None] * top * torch.where(root > 0, 1 / root, 0.0)
    return Merged(shared, factors.mT)


def _weighted_factor(parts: Parts, moments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The stacked heads ``[g n, F]`` as their readers weigh them, their Gram matrix, and the inverse of the weights."""
    values, vectors = torch.linalg.eigh(parts.readers)
    kept = values > _NOTHING * values.amax(-1, keepdim=True)
    root = torch.where(kept, values, 0.0).sqrt()
    inverse = torch.where(kept, 1 / root, 0.0)
    weighted = ((vectors * root[:, None, :]) @ vectors.mT @ parts.heads).flatten(0, 1)
    return weighted, weighted @ moments @ weighted.mT, (vectors * inverse[:, None, :]) @ vectors.mT


def _top_factor(parts: Parts, moments: Tensor) -> Merged:
    count, width = parts.heads.shape[:2]
    if not width:
        return Merged(parts.heads[0], parts.readers)
    weighted, gram, unweigh = _weighted_factor(parts, moments)
    values, vectors = torch.linalg.eigh(gram)
    strength = values[-width:].clamp(min=_NOTHING * float(values[-1].clamp(min=torch.finfo(values.dtype).tiny)))
    top = vectors[:, -width:]  # [g n, n]
    scale = strength**0.25
    return Merged((top / scale).mT @ weighted, unweigh @ (top * scale).unflatten(0, (count, width)))


def pair_cost(parts: Parts, moments: Tensor) -> float:
    """The share of the energy of rotary pairs that :func:`pca` loses, times that energy."""
    values = torch.linalg.eigvalsh(_weighted_pairs(parts, moments))
    return float(values[..., :-1].clamp(min=0).sum())


def factor_cost(parts: Parts, moments: Tensor) -> float:
    """The energy that :func:`pca` loses of heads that no position turns."""
    width = parts.heads.shape[1]
    if not width:
        return 0.0
    return float(torch.linalg.eigvalsh(_weighted_factor(parts, moments)[1])[:-width].clamp(min=0).sum())


METHODS: Mapping[str, Method] = {"pca": pca, "aligned": aligned, "mean": mean, "first": first}
