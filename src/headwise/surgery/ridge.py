"""Linear regression from sums alone, with the strength of the ridge chosen by leaving documents out.

Symbols: N positions, P inputs, E outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwise.models.head_weights import HeadWeights

__all__ = ["RidgeFit", "Sums", "corrected_output", "fit_ridge"]

# Strengths that are tried, in units of the inputs' mean square: from float32's rounding to ten times what is there.
_STRENGTHS = tuple(10.0**power for power in range(-8, 2))


@dataclass(frozen=True)
class Sums:
    """Sums over positions, float64: all that least squares needs of inputs x ``[P]`` and outputs y ``[E]``.

    Attributes:
        count: N.
        x: Σ x ``[P]``.
        y: Σ y ``[E]``.
        xx: Σ x xᵀ ``[P, P]``.
        xy: Σ x yᵀ ``[P, E]``.
        yy: Σ yᵀ y, a scalar.
    """

    count: int
    x: Tensor
    y: Tensor
    xx: Tensor
    xy: Tensor
    yy: Tensor

    @classmethod
    def of(cls, inputs: Tensor, outputs: Tensor) -> Sums:
        """Of inputs ``[N, P]`` and outputs ``[N, E]``."""
        x, y = inputs.double(), outputs.double()
        return cls(len(x), x.sum(0), y.sum(0), x.T @ x, x.T @ y, y.square().sum())

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(mine + others for mine, others in zip(vars(self).values(), vars(other).values(), strict=True)))

    def __sub__(self, other: Sums) -> Sums:
        return Sums(*(mine - others for mine, others in zip(vars(self).values(), vars(other).values(), strict=True)))

    def about(self, x: Tensor, y: Tensor) -> Sums:
        """The same sums of inputs less ``x`` and outputs less ``y``."""
        return Sums(
            self.count,
            self.x - self.count * x,
            self.y - self.count * y,
            self.xx - torch.outer(self.x, x) - torch.outer(x, self.x) + self.count * torch.outer(x, x),
            self.xy - torch.outer(self.x, y) - torch.outer(x, self.y) + self.count * torch.outer(x, y),
            self.yy - 2 * self.y @ y + self.count * y @ y,
        )


@dataclass(frozen=True)
class RidgeFit:
    """A linear map from inputs to outputs.

    Attributes:
        weight: ``[P, E]``, float64.
        bias: ``[E]``, or None where none was asked for.
        strength: what was added to the diagonal, in units of the inputs' mean square.
        recovered: the share of Σ ‖y‖² that positions of documents left out were predicted to, 1 for all; negative where
            the map does more harm than good.
    """

    weight: Tensor
    bias: Tensor | None
    strength: float
    recovered: float


def fit_ridge(folds: Sequence[Sums], *, intercept: bool) -> RidgeFit:
    """Ridge regression; of ten strengths the one that predicts left-out folds best (cross-validation, Stone 1974).

    Args:
        folds: sums over disjoint sets of positions, two or more; positions of one document belong in one fold.
        intercept: whether there is a bias, which the ridge leaves alone.

    Returns:
        The fit to all folds. Its ``recovered`` is that of the chosen strength on the left-out folds; since one of only
        ten numbers was chosen by it, it is hardly flattered.
    """
    total = sum(folds[1:], start=folds[0])
    errors = sum(_errors(total - fold, fold, intercept) for fold in folds)
    assert isinstance(errors, Tensor)
    best = int(errors.argmin())
    recovered = 1 - float(errors[best] / total.yy) if total.yy > 0 else 1.0
    origin_x, origin_y = _origin(total, intercept)
    centred = total.about(origin_x, origin_y)
    values, vectors = torch.linalg.eigh(centred.xx)
    weight = vectors @ ((vectors.T @ centred.xy) / _shifted(values, _STRENGTHS[best])[:, None])
    bias = origin_y - origin_x @ weight if intercept else None
    return RidgeFit(weight, bias, _STRENGTHS[best], recovered)


def corrected_output(weights: HeadWeights, fit: RidgeFit) -> HeadWeights:
    """A layer whose output projection, and bias where it has one, gives what the fit predicts on top.

    Args:
        weights: of the layer, H query heads of value width Dv.
        fit: from the heads' outputs side by side, ``[H Dv]``, to what is missing from the layer's output ``[E]``.
    """
    change = fit.weight.unflatten(0, (weights.num_heads, -1)).transpose(1, 2)  # [H, E, Dv]
    bias = weights.output_bias
    if bias is not None and fit.bias is not None:
        bias = bias + fit.bias.to(bias)
    return replace(weights, output=weights.output + change.to(weights.output), output_bias=bias)


def _origin(sums: Sums, intercept: bool) -> tuple[Tensor, Tensor]:
    return (sums.x / sums.count, sums.y / sums.count) if intercept else (0 * sums.x, 0 * sums.y)


def _shifted(values: Tensor, strength: float) -> Tensor:
    """Eigenvalues with the ridge on top; never 0, also where all inputs are."""
    ridge = strength * values.clamp(min=0).mean()
    return values.clamp(min=0) + ridge.clamp(min=torch.finfo(values.dtype).tiny)


def _errors(fitted: Sums, left_out: Sums, intercept: bool) -> Tensor:
    """Σ ‖error‖² on positions that were left out, for every strength."""
    origin = _origin(fitted, intercept)
    fitted, left_out = fitted.about(*origin), left_out.about(*origin)
    values, vectors = torch.linalg.eigh(fitted.xx)
    # Everything in the basis of the eigenvectors, where another strength is another diagonal.
    xy, other_xy = vectors.T @ fitted.xy, vectors.T @ left_out.xy
    cross, square = (xy * other_xy).sum(1), (vectors.T @ left_out.xx @ vectors) * (xy @ xy.T)
    errors = []
    for strength in _STRENGTHS:
        inverse = 1 / _shifted(values, strength)
        errors.append(left_out.yy - 2 * inverse @ cross + inverse @ square @ inverse)
    return torch.stack(errors).clamp(min=0)
