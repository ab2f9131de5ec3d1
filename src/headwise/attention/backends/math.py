"""Attention in plain PyTorch operations: every feature, every device, and gradients for every floating input.

Where gradients are wanted or a graph is being compiled it runs as the operation ``headwise::attention``, which keeps
no weights and computes a block again in the backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.attention import streaming
from headwise.attention.backends.table import Backend, wants_gradient
from headwise.attention.operator import call_operator
from headwise.attention.problem import Problem


def _refusal(problem: Problem, need_lse: bool) -> str | None:
    return None


def _compute(problem: Problem, need_lse: bool) -> tuple[Tensor, Tensor | None]:
    if torch.compiler.is_compiling():
        return call_operator(problem, "math")
    # torch.func's transforms know no operations of others, but follow what these are made of.
    if torch._C._are_functorch_transforms_active():
        return streaming.recorded_forward(problem)
    if wants_gradient(problem):
        return call_operator(problem, "math")
    return streaming.forward(problem)


MATH = Backend("math", _refusal, _compute)
