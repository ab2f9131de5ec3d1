"""What `induction` trains on: rows that repeat a block of tokens.

Symbols: B rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.bench.experiments.training import split_of

__all__ = ["ONE", "TWO", "Rows", "Settings", "draw_rows"]

TWO, ONE = "two layers", "one layer"


@dataclass(frozen=True)
class Settings:
    """Sizes.

    Attributes:
        vocabulary: tokens.
        length: of a row.
        prefix: most tokens before the first block.
        shortest: length of the shortest block.
        longest: of the longest.
        width: of the model.
        heads: of each layer.
        batch: rows of a step.
        steps: of training.
        rate: the highest learning rate.
        points: how many times the curves are measured after the start.
        rows: of validation, and of the test.
        threshold: from which score on a head is called one of its kind.
    """

    vocabulary: int = 40
    length: int = 33
    prefix: int = 4
    shortest: int = 8
    longest: int = 13
    width: int = 64
    heads: int = 4
    batch: int = 32
    steps: int = 240
    rate: float = 6e-3
    points: int = 16
    rows: int = 128
    threshold: float = 0.4


@dataclass(frozen=True)
class Rows:
    """Rows of tokens.

    Attributes:
        tokens: ``[B, length]``.
        known: ``[B, length]`` True where the token has stood in the row before, and with it what follows.
        blocks: ``[B, shortest]`` the first tokens of the block that is repeated, by which rows are held out.
    """

    tokens: Tensor
    known: Tensor
    blocks: Tensor


def draw_rows(count: int, splits: tuple[int, ...], generator: torch.Generator, settings: Settings) -> Rows:
    """Rows whose block belongs to one of the splits."""
    kept: list[tuple[Tensor, ...]] = []
    while sum(len(parts[0]) for parts in kept) < count:
        candidates = _candidates(2 * count, generator, settings)
        wanted = torch.isin(split_of(candidates[2]), torch.tensor(splits))
        kept.append(tuple(each[wanted] for each in candidates))
    tokens, known, blocks = (torch.cat(parts)[:count] for parts in zip(*kept, strict=True))
    return Rows(tokens, known, blocks)


def _candidates(count: int, generator: torch.Generator, settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """What :class:`Rows` holds, of any split."""
    order = torch.rand(count, settings.vocabulary, generator=generator).argsort(1)  # all tokens, each once
    prefix = torch.randint(settings.prefix + 1, (count, 1), generator=generator)
    size = torch.randint(settings.shortest, settings.longest + 1, (count, 1), generator=generator)
    places = torch.arange(settings.length)
    inside = settings.prefix + (places - prefix).remainder(size)  # of the order; what is before it is the prefix
    tokens = order.gather(1, torch.where(places < prefix, places, inside))
    blocks = order[:, settings.prefix : settings.prefix + settings.shortest]
    return tokens, places >= prefix + size, blocks
