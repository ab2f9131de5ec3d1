"""The picture of a verification: the same each time, whatever was left out."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.bench import PairedTimes
from headwise.bench.verification.caches import CacheBytes
from headwise.bench.verification.compare import Comparison
from headwise.bench.verification.quality import Quality
from headwise.bench.verification.result import ModelRecord, Verification
from headwise.bench.verification.speed import Timing
from headwise.errors import UserError
from headwise.report.verify_figure import draw_verification


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
        cache=(CacheBytes(3, 480, 480, 480), CacheBytes(3, 160, 160, 160)) if whole else None,
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


def test_a_figure_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"--figure: expected a file that ends in \.png, \.svg, \.pdf, got a\.jpg"):
        draw_verification(result(whole=False), tmp_path / "a.jpg")
    with pytest.raises(UserError, match=r"expected an existing folder for a\.png, got .*none; make it first"):
        draw_verification(result(whole=False), tmp_path / "none" / "a.png")
