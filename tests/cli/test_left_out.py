"""The line that says that paragraphs were left out of the documents that work, since those that judge have them too."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwise.cli.documents import tell_left_out
from headwise.models.corpus import Corpus
from headwise.models.documents import Text


def told(capsys, count: int, path: Path | None) -> str:
    tell_left_out(Corpus((Text("a", "one"),), (Text("b", "two"),), paragraphs_left_out=count), path)
    captured = capsys.readouterr()
    assert captured.out == "", "standard output is for results"
    return captured.err


@pytest.mark.parametrize(("count", "were"), [(1, "1 paragraph was"), (1_201, "1,201 paragraphs were")])
def test_paragraphs_of_named_documents_are_told(capsys, count, were):
    line = f"note: texts: {were} left out of the working documents, since held-out ones have the same\n"
    assert told(capsys, count, Path("texts")) == line


@pytest.mark.parametrize(("count", "path"), [(0, Path("texts")), (88, None)])
def test_nothing_is_said_where_there_is_none_or_nobody_can_mend_it(capsys, count, path):
    assert told(capsys, count, path) == ""
