"""What a manifest tells of documents, whoever wrote it."""

from __future__ import annotations

import pytest

from headwise.models.history import documents_of


@pytest.mark.parametrize(
    ("step", "named"),
    [
        ({"documents": ["a1", "b2", "a1"]}, {"a1", "b2"}),
        ({"documents": ("a1",)}, {"a1"}),
        ({"documents": []}, set()),
        ({}, set()),
        # Of other tools, or of hands.
        ({"documents": None}, set()),
        ({"documents": 7}, set()),
        ({"documents": "a1"}, set()),
        ({"documents": ["a1", 7, None, ["b2"]]}, {"a1"}),
    ],
)
def test_documents_are_those_that_a_step_names(step, named):
    assert documents_of(step) == named
