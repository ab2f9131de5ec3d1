"""Rows in which values are looked up by keys: what `heads` and `windows` share.

Symbols: B batch, P keys, Q queries of a row.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from headwise.bench.experiments.training import split_of

__all__ = ["draw_assignments", "look_up", "retrieval_loss"]


def draw_assignments(
    count: int, splits: tuple[int, ...], *, keys: int, values: int, generator: torch.Generator
) -> Tensor:
    """``[count, keys]`` the value of key 0, 1, ...; each row belongs to one of the splits."""
    parts: list[Tensor] = []
    while sum(map(len, parts)) < count:
        drawn = torch.randint(values, (2 * count, keys), generator=generator)
        parts.append(drawn[torch.isin(split_of(drawn), torch.tensor(splits))])
    return torch.cat(parts)[:count]


def look_up(assignment: Tensor, asked: Tensor) -> Tensor:
    """The values ``[B, Q, slots]`` of keys that are asked for, likewise, where ``assignment`` is ``[B, P]``."""
    return assignment.gather(1, asked.flatten(1)).view_as(asked)


def retrieval_loss(read: Tensor, answers: Tensor) -> Tensor:
    """Mean loss of the values, in nats: ``read`` ``[B, Q, slots, values]``, ``answers`` ``[B, Q, slots]``."""
    return functional.cross_entropy(read.flatten(0, 2), answers.flatten())
