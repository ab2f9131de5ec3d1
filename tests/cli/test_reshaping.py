"""What the commands that reshape a model tell of before and after."""

from __future__ import annotations

import pytest
from rich.console import Console

from headwise.cli.reshaping import totals_table
from headwise.cli.signs import signed

BEFORE_AND_AFTER = [((200, 150), "−25.0%"), ((200, 200), "0"), ((200, 250), "+25.0%"), ((7, 21), "+200.0%")]


@pytest.mark.parametrize(("pair", "told"), BEFORE_AND_AFTER)
def test_what_went_and_what_came_is_told_with_its_sign(capsys, pair, told):
    """Latent attention has fewer numbers in its cache and more parameters."""
    Console(width=80).print(totals_table([("parameters", pair)], (pair, "bfloat16"), None))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    counts, cache = (row for row in rows if row)
    assert counts == ["parameters", *map(str, pair), told]
    assert (cache[0], cache[-1]) == ("cache per token (bfloat16)", told)


def test_signs_are_true_minuses_and_zero_has_none():
    told = [signed(number, "+.3f") for number in (-0.1234, 0.1234, -0.0001, 0.0)]
    assert told == ["−0.123", "+0.123", "0.000", "0.000"]
    assert [signed(number, ".3g") for number in (-1.5e-05, 1.5e-05, 0.0)] == ["−1.5e-05", "1.5e-05", "0"]
    assert [signed(number, "+.1%") for number in (-0.25, -0.0004)] == ["−25.0%", "0.0%"]


LOSS = {"before": 3.4251, "after": 3.4247, "difference": -0.0004, "low": -0.712, "high": 0.645, "documents": 1}


def test_the_loss_of_a_single_document_has_its_singular_and_its_sign(capsys):
    Console(width=120).print(totals_table([], None, LOSS))
    shown = capsys.readouterr().out
    assert "loss, 1 held-out document (nats)" in shown
    assert "0.000 (−0.712 to +0.645)" in shown


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_splits_no_number(capsys, width):
    rows = [("query heads", (270, 180)), ("parameters", (134_515_008, 128_616_768))]
    Console(width=width).print(totals_table(rows, ((23_040, 15_360), "bfloat16"), LOSS | {"documents": 12}))
    shown = capsys.readouterr().out
    words = shown.replace("│", " ").split()
    numbers = ("134,515,008", "128,616,768", "−4.4%", "22.50", "(−0.712", "+0.645)", "3.425")
    for word in (*numbers, "parameters", "(bfloat16)"):
        assert word in words
    assert "…" not in shown
