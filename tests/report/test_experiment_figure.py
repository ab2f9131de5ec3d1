"""The picture of an experiment: every kind of panel, the same file each time, and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headwise.bench.experiments.experiment import Dots, Lines, Plane
from headwise.bench.experiments.run import run_experiment
from headwise.errors import UserError
from headwise.report.experiment_figure import _compose, draw_experiment
from tests.bench.experiments.toy import TOY


@pytest.fixture(scope="module")
def result():
    return run_experiment(TOY, seeds=range(3))


def test_the_same_result_gives_the_same_file(result, tmp_path):
    for suffix in (".png", ".svg", ".pdf"):
        first, second = (draw_experiment(result, tmp_path / f"{name}{suffix}") for name in "ab")
        assert first.read_bytes() == second.read_bytes()
        assert first.stat().st_size > 5_000


def test_every_panel_shows_what_was_measured(result):
    dots, lines, plane = _compose(result).axes
    assert [label.get_text() for label in dots.get_yticklabels()] == ["a", "b"]
    assert dots.get_xlabel() == "loss (nats)"
    seeds = [line for line in dots.lines if len(line.get_xdata()) == 3]
    assert [tuple(line.get_xdata()) for line in seeds] == [
        result.summary.row(condition, "loss").values for condition in "ab"
    ]
    assert [text.get_text() for text in lines.get_legend().get_texts()] == ["a", "b"]
    curve = result.summary.curves[1]
    assert tuple(lines.lines[1].get_xdata()) == curve.x
    assert tuple(lines.lines[1].get_ydata()) == curve.mean
    assert [text.get_text() for text in plane.get_legend().get_texts()] == ["b"], "a has no bytes"
    assert [label.get_text() for label in plane.get_xticklabels()] == ["64"]


def test_panels_of_several_measures_say_which(result):
    experiment = replace(
        TOY,
        panels=(
            Dots("Both", ("loss", "bytes")),
            Dots("One", ("loss", "bytes"), ("b",)),
            Lines("One", ("curve",), ("b",)),
        ),
    )
    both, one, line = _compose(replace(result, experiment=experiment)).axes
    names = [label.get_text() for label in both.get_yticklabels()]
    assert names == ["a, loss (nats)", "b, loss (nats)", "b, cache [bytes]"]
    assert [label.get_text() for label in one.get_yticklabels()] == ["loss (nats)", "cache [bytes]"]
    assert line.get_legend() is None


def test_a_plane_without_points_is_drawn_empty(result):
    experiment = replace(TOY, panels=(Plane("None", "bytes", "loss", ("a",), log_x=True),))
    (plane,) = _compose(replace(result, experiment=experiment)).axes
    assert plane.get_title(loc="left") == "None"


def test_another_kind_of_file_is_refused(result, tmp_path):
    with pytest.raises(UserError, match=r"experiment: expected a file that ends in \.png, \.svg, \.pdf, got a\.gif"):
        draw_experiment(result, tmp_path / "a.gif")
