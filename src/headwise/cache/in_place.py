"""Attention over what a cache holds in blocks or in codes, without making it whole.

Here alone it is decided which calls the compiled kernels read in place; all others get two tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headwise.attention import compiled
from headwise.attention.backends.native import NATIVE
from headwise.attention.backends.table import wants_gradient
from headwise.attention.problem import Problem
from headwise.cache.held import Held

__all__ = ["attend_in_place"]


def attend_in_place(query: Tensor, part: Held, options: dict[str, Any], backend: str | None) -> Tensor | None:
    """Heads ``[B, H, L, Dv]`` over a part, or None where it has to be made whole.

    Args:
        query: ``[B, H, L, D]``, the query heads of the part.
        part: what a cache handed out.
        options: the keyword arguments of :func:`headwise.attention.attention`.
        backend: what the caller named; only the compiled kernels can do this.

    Raises:
        TypeError, ValueError: as :func:`headwise.attention.attention`; or the cache has changed since.
    """
    stored = part.stored
    # Keys that were made once are there, and stay right when the cache changes; what they were made of does not.
    if stored is None or part.is_whole or not stored.is_readable:
        return None
    if backend not in (None, NATIVE.name) or torch.compiler.is_compiling():
        return None
    problem = Problem.of(query, *stored.stand_ins(), **options)
    if not _is_for_kernels(problem, named=backend is not None):
        return None
    return compiled.forward_in_place(problem, stored.segments())


def _is_for_kernels(problem: Problem, named: bool) -> bool:
    """Whether each key serves few queries, and nothing stands against the kernels that are right for those.

    Many queries are faster over whole keys, whose making costs little beside their attention then.
    """
    if compiled.has_many_rows(problem) or wants_gradient(problem) or NATIVE.refusal(problem, False) is not None:
        return False
    return named or NATIVE.suits(problem)
