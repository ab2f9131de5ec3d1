"""Random tokens that repeat: text on which only looking back helps.

What is fitted to ordinary text alone keeps what ordinary text needs, and copying is seldom needed there: a model may
lose it entirely while its loss on text hardly moves.

Symbols: N rows, L length.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headwise.models.corpus import Rows
from headwise.models.documents import special_tokens

__all__ = ["drawable_tokens", "is_copies", "mixed_with_copies", "special_around"]

_SHORTEST = 8  # of a period
_NAME = "random tokens"


def mixed_with_copies(rows: Rows, tokenizer: Any, config: Any, *, share: float, seed: int) -> Rows:
    """Rows of text among which rows of random tokens are spread, so that all together ``share`` of them are random.

    Each random row repeats a stretch of random tokens, of a length drawn between 8 and half of the row, until it is
    full. Each counts as a document of its own.

    Args:
        rows: of text, which are all kept.
        tokenizer: tells special tokens, which are not drawn and stand around each row as they do around text.
        config: of the model, for its vocabulary.
        share: from 0 to less than 1.
        seed: of the draw.
    """
    count = round(share / (1 - share) * len(rows))
    if not count:
        return rows
    generator = torch.Generator().manual_seed(seed)
    pool, (before, after) = drawable_tokens(tokenizer, config), special_around(tokenizer, config)
    length = rows.tokens.shape[1]
    made = [_copies(pool, length - len(before) - len(after), generator) for _ in range(count)]
    added = torch.tensor([[*before, *row, *after] for row in made])
    first = len(rows.documents)
    tokens, units = torch.cat([rows.tokens, added]), (*rows.units, *range(first, first + count))
    # Spread evenly, since some of what uses the rows sets every n-th one aside.
    order = torch.randperm(len(tokens), generator=generator).tolist()
    documents = (*rows.documents, *(f"{_NAME}, seed {seed}, row {row}" for row in range(count)))
    return Rows(tokens[order], tuple(units[row] for row in order), documents)


def is_copies(document: str) -> bool:
    """Whether one of :attr:`Rows.documents` is the name of a row of random tokens."""
    return document.startswith(f"{_NAME}, ")


def _copies(pool: Tensor, length: int, generator: torch.Generator) -> list[int]:
    longest = max(_SHORTEST + 1, length // 2 + 1)
    period = int(torch.randint(_SHORTEST, longest, (1,), generator=generator))
    drawn = pool[torch.randint(len(pool), (period,), generator=generator)]
    repeated: list[int] = drawn.repeat(-(-length // period))[:length].tolist()
    return repeated


def drawable_tokens(tokenizer: Any, config: Any) -> Tensor:
    """Ids of the vocabulary that are no special tokens."""
    size = min(config.get_text_config().vocab_size, len(tokenizer))
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    return torch.tensor([token for token in range(size) if token not in special])


def special_around(tokenizer: Any, config: Any) -> tuple[list[int], list[int]]:
    """Special tokens around a sample: what the tokenizer adds, or else the model's BOS in front."""
    before, after = special_tokens(tokenizer)
    if not before:
        begin = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else config.bos_token_id
        before = [begin] if begin is not None else []
    return before, after
