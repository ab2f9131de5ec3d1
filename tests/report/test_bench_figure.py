"""The picture of a comparison of layouts: the same each time, whatever was left out, and with nothing cut off."""

from __future__ import annotations

from dataclasses import replace

import matplotlib
import pytest

from headwise.bench.layouts import run
from headwise.bench.layouts.memory import Peak
from headwise.bench.layouts.result import LayoutComparison
from headwise.errors import UserError
from headwise.report.bench_figure import compose, draw_layouts
from headwise.report.picture import STYLE
from tests.bench.layouts import ALL, DEVICE, settings
from tests.fixtures import one_thread

__all__ = ["one_thread"]


@pytest.fixture(scope="module")
def result() -> LayoutComparison:
    patch = pytest.MonkeyPatch()
    patch.setattr(run, "measured_device", lambda dtype: DEVICE)
    patch.setattr(
        run, "measure_peak", lambda spec, load, *, repeats, **_: Peak(0, (3 if repeats else 2) << 20, 4 << 20)
    )
    try:
        return run.compare_layouts(settings(ALL, memory=True))
    finally:
        patch.undo()


def bare(result: LayoutComparison) -> LayoutComparison:
    """Without peaks and without a roofline."""
    rows = tuple(
        replace(row, peak=None, prefill=replace(row.prefill, least=None), decode=replace(row.decode, least=None))
        for row in result.rows
    )
    return replace(result, rows=rows, device=None)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("repeats", [True, False])
def test_colours_of_implementations_are_named_whatever_was_measured(result, whole, repeats):
    from matplotlib.colors import to_hex

    shown = result if whole else bare(result)
    if not repeats:
        shown = replace(shown, rows=shown.layouts)
    picture = compose(shown)
    ratios = picture.axes[3]
    drawn = {to_hex(container[0].get_color()) for container in ratios.containers}
    assert len(drawn) == 1 + repeats
    named = {to_hex(patch.get_facecolor()) for legend in picture.legends for patch in legend.get_patches()}
    assert named == (drawn if repeats else set())
    said = [text.get_text() for legend in picture.legends for text in legend.get_texts()]
    assert said == (["headwise", "K and V repeated"] if repeats else [])


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_same_result_gives_the_same_file(result, tmp_path, suffix):
    first, second = (draw_layouts(result, tmp_path / f"{name}{suffix}") for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    assert len(first.read_bytes()) > 5_000


@pytest.mark.parametrize("whole", [True, False])
def test_nothing_is_cut_off_and_every_panel_shows_something(result, whole):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with matplotlib.rc_context(STYLE):
        picture = compose(result if whole else bare(result))
        canvas = FigureCanvasAgg(picture)
        canvas.draw()
        for panel in picture.axes:
            box = panel.get_tightbbox(canvas.get_renderer())
            assert box.x0 >= 0
            assert box.x1 <= picture.bbox.x1
            assert box.y0 >= 0
            for legend in picture.legends:
                around = legend.get_window_extent(canvas.get_renderer())
                assert around.y0 >= box.y1
                assert around.x1 <= picture.bbox.x1
    parameters, cache, peaks, prefill, decode, shares = picture.axes
    names = [row.name for row in result.layouts]
    assert [label.get_text() for label in parameters.get_yticklabels()] == names
    assert [label.get_text() for label in cache.get_yticklabels()] == [""] * len(names)
    assert sum(bar.get_width() for bar in parameters.patches) == sum(
        row.cost.parameters_total for row in result.layouts
    )
    for line, row in enumerate(result.layouts):  # side by side, not over each other
        ends = [bar.get_x() + bar.get_width() for bar in parameters.patches if round(bar.get_y() + 0.25) == line]
        assert max(ends) == row.cost.parameters_total
    assert [bar.get_width() for bar in cache.patches] == [row.allocated for row in result.layouts]
    assert len(prefill.containers) == len(decode.containers) == len(result.rows)
    assert len(peaks.patches) == (len(result.rows) if whole else 0)
    said = [text.get_text() for panel in (peaks, shares) for text in panel.texts]
    assert ("not measured" in said) is not whole
    assert len(shares.lines) == (2 * len(names) + 1 if whole else 0)


def test_the_picture_is_not_blank(result, tmp_path):
    from PIL import Image

    with Image.open(draw_layouts(result, tmp_path / "a.png")) as picture:
        grey = picture.convert("L")
        dark = sum(grey.histogram()[:128])
        assert picture.size[0] > 1000
        assert dark > 0.01 * picture.size[0] * picture.size[1]


def test_a_figure_that_cannot_be_written_is_refused(result, tmp_path):
    with pytest.raises(UserError, match=r"bench: expected a file that ends in \.png, \.svg, \.pdf, got a\.jpg"):
        draw_layouts(result, tmp_path / "a.jpg")
    with pytest.raises(UserError, match=r"bench: can't write .*a\.png \(No such file or directory\); name another"):
        draw_layouts(result, tmp_path / "none" / "a.png")
