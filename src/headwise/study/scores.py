"""Scores of heads: which relations are measured on which samples.

Symbols: B batch, L length, H query heads, N scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.attention import HeadStatistics
from headwise.attention.statistics import Relation
from headwise.models import Checkpoint, HeadCall
from headwise.study.relations import Keys, Match, Offset, Target
from headwise.study.samples import Sample


@dataclass(frozen=True)
class Score:
    """One way to read a head.

    Attributes:
        name: how tables call it.
        title: how people call it.
        definition: one sentence.
        primary: the kind of sample on which it decides a finding.
        content: True if it depends on which tokens stand where, so that shuffled tokens are a null for it.
    """

    name: str
    title: str
    definition: str
    primary: str
    content: bool


SCORES = (
    Score("previous", "previous token", "mass on the token just before", "repeated", False),
    Score("duplicate", "duplicate token", "mass on other copies of the query's own token", "repeated", True),
    Score("induction", "induction", "mass on what followed earlier copies of the query's token", "repeated", True),
    Score("first", "first token", "mass on the first token of the sequence", "text", False),
    Score("delimiter", "delimiter", "mass on punctuation, line ends and separators", "text", True),
)  # fmt: skip
SCORE_NAMES = tuple(score.name for score in SCORES)
# Described for every head, without a null: no finding is made of them.
DESCRIPTIVE = ("entropy", "distance", "largest")
_SHUFFLED = " (shuffled)"


def delimiter_ids(tokenizer: Any) -> frozenset[int]:
    """Ids of tokens made of punctuation or line ends alone, and of the separators around a text (not the first)."""
    size = len(tokenizer)
    texts = tokenizer.batch_decode([[token] for token in range(size)], clean_up_tokenization_spaces=False)
    ids = {token for token, text in enumerate(texts) if _is_delimiter(text.removeprefix("##"))}
    separator = tokenizer.sep_token_id
    return frozenset(ids | ({separator} if separator is not None else set()))


def _is_delimiter(text: str) -> bool:
    body = text.strip(" ")
    return bool(body) and all(character in "\r\n.,;:!?()[]{}\"'`-–—…/|" for character in body)


def text_relations(tokens: Tensor, delimiters: frozenset[int], seed: int) -> list[Relation]:
    """The relations of a text sample ``[B, L]``; content relations a second time on shuffled tokens.

    Shuffling which token is said to stand where, while attention stays that of the real text, keeps every head's habit
    of place and breaks its tie to content. The first position is never a delimiter nor shuffled: it is the sink.
    """
    is_delimiter = torch.isin(tokens, torch.tensor(sorted(delimiters), dtype=tokens.dtype, device=tokens.device))
    is_delimiter[:, 0] = False
    order = _shuffled_order(tokens, seed)
    shuffled = tokens.gather(1, order)
    first = torch.zeros(tokens.shape[1], dtype=torch.bool, device=tokens.device)
    first[0] = True
    return [
        Offset(1, "previous"),
        Match(0, tokens, "duplicate"),
        Match(1, tokens, "induction"),
        Keys(first, "first"),
        Keys(is_delimiter, "delimiter"),
        Match(0, shuffled, "duplicate" + _SHUFFLED),
        Match(1, shuffled, "induction" + _SHUFFLED),
        Keys(is_delimiter.gather(1, order), "delimiter" + _SHUFFLED),
    ]


def plain(relations: Sequence[Relation]) -> list[Relation]:
    """The relations without their shuffled twins."""
    return [relation for relation in relations if not relation.name.endswith(_SHUFFLED)]


def _shuffled_order(tokens: Tensor, seed: int) -> Tensor:
    """A random order of the positions of each row, the first one kept in its place."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.rand(tokens.shape, generator=generator).to(tokens.device)
    keys[:, 0] = -1
    return keys.argsort(dim=1)


def repeated_relations(sample: Sample) -> list[Relation]:
    """The relations of a repeated sample: exact targets, so that no accidental repeat blurs them."""
    tokens = sample.tokens
    first = torch.zeros(tokens.shape[1], dtype=torch.bool)
    first[0] = True
    copies = sample.copy_index
    assert copies is not None
    following = torch.where(copies >= 0, copies + 1, -1)
    return [
        Offset(1, "previous"),
        Target(copies, "duplicate"),
        Target(following, "induction"),
        Keys(first, "first"),
    ]


def score_sample(
    checkpoint: Checkpoint,
    sample: Sample,
    relations: Sequence[Relation],
    also: Callable[[HeadCall], None] | None = None,
) -> dict[str, np.ndarray]:
    """Run one sample and read every head.

    Args:
        checkpoint: the model.
        sample: what it runs on.
        relations: what its heads are read by.
        also: called for every layer after its heads were read: their outputs are there by then.

    Returns:
        For every relation its name ``[B, layers, H]`` and its value under uniform attention as ``"<name> (uniform)"``;
        also ``entropy`` (nats), ``distance`` (tokens) and ``largest``. NaN where a layer has fewer heads or no query
        says anything.
    """
    shape = (sample.tokens.shape[0], checkpoint.num_layers, checkpoint.max_heads)
    tables: dict[str, np.ndarray] = {}

    def table(name: str) -> np.ndarray:
        return tables.setdefault(name, np.full(shape, np.nan, dtype=np.float32))

    def read(call: HeadCall) -> None:
        statistics = call.read(relations)
        heads = call.query.shape[1]
        for name, values in _reduced(statistics).items():
            table(name)[:, call.layer, :heads] = values.cpu().numpy()
        if also is not None:
            also(call)

    with torch.inference_mode(), checkpoint.observe(read):
        checkpoint.body(sample.tokens)
    return tables


def _reduced(statistics: HeadStatistics) -> dict[str, Tensor]:
    values = {name: statistics.score(name) for name in statistics.names}
    values |= {f"{name} (uniform)": statistics.chance(name) for name in statistics.names}
    return values | {name: statistics.mean(name) for name in DESCRIPTIVE}
