"""A small real text as numbers of characters: the help topics that come with Python, whole topics held out.

Which topic is held out is decided by its text alone (:mod:`headwise.models.corpus`, which also leaves out long
paragraphs that stand in a held-out topic). Here short ones are left out too, headings among them.
Held-out paragraphs validate or test by a hash of their words.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from headwise.bench.experiments.training import Decoder
from headwise.models.corpus import read_corpus
from headwise.models.documents import Text

__all__ = ["Characters", "draw_stretches", "loss_of", "read_characters"]

_SELDOM = 10  # a character that comes less often in the training text is read as number 0, as an unknown one is


@dataclass(frozen=True)
class Characters:
    """Three texts that share no paragraph.

    Attributes:
        training: numbers of characters, paragraphs one behind the other.
        validation: likewise, of other topics.
        test: likewise, of the same topics as ``validation``.
        count: how many different numbers there are.
        digest: of all three.
    """

    training: Tensor
    validation: Tensor
    test: Tensor
    count: int
    digest: str


@cache
def read_characters() -> Characters:
    """The help topics."""
    corpus = read_corpus(None)
    working, held_out = (_paragraphs(texts) for texts in (corpus.working, corpus.held_out))
    parts = [
        _joined(paragraph for words, paragraph in working.items() if words not in held_out),
        *(_joined(paragraph for words, paragraph in held_out.items() if _side(words) == side) for side in (0, 1)),
    ]
    known = sorted(character for character, count in Counter(parts[0]).items() if count >= _SELDOM)
    numbers = {character: number for number, character in enumerate(known, 1)}
    training, validation, test = (torch.tensor([numbers.get(each, 0) for each in part]) for part in parts)
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return Characters(training, validation, test, 1 + len(known), digest)


def _paragraphs(texts: Sequence[Text]) -> dict[str, str]:
    """Words to paragraph, each once."""
    return {" ".join(paragraph.split()): paragraph for text in texts for paragraph in text.text.split("\n\n")}


def _side(words: str) -> int:
    return hashlib.sha256(words.encode()).digest()[0] % 2


def _joined(paragraphs: Iterable[str]) -> str:
    return "\n\n".join(paragraphs)


def draw_stretches(text: Tensor, count: int, length: int, generator: torch.Generator) -> Tensor:
    """``[count, length + 1]`` from anywhere in a text: what is read, and one character more that is asked for."""
    starts = torch.randint(len(text) - length, (count, 1), generator=generator)
    return text[starts + torch.arange(length + 1)]


def loss_of(model: Decoder, stretches: Tensor) -> Tensor:
    """The mean loss of the next character, in nats."""
    return functional.cross_entropy(model(stretches[:, :-1]).flatten(0, 1), stretches[:, 1:].flatten())
