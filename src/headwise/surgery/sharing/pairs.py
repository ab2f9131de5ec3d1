"""Queries and keys as complex numbers, one for each rotary pair, and a real rest that no position turns.

A rotary pair (x, y) at position p is the complex number x + iy times exp(i p θ). The score of a query q and a key k is
the real part of conj(q) k, so that only their relative position counts; a key multiplied by c and its queries by
1 / conj(c) score the same. These are all exact freedoms of a pair.

Symbols: D head dim, P rotary pairs, U = D - 2 P dimensions that are not turned.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.models.weights import Rotary

__all__ = ["join_pairs", "split_pairs"]


def split_pairs(weight: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
    """The pairs ``[heads, P, F]``, complex, and the rest ``[heads, U, F]`` of a projection ``[heads, D, F]``."""
    turned, rest = weight[:, : rotary.dims], weight[:, rotary.dims :]
    if rotary.style == "interleaved":
        return torch.complex(turned[:, 0::2].contiguous(), turned[:, 1::2].contiguous()), rest
    first, second = turned.chunk(2, 1) if rotary.dims else (turned, turned)
    return torch.complex(first.contiguous(), second.contiguous()), rest


def join_pairs(pairs: Tensor, rest: Tensor, rotary: Rotary) -> Tensor:
    """The inverse of :func:`split_pairs`: ``[heads, D, F]``."""
    if rotary.style == "interleaved":
        turned = torch.stack([pairs.real, pairs.imag], 2).flatten(1, 2)
    else:
        turned = torch.cat([pairs.real, pairs.imag], 1)
    return torch.cat([turned, rest], 1)
