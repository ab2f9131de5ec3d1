"""Texts that models are run on: where they come from and how they become rows of tokens.

A document is the unit over which intervals are taken, since the positions inside one are far from independent.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.errors import UserError

MIN_TOKENS = 16
_ENOUGH_DOCUMENTS = 8


@dataclass(frozen=True)
class Text:
    """One document: where it stands and what it says.

    Attributes:
        name: where it stands.
        text: what it says.
        whole: what it says in full, where ``text`` is only a part that was kept of it.
    """

    name: str
    text: str
    whole: str | None = None


@dataclass(frozen=True)
class Piece:
    """A stretch of one document as token ids."""

    document: str
    tokens: tuple[int, ...]


def read_documents(path: str | Path | None) -> list[Text]:
    """Read documents from a text file, a folder of text files, or a JSONL file with ``text`` fields.

    Args:
        path: None for the help topics that come with Python (``pydoc_data.topics``), the same on every machine
            with the same Python.

    Raises:
        UserError: nothing there, nothing readable, or something that is not text.
    """
    if path is None:
        return _help_topics()
    path = Path(path).expanduser()
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in (".txt", ".md", ".rst") and file.is_file())
        if not files:
            raise UserError(f"{path}: no .txt, .md or .rst file in this folder")
        texts = [Text(str(file.relative_to(path)), _read_text(file)) for file in files]
    elif path.suffix in (".jsonl", ".ndjson"):
        texts = list(_read_jsonl(path))
    else:
        texts = [Text(path.name, _read_text(path))]
    texts = [text for text in texts if text.text.strip()]
    if not texts:
        raise UserError(f"{path}: empty; expected text of at least {MIN_TOKENS} tokens")
    return texts


def _help_topics() -> list[Text]:
    from pydoc_data.topics import topics

    return [Text(name, text) for name, text in sorted(topics.items())]


def _read_text(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{file}: no such file or folder; --documents takes a text file, a folder or JSONL") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 text (byte {error.start}); --documents takes text files") from None
    if "\0" in text:
        raise UserError(f"{file}: a binary file (it holds a zero byte); --documents takes text files")
    return text


def _read_jsonl(file: Path) -> Iterator[Text]:
    for number, line in enumerate(_read_text(file).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{file}, line {number}: not JSON ({error.msg}); expected one object per line") from None
        text = record.get("text") if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise UserError(f'{file}, line {number}: expected an object with a string under "text"')
        yield Text(f"line {number}", text)


def without_identical(texts: Sequence[Text]) -> tuple[list[Text], int]:
    """Every text once, as it came first, and how many were left out because an earlier one says the same."""
    first: dict[str, Text] = {}
    for text in texts:
        first.setdefault(text.text, text)
    return list(first.values()), len(texts) - len(first)


def cut_pieces(texts: list[Text], tokenizer: Any, count: int, length: int, seed: int) -> tuple[list[Piece], list[str]]:
    """Choose up to ``count`` pieces of at most ``length`` tokens, one per document where there are enough documents.

    Args:
        texts: the documents.
        tokenizer: a transformers tokenizer; its own special tokens are added at the start of every piece (and at the
            end, for encoders).
        count: how many pieces to choose.
        length: tokens per piece.
        seed: which documents are chosen.

    Returns:
        The pieces, and notes for the reader of the results (for instance that all pieces come from one document).

    Raises:
        UserError: no document has enough tokens.
    """
    shuffled = random.Random(seed).sample(texts, len(texts))
    per_document = 1 if len(texts) >= min(count, _ENOUGH_DOCUMENTS) else -(-count // len(texts))
    pieces: list[Piece] = []
    for text in shuffled:
        pieces.extend(_pieces_of(text, tokenizer, length, per_document))
        if len(pieces) >= count:
            break
    if not pieces:
        raise UserError(f"documents: every one has fewer than {MIN_TOKENS} tokens; give longer ones")
    notes = []
    if per_document > 1:
        notes.append(
            f"only {len(texts)} document(s): pieces of one document count as separate units, "
            "so the intervals tell nothing about other documents"
        )
    return pieces[:count], notes


def special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The ids that the tokenizer puts before and after a text: none, ``[BOS]``, or ``[CLS]`` and ``[SEP]``."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    wrapped = tokenizer("a")["input_ids"]
    for start in range(len(wrapped) - len(plain) + 1):
        if wrapped[start : start + len(plain)] == plain:
            return wrapped[:start], wrapped[start + len(plain) :]
    raise UserError(f"{type(tokenizer).__name__}: cannot tell which special tokens it puts around a text")


def _pieces_of(text: Text, tokenizer: Any, length: int, most: int) -> list[Piece]:
    before, after = special_tokens(tokenizer)
    room = length - len(before) - len(after)
    # A token has seldom more than a dozen characters: no need to tokenise a whole book for its first page.
    ids = tokenizer(text.text[: 12 * length * most], add_special_tokens=False, verbose=False)["input_ids"]
    pieces: list[Piece] = []
    for start in range(0, len(ids), room):
        tokens = (*before, *ids[start : start + room], *after)
        if len(pieces) == most:
            break
        if len(tokens) >= MIN_TOKENS:
            pieces.append(Piece(text.name, tokens))
    return pieces
