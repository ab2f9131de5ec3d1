"""What tests of refused checkpoints share."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwise.errors import UserError
from headwise.models import load


def refusal(source: str | Path) -> str:
    """The one line with which ``source`` is refused."""
    with pytest.raises(UserError) as raised:
        load(source)
    text = str(raised.value)
    assert "\n" not in text
    return text
