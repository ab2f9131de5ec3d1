"""Packed sequences: documents of different lengths side by side in one row, without padding.

``cu_seqlens`` holds the running total of the lengths: ``[0, 5, 12]`` are two documents of 5 and 7 tokens. Each document
is a call of its own, in which nothing of its neighbours can be seen; with it no pair of two documents is computed.

Symbols: ``N`` documents, ``L`` queries and ``S`` keys of all documents together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from headwise.attention.blocks import cut
from headwise.attention.masks import Reach, is_cheap_to_look_at
from headwise.attention.validation import holds_integers

if TYPE_CHECKING:
    from headwise.attention.problem import Problem

Bounds: TypeAlias = tuple[int, ...]
Packing: TypeAlias = tuple[Tensor, Tensor]
PackingArgument: TypeAlias = Tensor | Sequence[int] | tuple[Tensor | Sequence[int], Tensor | Sequence[int]] | None


def check_packing(given: PackingArgument, shape: Sequence[int]) -> Packing | None:
    """``cu_seqlens`` of queries and of keys, each int64 ``[N + 1]``; ``shape`` is ``[B, H, L, S]``.

    Args:
        given: one for both, or a pair for queries and keys (cross-attention, or queries behind cached keys).

    Raises:
        TypeError: it isn't a list or tensor of whole numbers, or a pair of these.
        ValueError: the batch isn't 1, or it doesn't start at 0, goes down, or ends elsewhere than the tokens.
    """
    if given is None:
        return None
    batch, _, queries, keys = shape
    if batch != 1:
        raise ValueError(f"cu_seqlens: expected packed documents in a batch of 1, got a batch of {batch}; reshape it")
    pair = given if _is_pair(given) else (given, given)
    packing = (_bounds_tensor(pair[0]), _bounds_tensor(pair[1]))
    if packing[0].shape != packing[1].shape:
        raise ValueError(
            f"cu_seqlens: expected as many documents of queries as of keys, got {packing[0].numel() - 1} and "
            f"{packing[1].numel() - 1}; a document without queries or keys is one of length 0"
        )
    if all(is_cheap_to_look_at(bounds) for bounds in packing):
        read_bounds(packing, queries, keys)
    return packing


def read_bounds(packing: Packing, queries: int, keys: int) -> tuple[Bounds, Bounds]:
    """The bounds as Python numbers; on another device than the CPU this waits for it.

    Raises:
        ValueError: they don't start at 0, go down, or end elsewhere than the tokens.
    """
    return (
        _checked(tuple(packing[0].tolist()), queries, "queries"),
        _checked(tuple(packing[1].tolist()), keys, "keys"),
    )


def split_documents(problem: Problem) -> list[Problem]:
    """One problem per packed document, in order."""
    queries, keys = problem.document_bounds()
    # Splitting, not slicing: the gradient of a split is one concatenation, that of slices one whole tensor each.
    parts = zip(
        problem.query.split(_lengths(queries), 2),
        problem.key.split(_lengths(keys), 2),
        [None] * (len(keys) - 1) if problem.value is None else problem.value.split(_lengths(keys), 2),
        pairwise(queries),
        pairwise(keys),
        strict=True,
    )
    return [_document(problem, *part) for part in parts]


def _document(
    problem: Problem,
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    rows: tuple[int, int],
    columns: tuple[int, int],
) -> Problem:
    return replace(
        problem,
        query=query,
        key=key,
        value=value,
        mask=None if problem.mask is None else cut(problem.mask, *rows, *columns),
        bias=None if problem.bias is None else cut(problem.bias, *rows, *columns),
        reach=Reach(problem.reach.spans, key.shape[2] - query.shape[2], None),
        packing=None,
    )


def _lengths(bounds: Bounds) -> list[int]:
    return [stop - start for start, stop in pairwise(bounds)]


def _checked(bounds: Bounds, tokens: int, what: str) -> Bounds:
    falls = any(later < earlier for earlier, later in pairwise(bounds))
    if bounds[0] != 0 or bounds[-1] != tokens or falls:
        raise ValueError(
            f"cu_seqlens: expected running totals from 0 to {tokens} (the {what}), got {_short(bounds)}; "
            "entry n is where document n starts, the last one where the last document ends"
        )
    return bounds


def _short(bounds: Bounds) -> str:
    return str(list(bounds)) if len(bounds) <= 12 else f"[{', '.join(map(str, bounds[:6]))}, ..., {bounds[-1]}]"


def _is_pair(given: object) -> bool:
    return isinstance(given, (tuple, list)) and len(given) == 2 and not any(isinstance(part, int) for part in given)


def _bounds_tensor(given: object) -> Tensor:
    if not isinstance(given, Tensor) and not isinstance(given, Sequence):
        raise TypeError(
            f"cu_seqlens: expected a tensor or list of running totals, or a pair of these, got {type(given).__name__}"
        )
    bounds = given if isinstance(given, Tensor) else torch.tensor(given, dtype=None if len(given) else torch.long)
    if not holds_integers(bounds):
        raise TypeError(f"cu_seqlens: expected integers, got {bounds.dtype}; cast with .int()")
    if bounds.dim() != 1 or bounds.numel() < 2:
        raise ValueError(
            f"cu_seqlens: expected shape [documents + 1] with a document at least, got {list(bounds.shape)}"
        )
    return bounds.long()
