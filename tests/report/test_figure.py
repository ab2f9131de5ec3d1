"""The static picture: drawn for every kind of study, the same each time, refused in one line."""

from __future__ import annotations

import pytest
from PIL import Image

from headwise.errors import UserError
from headwise.report import figure
from tests.report.made_study import Made

ODD = [{"num_heads": h, "num_kv_heads": g, "head_dim": 11, "window": None} for h, g in ((5, 5), (7, 1), (4, 2))]
SMALL = Made(layers=ODD, set_sizes=(1,))
KINDS = {
    "usual": None,
    "none": Made(layers=ODD[:2], findings=False),
    "encoder": Made(layers=ODD, causal=False),
    "hostile": Made(layers=ODD, name=r"$\nonsense{$ </svg><script>alert(1)</script>", set_sizes=(1,)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_of_every_kind_of_study(kind, made, tmp_path):
    path = figure(made(kind, KINDS[kind]), tmp_path / "heads.png")
    with Image.open(path) as image:
        width, height = image.size
        assert width > 600
        assert height > 400
        grid = image.convert("RGB").crop((0, 0, min(width, 620), height - 60))  # neither effects nor legend
    orange = [count for count, colour in grid.getcolors(1 << 24) if colour == (194, 80, 10)]
    assert bool(orange) == (kind != "none")  # the outlines of findings


def test_the_name_stays_a_function_after_it_was_used(made, tmp_path):
    """A module of that name would take its place as soon as it is imported."""
    import headwise.report

    for _ in range(2):
        headwise.report.figure(made("small", SMALL), tmp_path / "heads.png")


def test_the_same_study_gives_the_same_svg(made, tmp_path):
    first, second = (figure(made("small", SMALL), tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second
    assert b"<script" not in first


def test_text_in_an_svg_is_no_markup(made, tmp_path):
    assert b"<script" not in figure(made("hostile", KINDS["hostile"]), tmp_path / "heads.svg").read_bytes()


def test_another_suffix_is_refused(made, tmp_path):
    with pytest.raises(UserError, match=r"report: expected a file that ends in \.png, \.svg, \.pdf, got heads\.jpg"):
        figure(made(), tmp_path / "heads.jpg")


def test_a_place_that_cannot_be_written(made, tmp_path):
    with pytest.raises(UserError, match="can't write"):
        figure(made(), tmp_path / "none" / "heads.png")
