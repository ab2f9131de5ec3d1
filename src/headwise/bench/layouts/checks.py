"""Before anything is timed: does every layout compute what it says, in a cache of the bytes that were planned?

Symbols: ``B`` batch, ``L`` length, ``E`` model width.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headwise.bench.layouts.costs import Load
from headwise.bench.layouts.runners import Runner, projection_parameters

__all__ = ["Check", "check_bytes", "check_parameters", "check_runner"]

_STEPS = 3  # tokens that are decoded one by one
_LENGTH = 257  # tokens that are read for it, more where a window only drops keys later
_BATCH = 2
_FACTOR = 4  # what one way of rounding may be beside another
_MOST_UNITS, _MOST_SHARE = 64, 0.05  # of the largest output; what is more is no rounding, whoever does it


@dataclass(frozen=True)
class Check:
    """The outputs of the last tokens, decoded with a cache, against reading all tokens at once in float64.

    Attributes:
        decoded: largest |difference| of the tokens that were decoded one by one; NaN if one is.
        prefilled: the same of those tokens where all are read at once in the layer's dtype: what rounding does.
        allowed: four times that, or four units of the dtype at the largest output if that is more; at most 64 units,
            and a twentieth of that output.
        tokens: how many tokens were read.
    """

    decoded: float
    prefilled: float
    allowed: float
    tokens: int

    @property
    def agrees(self) -> bool:
        """Whether both differences are rounding."""
        return self.decoded <= self.allowed and self.prefilled <= self.allowed  # NaN is not

    def record(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {**vars(self), "agrees": self.agrees}


@torch.inference_mode()
def check_runner(runner: Runner, load: Load, seed: int) -> Check:
    """Decode with a cache, taking one token back as the timing does, and compare with what float64 gives at once.

    For one that repeats keys and values, float64 is that of headwise's layer: so both are held to the same numbers.
    """
    spec = runner.spec
    tokens = min(load.context, max(_LENGTH, spec.window + spec.slack + 2 * _STEPS if spec.window else 0))
    steps = min(_STEPS, tokens - 1)
    small = replace(load, batch=min(load.batch, _BATCH), context=tokens)
    hidden = torch.randn(small.batch, tokens, spec.width, generator=torch.Generator().manual_seed(seed))
    hidden = hidden.to(getattr(torch, load.dtype))  # [B, L, E]
    exact = _exact(runner, hidden)[:, tokens - steps :]
    # Float16 and the like are told by what they lose without a cache; one that repeats, by what the other loses.
    own = replace(runner, repeats=False)
    lost = _largest(own.run(hidden)[:, tokens - steps :], exact)
    whole = _largest(runner.run(hidden)[:, tokens - steps :], exact)
    unit, largest = torch.finfo(hidden.dtype).eps, exact.abs().max().item()
    most = min(_MOST_UNITS * unit, _MOST_SHARE) * largest
    return Check(
        decoded=_largest(_decoded(runner, hidden, small, steps), exact),
        prefilled=whole,
        allowed=min(_FACTOR * max(lost, unit * largest), most),
        tokens=tokens,
    )


def check_bytes(runner: Runner, allocated: int) -> str | None:
    """What is wrong with the cache's bytes, or None."""
    if allocated == runner.cost.planned:
        return None
    return (
        f"{runner.name}: expected a cache of the planned {runner.cost.planned:,} bytes, got {allocated:,} allocated; "
        "the plan or the cache is wrong, please report it"
    )


def check_parameters(runner: Runner) -> str | None:
    """What is wrong with the projections, or None."""
    held = projection_parameters(runner.layer)
    if held == runner.cost.parameters_total:
        return None
    return (
        f"{runner.name}: expected {runner.cost.parameters_total:,} projection parameters as planned, got {held:,} in "
        "the layer; the plan or the layer is wrong, please report it"
    )


def _exact(runner: Runner, hidden: Tensor) -> Tensor:
    # No backend by name: not all of them take float64.
    exact = replace(runner, layer=copy.deepcopy(runner.layer).double(), repeats=False, backend=None)
    return exact.run(hidden.double())


def _decoded(runner: Runner, hidden: Tensor, load: Load, steps: int) -> Tensor:
    cache, first = runner.cache(load), hidden.shape[1] - steps
    if first:
        runner.run(hidden[:, :first], cache)
    outputs = []
    for index in range(first, hidden.shape[1]):
        runner.run(hidden[:, index : index + 1].flip(-1), cache)  # another token, which must leave nothing behind
        cache.rollback(1)
        outputs.append(runner.run(hidden[:, index : index + 1], cache))
    return torch.cat(outputs, 1)


def _largest(output: Tensor, exact: Tensor) -> float:
    return (output.double() - exact).abs().max().item()
