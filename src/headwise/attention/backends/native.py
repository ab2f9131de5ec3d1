"""Attention by the compiled kernels (``native/``): each key and value is read once for all heads of its group.

They are chosen for every call that they can do without gradients: measured on AVX-512 with two threads they take 0.4
to 0.8 of the time of PyTorch's fused kernel for many queries, and far less for few. With gradients PyTorch's kernel has
the faster backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.attention import compiled
from headwise.attention.backends.table import Backend, wants_gradient
from headwise.attention.operator import call_operator
from headwise.attention.problem import Problem

# Where the kernels were measured to be faster than PyTorch's.
_MEASURED = ("avx2", "avx512", "avx512_bf16")


def _refusal(problem: Problem, need_lse: bool) -> str | None:
    compiled.check_instruction_set(problem.query.device)
    if compiled.INSTRUCTION_SET is None:
        return "headwise was installed without its compiled part (headwise doctor says more)"
    if problem.query.device.type != "cpu":
        return f"it runs on a CPU, not on {problem.query.device.type}"
    if problem.query.dtype == torch.float64:
        return "it sums in float32, which float64 inputs expect more of"
    widest = max(problem.query.shape[-1], 0 if problem.value is None else problem.value.shape[-1])
    if widest > compiled.WIDEST:
        return f"it takes keys and values of up to {compiled.WIDEST} elements, got {widest}"
    if problem.packing is not None:
        return "it takes packed documents one by one"
    if torch._C._are_functorch_transforms_active():
        return "the transforms of torch.func can't follow it"
    return None


def _suits(problem: Problem) -> bool:
    # Asked before a refusal is, so that a call that would go elsewhere learns of a wrong name as well.
    compiled.check_instruction_set(problem.query.device)
    return not wants_gradient(problem) and compiled.INSTRUCTION_SET in _MEASURED


def _compute(problem: Problem, need_lse: bool) -> tuple[Tensor, Tensor | None]:
    if torch.compiler.is_compiling() or wants_gradient(problem):
        return call_operator(problem, "native")
    return compiled.forward(problem, need_lse)


NATIVE = Backend("native", _refusal, _compute, _suits)
