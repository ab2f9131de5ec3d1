"""What layers hold their sizes, inputs and masks against. Everything is checked before a cache is changed.

Axes: ``B`` batch, ``L`` query length, ``S`` key length, ``E`` model width, ``H`` query heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headwise.attention.problem import Problem

__all__ = ["check_layer_sizes", "check_padding", "check_queries_see", "check_some_are_real", "check_tokens"]


def check_layer_sizes(owner: str, sizes: Mapping[str, object]) -> None:
    """Refuse a size that is no positive integer.

    Raises:
        ValueError: with the name of the size.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{owner}: expected {name} to be a positive integer, got {size!r}")


def check_tokens(name: str, tokens: Tensor, embed_dim: int) -> None:
    """Refuse what isn't ``[B, length, E]``.

    Raises:
        TypeError: it is no tensor.
        ValueError: with the name of the tensor.
    """
    if not isinstance(tokens, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(tokens).__name__}; convert it first")
    if tokens.dim() != 3 or tokens.shape[-1] != embed_dim:
        raise ValueError(f"{name}: expected [batch, length, embed_dim = {embed_dim}], got {list(tokens.shape)}")


def check_padding(name: str, what: str, real: Tensor | None, expected: Sequence[int]) -> None:
    """Refuse a padding mask that isn't boolean or has another shape.

    Raises:
        TypeError: it isn't boolean.
        ValueError: it has another shape.
    """
    if real is None or (real.dtype == torch.bool and list(real.shape) == list(expected)):
        return
    new = " (cached and new ones)" if what == "keys" else ""
    if real.dtype != torch.bool:
        raise TypeError(
            f"{name}: expected bool [batch, {what}] with True = a real token{new}, got {real.dtype}; "
            "turn 1 and 0 into that with .bool()"
        )
    raise ValueError(
        f"{name}: expected bool [batch, {what}] = {list(expected)} with True = a real token{new}, got {real.dtype} "
        f"{list(real.shape)}"
    )


def check_some_are_real(key_mask: Tensor) -> None:
    """Refuse a batch that is nothing but padding: most likely its mask is turned around.

    Raises:
        ValueError: no token is real.
    """
    if key_mask.numel() and not bool(key_mask.any()):
        raise ValueError(
            "key_mask: expected a token that is no padding, got none in the whole batch; True = a real token, where "
            "torch.nn.MultiheadAttention says True = padding"
        )


def check_queries_see(problem: Problem, query_mask: Tensor | None) -> None:
    """Refuse a query that is a real token and sees no key: its output would be 0 without a word.

    Raises:
        ValueError: with the first such query.
    """
    if not problem.hides(0, problem.query_length) and problem.key_length:
        return
    blind = ~problem.seeing().expand(problem.batch_size, -1, -1)  # [B, H or 1, L]
    blind = blind if query_mask is None else blind & query_mask[:, None]
    if bool(blind.any()):
        sequence, head, query = (int(index) for index in blind.nonzero()[0])
        raise ValueError(
            f"mask: expected every query that is no padding to see a key, got none for query {query} of sequence "
            f"{sequence} (head {head}); check mask, key_mask and window, or mark padding with query_mask"
        )
