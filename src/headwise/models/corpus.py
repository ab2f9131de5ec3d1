"""Documents for work on a model and documents to judge it by, never the same ones.

A document belongs to one side by its text alone, so that commands run one after the other (convert, re-train, verify)
agree about what was held out without telling each other.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.errors import UserError
from headwise.models.documents import Text, read_documents, special_tokens, without_identical

__all__ = ["Corpus", "Rows", "cut_rows", "fingerprint", "read_corpus", "split_documents"]

_HELD_OUT = 4  # one document in so many is held out
_FEW = 12  # with fewer documents their parts are divided instead
_PART = 12_000  # characters of such a part
_QUOTE = 80  # characters from which a paragraph that two documents share is a quotation, and no heading or formula


@dataclass(frozen=True)
class Corpus:
    """Documents in two parts that share none, and no paragraph.

    Attributes:
        working: to calibrate and to train on, without the paragraphs that stand in ``held_out`` as well.
        held_out: to measure on.
        notes: what a reader of the results must know of the division.
        identical_left_out: how many documents (or parts, where parts count as documents) are on neither side, since
            another one has the same text.
        paragraphs_left_out: how many paragraphs of ``working`` were.
    """

    working: tuple[Text, ...]
    held_out: tuple[Text, ...]
    notes: tuple[str, ...] = ()
    identical_left_out: int = 0
    paragraphs_left_out: int = 0


@dataclass(frozen=True)
class Rows:
    """Stretches of documents, all of one length.

    Attributes:
        tokens: int64 ``[N, L]``.
        units: which document each row is from, counted from 0: the unit over which intervals are taken.
        documents: fingerprints of the documents, by unit.
    """

    tokens: Tensor
    units: tuple[int, ...]
    documents: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.tokens)


def fingerprint(text: Text) -> str:
    """16 hexadecimal digits of the SHA-256 of a document's text, the whole of it."""
    whole = text.text if text.whole is None else text.whole
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def read_corpus(path: str | Path | None) -> Corpus:
    """Read documents (see :func:`headwise.models.documents.read_documents`) and divide them.

    Raises:
        UserError: nothing there, nothing readable, or too little to divide.
    """
    return split_documents(read_documents(path))


def split_documents(texts: Sequence[Text]) -> Corpus:
    """Hold out a quarter of the documents, chosen by their text alone.

    Of documents with the same text one is kept, which must not stand on both sides. Nor must a paragraph: documents
    quote each other, and what was worked on would be judged again, so paragraphs of 80 characters or more that a
    held-out document has too, wherever its lines break, are left out of the working ones. Fewer than a dozen documents
    are cut into parts of 12,000 characters, which are divided like documents.

    Raises:
        UserError: too little text for two parts, or the working part has no paragraph of its own.
    """
    notes: tuple[str, ...] = ()
    texts, left_out = without_identical(texts)
    if len(texts) < _FEW:
        notes = (
            f"only {len(texts)} document(s): parts of 12,000 characters count as documents, some of them held "
            "out, so the intervals tell nothing about other documents",
        )
        texts, identical_parts = without_identical([part for text in texts for part in _parts(text)])
        left_out += identical_parts
    unlike = {fingerprint(text): text for text in texts}
    ordered = sorted(unlike)
    if len(ordered) < 2:
        raise UserError(
            f"documents: expected enough text to hold a part of it out ({2 * _PART:,} characters), got "
            f"{sum(len(text.text) for text in texts):,}{f' ({left_out:,} identical left out)' if left_out else ''}"
        )
    held_out = {name for name in ordered if int(name, 16) % _HELD_OUT == 0} or {ordered[0]}
    if len(held_out) == len(ordered):
        held_out.discard(ordered[-1])
    judging = tuple(unlike[name] for name in ordered if name in held_out)
    working, quoted = _without_quotations([unlike[name] for name in ordered if name not in held_out], judging)
    if not working:
        raise UserError(
            f"documents: expected text that is not held out as well, got {len(ordered)} documents whose paragraphs are "
            "all the same; give documents that differ"
        )
    return Corpus(working, judging, notes, left_out, quoted)


def _without_quotations(texts: Sequence[Text], others: Sequence[Text]) -> tuple[tuple[Text, ...], int]:
    """The texts without the paragraphs that others have too, and how many those were; one with no other is dropped."""
    known = {words for text in others for words in map(_words, text.text.split("\n\n")) if len(words) >= _QUOTE}
    kept, count = [], 0
    for text in texts:
        paragraphs = text.text.split("\n\n")
        own = [paragraph for paragraph in paragraphs if _words(paragraph) not in known]
        count += len(paragraphs) - len(own)
        if len(own) < len(paragraphs):
            text = Text(text.name, "\n\n".join(own), whole=text.text)
        if text.text.strip():
            kept.append(text)
    return tuple(kept), count


def _words(paragraph: str) -> str:
    return " ".join(paragraph.split())


def _parts(text: Text) -> list[Text]:
    starts = range(0, len(text.text), _PART)
    parts = [Text(f"{text.name}, from character {start}", text.text[start : start + _PART]) for start in starts]
    return [part for part in parts if part.text.strip()]


def cut_rows(texts: Sequence[Text], tokenizer: Any, *, tokens: int, length: int, seed: int, what: str) -> Rows:
    """Rows of ``length`` tokens until there are ``tokens`` of them, documents in an order drawn by ``seed``.

    Rows are spread over documents: each gives its first row before any gives its second. What remains of a document
    after its last whole row is left out.

    Args:
        texts: the documents.
        tokenizer: a transformers tokenizer; the special tokens that it puts around a text stand around every row.
        tokens: how many are wanted; rounded up to whole rows.
        length: tokens per row.
        seed: of the order.
        what: for the message, what the rows are for, for instance ``calibration``.

    Raises:
        UserError: the documents have fewer tokens in whole rows, the text says how many there are; or a row has no room
            for any beside the special ones.
    """
    before, after = special_tokens(tokenizer)
    room, wanted = length - len(before) - len(after), -(-tokens // length)
    if room < 1:
        raise UserError(
            f"documents: expected rows of more than the {len(before) + len(after)} special tokens around each for "
            f"{what}, got {length}; ask for longer rows"
        )
    drawn = random.Random(seed).sample(list(texts), len(texts))
    cut: list[list[list[int]]] = []
    for text in drawn:
        ids = tokenizer(text.text, add_special_tokens=False, verbose=False)["input_ids"]
        whole = [[*before, *ids[at : at + room], *after] for at in range(0, len(ids) - room + 1, room)]
        cut.append(whole)
        if sum(bool(rows) for rows in cut) >= wanted:  # the first row of each is enough
            break
    order = sorted((place, unit) for unit, rows in enumerate(cut) for place in range(len(rows)))[:wanted]
    if len(order) < wanted:
        raise UserError(
            f"documents: expected {wanted * length:,} tokens in rows of {length} for {what}, got "
            f"{len(order) * length:,} in {len(texts)} document(s); give more text, or ask for fewer tokens or shorter "
            "rows"
        )
    used = sorted({unit for _, unit in order})
    return Rows(
        torch.tensor([cut[unit][place] for place, unit in order]),
        tuple(used.index(unit) for _, unit in order),
        tuple(fingerprint(drawn[unit]) for unit in used),
    )
