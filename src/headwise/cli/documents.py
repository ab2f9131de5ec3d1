"""What commands tell of the documents that they were given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from headwise.models.corpus import Corpus

__all__ = ["read_told", "tell_identical", "tell_left_out"]


def read_told(path: Path | None) -> Corpus:
    """The documents in their two parts, and a line where some were left out.

    Raises:
        UserError: nothing there, nothing readable, or too little to divide.
    """
    from headwise.models.corpus import read_corpus

    corpus = read_corpus(path)
    tell_left_out(corpus, path)
    return corpus


def tell_left_out(corpus: Corpus, path: str | Path | None) -> None:
    """Say on standard error what was left out of documents that were named, see :func:`tell_identical`."""
    tell_identical(corpus.identical_left_out, path)
    if (count := corpus.paragraphs_left_out) and path is not None:
        were = "paragraph was" if count == 1 else "paragraphs were"
        typer.echo(
            f"note: {path}: {count:,} {were} left out of the working documents, since held-out ones have the same",
            err=True,
        )


def tell_identical(count: int, path: str | Path | None) -> None:
    """Say on standard error that documents were left out because others have the same text.

    Args:
        count: how many.
        path: what was named with ``--documents``; None: what comes with Python, which nobody can mend.
    """
    if count and path is not None:
        were = "document was" if count == 1 else "documents were"
        typer.echo(f"note: {path}: {count:,} identical {were} left out, since others have the same text", err=True)
