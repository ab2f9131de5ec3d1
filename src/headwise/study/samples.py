"""The inputs on which heads are scored: real text, and random tokens repeated twice.

Symbols: B batch, L length, P period of a repeated sample.

On text, what follows a word depends on everything the model knows; on random tokens repeated twice the second copy can
only be predicted by looking back at the first, which isolates previous-token, duplicate and induction heads (Olsson et
al. 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.errors import UserError
from headwise.models.copies import drawable_tokens, special_around
from headwise.models.documents import Piece

PERIOD = 50


@dataclass(frozen=True)
class Sample:
    """Samples of one length, ready to run.

    Attributes:
        tokens: int64 ``[B, L]``.
        units: which document (or repeated sample) each row is, counted from 0.
        counted: boolean ``[L]``: positions whose prediction counts towards the loss (of the token at that position).
        copy_index: int64 ``[L]``: for repeated samples the position of the first copy of each token of the second
            copy, elsewhere −1; None for text.
    """

    tokens: Tensor
    units: tuple[int, ...]
    counted: Tensor
    copy_index: Tensor | None = None


def text_samples(pieces: Sequence[Piece], batch: int, length: int | None = None) -> list[Sample]:
    """Pieces of equal length side by side, at most ``batch`` in a sample; longer ones are cut to ``length``."""
    by_length: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    for unit, piece in enumerate(pieces):
        tokens = piece.tokens[:length]
        by_length.setdefault(len(tokens), []).append((unit, tokens))
    samples = []
    for size, rows in sorted(by_length.items()):
        counted = torch.arange(size) > 0
        for start in range(0, len(rows), batch):
            units, tokens = zip(*rows[start : start + batch], strict=True)
            samples.append(Sample(torch.tensor(tokens), units, counted))
    return samples


def repeated_samples(
    tokenizer: Any, config: Any, count: int, batch: int, seed: int, *, unrelated: bool = False
) -> list[Sample]:
    """Random tokens repeated twice, after the model's first special token.

    Tokens of one sample are all different, so that the copy is the only place to look. Losses count over the second
    copy.

    Args:
        tokenizer: tells the special tokens, which are not drawn.
        config: tells the vocabulary and the BOS token.
        count: number of samples.
        batch: samples side by side.
        seed: seed of the draw.
        unrelated: fill the second half with other random tokens instead: same positions, nothing to copy. This is the
            control that tells content from position.

    Raises:
        UserError: the vocabulary is too small for a sample of different tokens.
    """
    pool = drawable_tokens(tokenizer, config)
    if len(pool) < 2 * PERIOD:
        raise UserError(f"repeated tokens: a vocabulary of {len(pool)} tokens is too small, {2 * PERIOD} are needed")
    before, after = special_around(tokenizer, config)
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        drawn = pool[torch.randperm(len(pool), generator=generator)[: 2 * PERIOD]].tolist()
        first, other = drawn[:PERIOD], drawn[PERIOD:]
        rows.append(before + first + (other if unrelated else first) + after)
    tokens = torch.tensor(rows)
    positions = torch.arange(tokens.shape[1])
    start = len(before) + PERIOD  # where the second copy begins
    second = (positions >= start) & (positions < start + PERIOD)
    copy_index = torch.where(second, positions - PERIOD, -1)
    return [
        Sample(tokens[low : low + batch], tuple(range(low, min(low + batch, count))), second, copy_index)
        for low in range(0, count, batch)
    ]


def count_tokens(samples: Sequence[Sample]) -> int:
    """Tokens in all samples: the unit in which progress is counted."""
    return sum(sample.tokens.numel() for sample in samples)
