"""Fitting the projections of one layer to what the layer is to give.

Merged heads are optimal for scores and outputs taken as linear; the softmax between them is not. A few dozen steps of
Adam on the layer alone mend what that leaves: the loss is the squared error of the layer's output, no gradient passes
through any other layer, and rows that are not fitted decide whether the result is taken (layer-wise reconstruction, as
in Nagel et al. 2020 for rounding, here for shared heads).

Symbols: N rows, L length, E model width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.surgery.walk import Step

__all__ = ["Fit", "fit_layer", "output_error"]

_TOKENS = 2_048  # in one step
_BETAS = (0.9, 0.98)
# Below this share of the output's energy there is only float32's rounding to be fitted.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Fit:
    """What a fit did: the squared error on rows that were not fitted, as a share of the target's energy."""

    before: float
    after: float


def fit_layer(
    attention: Step, inputs: Tensor, target: Tensor, judges: Tensor, *, steps: int, rate: float, seed: int
) -> Fit:
    """Change the layer's projections so that it gives ``target``; they stay as they are if that does not help.

    Args:
        attention: the layer, changed in place.
        inputs: ``[N, L, E]``.
        target: ``[N, L, E]``.
        judges: boolean ``[N]``: rows that are not fitted.
        steps: of Adam, with a cosine decay to 0.
        rate: first step size, as a share of a projection's root mean square.
        seed: of the order of rows.
    """
    before = output_error(attention, inputs[judges], target[judges])
    if before < _ROUNDING or not steps:
        return Fit(before, before)
    projections = _projections(attention.module)
    kept = [projection.detach().clone() for projection in projections]
    with _trainable(projections):
        _descend(attention, projections, inputs[~judges], target[~judges], steps, rate, seed)
    after = output_error(attention, inputs[judges], target[judges])
    if not after < before:
        for projection, old in zip(projections, kept, strict=True):
            projection.data.copy_(old)
        return Fit(before, before)
    return Fit(before, after)


def _descend(
    attention: Step, projections: list[nn.Parameter], inputs: Tensor, target: Tensor, steps: int, rate: float, seed: int
) -> None:
    sizes = [float(projection.detach().square().mean().sqrt()) for projection in projections]
    groups = [
        {"params": [one], "lr": rate * (size or max(sizes))} for one, size in zip(projections, sizes, strict=True)
    ]
    optimizer = torch.optim.Adam(groups, betas=_BETAS)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps)))
    energy = target.square().mean()
    order = _orders(len(inputs), max(1, _TOKENS // inputs.shape[1]), seed)
    for _ in range(steps):
        rows = next(order)
        optimizer.zero_grad()
        ((attention(inputs[rows]) - target[rows]).square().mean() / energy).backward()
        optimizer.step()
        schedule.step()


def _orders(rows: int, batch: int, seed: int) -> Iterator[Tensor]:
    """Rows to take next, each once before any is taken again."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(rows, generator=generator).split(batch)


def output_error(attention: Step, inputs: Tensor, target: Tensor) -> float:
    """The squared error of a layer's output, as a share of the target's energy."""
    squares = torch.zeros(2, dtype=torch.float64)
    batch = max(1, 2 * _TOKENS // inputs.shape[1])
    with torch.no_grad():
        for part, wanted in zip(inputs.split(batch), target.split(batch), strict=True):
            squares += torch.stack([(attention(part) - wanted).double().square().sum(), wanted.double().square().sum()])
    return float(squares[0] / squares[1].clamp(min=torch.finfo(torch.float64).tiny))


def _projections(module: nn.Module) -> list[nn.Parameter]:
    """Weights and biases of the linear layers inside, without norms."""
    return [parameter for part in module.modules() if isinstance(part, nn.Linear) for parameter in part.parameters()]


@contextmanager
def _trainable(parameters: list[nn.Parameter]) -> Iterator[None]:
    before = [parameter.requires_grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
        with torch.enable_grad():
            yield
    finally:
        for parameter, wanted in zip(parameters, before, strict=True):
            parameter.requires_grad_(wanted)
            parameter.grad = None
