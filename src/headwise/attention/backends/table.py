"""What a backend is, and how one is chosen: the first of a short list that suits and can do it, or the named one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.attention.problem import Problem


@dataclass(frozen=True)
class Backend:
    """A way to compute attention.

    Attributes:
        name: what ``backend=`` calls it.
        refusal: ``refusal(problem, need_lse)`` says why it can't do this call, or gives None if it can.
        compute: ``compute(problem, need_lse)`` gives the output ``[B, H, L, Dv]`` in the query's dtype and the LSE
            ``[B, H, L]`` in the compute dtype (None unless it was asked for).
        suits: ``suits(problem)`` says whether to choose it, unnamed, for a call that it can do: what was measured.
    """

    name: str
    refusal: Callable[[Problem, bool], str | None]
    compute: Callable[[Problem, bool], tuple[Tensor, Tensor | None]]
    suits: Callable[[Problem], bool] = lambda problem: True


def wants_gradient(problem: Problem) -> bool:
    """Whether autograd would follow this call."""
    given = (problem.query, problem.key, problem.value, problem.bias, problem.sinks, problem.alibi_slopes)
    return any_wants_gradient(*given)


def any_wants_gradient(*tensors: Tensor | None) -> bool:
    """Whether autograd would follow what is done with some of these."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def choose_backend(backends: Sequence[Backend], name: str | None, problem: Problem, need_lse: bool) -> Backend:
    """The backend called ``name``, or the first that can do this call.

    Raises:
        ValueError: no backend has that name, or the named one can't do what is asked.
    """
    if name is None:
        return next(one for one in backends if one.suits(problem) and one.refusal(problem, need_lse) is None)
    for backend in backends:
        if backend.name == name:
            reason = backend.refusal(problem, need_lse)
            if reason is not None:
                raise ValueError(f"backend {name!r}: {reason}; leave backend=None to let one be chosen")
            return backend
    names = ", ".join(repr(backend.name) for backend in backends)
    raise ValueError(f"backend: expected None or one of {names}, got {name!r}")
