"""What the commands that reshape a model tell of before and after."""

from __future__ import annotations

import pytest
from rich.console import Console

from headwise.cli.reshaping import totals_table

BEFORE_AND_AFTER = [((200, 150), "−25.0%"), ((200, 200), "0"), ((200, 250), "+25.0%"), ((7, 21), "+200.0%")]


@pytest.mark.parametrize(("pair", "told"), BEFORE_AND_AFTER)
def test_what_went_and_what_came_is_told_with_its_sign(capsys, pair, told):
    """Latent attention has fewer numbers in its cache and more parameters."""
    Console(width=80).print(totals_table([("parameters", pair)], pair, None))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    counts, cache = (row for row in rows if row)
    assert counts == ["parameters", *map(str, pair), told]
    assert (cache[0], cache[-1]) == ("cache per token", told)
