"""The picture of a verification: the same each time, whatever was left out."""

from __future__ import annotations

import math
from dataclasses import replace

import matplotlib
import numpy as np
import pytest

from headwise.bench import PairedTimes
from headwise.bench.verification.caches import CacheBytes
from headwise.bench.verification.compare import Comparison
from headwise.bench.verification.quality import Quality
from headwise.bench.verification.result import ModelRecord, Verification
from headwise.bench.verification.speed import Timing
from headwise.errors import UserError
from headwise.report.picture import STYLE
from headwise.report.verify_figure import _compose, draw_verification


def quality(name: str, documents: int) -> Quality:
    values = np.random.default_rng(documents).random((7, documents))
    return Quality(name, tuple(map(str, range(documents))), Comparison(*values, largest_change=1.0, positions=9), 0)


def result(*, whole: bool, documents: int = 11) -> Verification:
    model = ModelRecord(r"$\nonsense{ </svg><script>", "x", "llama", "float32", 7, 28, ((6, 2),), ())
    times = PairedTimes({"a": (1.0,) * 5, "b": (0.4, 0.5, 0.6, 0.5, 0.5)})
    return Verification(
        a=model,
        b=model,
        vocabulary=97,
        corpora=(quality("one", documents), quality("a/very/long/path/to/the/documents/that/were/read", documents)),
        copying=quality("repeated random tokens", documents) if whole else None,
        decoding=None,
        cache=(CacheBytes(3, 480, 480, 480, "float32"), CacheBytes(3, 160, 160, 160, "float32")) if whole else None,
        timings=(Timing("decode", 8, 8_192, times),) if whole else (),
        memory=None,
        notes=(),
        settings={},
    )


@pytest.mark.parametrize("whole", [True, False])
def test_the_same_verification_gives_the_same_svg(tmp_path, whole):
    first, second = (
        draw_verification(result(whole=whole), tmp_path / name).read_bytes() for name in ("a.svg", "b.svg")
    )
    assert first == second
    assert b"<script" not in first


def test_a_single_document_is_drawn_without_an_interval(tmp_path):
    assert draw_verification(result(whole=True, documents=1), tmp_path / "a.png").stat().st_size > 10_000


@pytest.mark.parametrize("losses", [(0.1, 4.6), (4.9, 4.7), (9.0, 0.2)])
def test_nothing_is_cut_at_the_edges(losses):
    """Losses of copying at, above and far above what guessing costs, which is 4.6."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    whole = result(whole=True)
    assert whole.copying is not None
    each = replace(whole.copying.each, loss_a=np.full(11, losses[0]), loss_b=np.full(11, losses[1]))
    full = (CacheBytes(30, 480, 480, 0, "float32"), CacheBytes(30, 160, 160, 0, "bfloat16"))
    with matplotlib.rc_context(STYLE):
        picture = _compose(replace(whole, cache=full, copying=replace(whole.copying, each=each)))
        canvas = FigureCanvasAgg(picture)
        canvas.draw()
        for panel in picture.axes:
            box = panel.get_tightbbox(canvas.get_renderer())
            assert box.x0 >= 0
            assert box.x1 <= picture.bbox.x1
    copying, cache = picture.axes[1], picture.axes[2]
    left, right = copying.get_xlim()
    assert left == 0
    assert right * 0.96 > max(*losses, math.log(97))  # a marker is some hundredths of the panel wide
    assert [text.get_text() for text in cache.texts] == ["480 B\nwindow full: + 0", "160 B\nwindow full: + 0"]
    assert cache.get_title(loc="left") == "Cache of 30 tokens in float32 and bfloat16, and each further one"
    assert all(bar.get_width() > 0 for bar in cache.patches)


def test_a_figure_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"--figure: expected a file that ends in \.png, \.svg, \.pdf, got a\.jpg"):
        draw_verification(result(whole=False), tmp_path / "a.jpg")
    with pytest.raises(UserError, match=r"expected an existing folder for a\.png, got .*none; make it first"):
        draw_verification(result(whole=False), tmp_path / "none" / "a.png")
