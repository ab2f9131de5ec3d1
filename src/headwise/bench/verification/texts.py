"""The texts that two models are compared on: held-out documents of several corpora.

Two corpora come with every Python: its help topics, and what the docstrings of its standard library say, one document a
module. Both are English about Python, so other texts say more about other uses.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from headwise.bench.verification.settings import Settings
from headwise.errors import UserError
from headwise.models import Checkpoint
from headwise.models.corpus import Corpus, Rows, cut_rows, fingerprint, read_corpus, split_documents
from headwise.models.documents import Text
from headwise.models.history import documents_of

__all__ = ["NamedCorpus", "docstrings", "held_out_rows", "read_corpora"]

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class NamedCorpus:
    """A corpus and what to call it."""

    name: str
    corpus: Corpus


def read_corpora(paths: Sequence[str | Path] = ()) -> list[NamedCorpus]:
    """One corpus for each path; without any, the two that come with Python.

    Raises:
        UserError: a path is named twice, can't be read, or holds too little.
    """
    if paths:
        places = [Path(path).resolve() for path in paths]
        if twice := [path for number, path in enumerate(paths) if places[number] in places[:number]]:
            raise UserError(f"--documents: expected each corpus once, got {twice[0]} twice; leave one of them out")
        return [NamedCorpus(str(path), read_corpus(path)) for path in paths]
    return [
        NamedCorpus("python help", read_corpus(None)),
        NamedCorpus("python docstrings", split_documents(docstrings())),
    ]


def docstrings() -> list[Text]:
    """The docstrings of each module of the standard library that is a file of its own; one document a module.

    Raises:
        UserError: the standard library lies here without its source.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    files = [file for file in sorted(folder.glob("*.py")) if file.stem in sys.stdlib_module_names]
    texts = [Text(file.stem, _docstrings_of(file)) for file in files]
    texts = [text for text in texts if text.text]
    if not texts:
        raise UserError(
            f"verify: expected the source of Python's standard library in {folder}, got no documented module; name "
            "texts with --documents"
        )
    return texts


def _docstrings_of(file: Path) -> str:
    nodes = ast.walk(ast.parse(file.read_bytes()))
    found = [ast.get_docstring(node) for node in nodes if isinstance(node, _DOCUMENTED)]
    return "\n\n".join(text for text in found if text)


def held_out_rows(
    named: NamedCorpus, first: Checkpoint, second: Checkpoint, settings: Settings
) -> tuple[Rows, tuple[str, ...]]:
    """Rows of held-out documents that neither model has been calibrated or trained on, and notes for the reader.

    Raises:
        UserError: too little text is left, or the tokenizers cut it into other tokens.
    """
    used = set().union(*(documents_of(step) for each in (first, second) for step in each.history))
    kept = [text for text in named.corpus.held_out if fingerprint(text) not in used]
    notes = tuple(f"{named.name}: {note}" for note in named.corpus.notes)
    if left_out := len(named.corpus.held_out) - len(kept):
        notes += (
            f"{named.name}: {left_out} of {len(named.corpus.held_out)} held-out documents were calibrated or trained "
            "on and are left out",
        )
    if not kept:
        raise UserError(
            f"verify: {named.name}: expected documents that neither model was calibrated or trained on, got none; "
            "name other texts with --documents"
        )
    rows, other = (
        cut_rows(
            kept, each.tokenizer, tokens=settings.tokens, length=settings.length, seed=settings.seed, what=named.name
        )
        for each in (first, second)
    )
    if not torch.equal(rows.tokens, other.tokens):
        raise UserError(
            f"verify: {second.name}: expected the tokenizer of {first.name}, got one that cuts {named.name} into other "
            "tokens of the same vocabulary; give two models with one tokenizer"
        )
    return rows, notes
