"""A verification as one static picture: what B lost on text and of copying, what its cache takes, and how fast it is.

The same verification always gives the same file.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headwise.bench.verification.quality import Quality
from headwise.bench.verification.result import Verification
from headwise.errors import UserError
from headwise.plan.units import bytes_text
from headwise.report.picture import CHANCE, FINDING, MUTED, ORIGINAL, TEXT, check_picture, make_quiet, write_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["check_figure", "draw_verification"]

_COLOURS = {"A": ORIGINAL, "B": FINDING}


def check_figure(path: Path) -> None:
    """Refuse before any work a picture that could not be written after it.

    Raises:
        UserError: ``path`` doesn't end in .png, .svg or .pdf, or lies in a folder that isn't there.
    """
    check_picture(path, "--figure")
    if not path.absolute().parent.is_dir():
        raise UserError(f"--figure: expected an existing folder for {path.name}, got {path.parent}; make it first")


def draw_verification(result: Verification, path: Path) -> Path:
    """Draw four panels into ``path`` and return it.

    Raises:
        UserError: ``path`` doesn't end in .png, .svg or .pdf, or can't be written.
    """
    check_figure(path)
    return write_picture(lambda: _compose(result), path, "--figure")


def _compose(result: Verification) -> Figure:
    """A figure of its own, not pyplot's: no window, no state shared with the caller's figures."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    rows = max(len(result.timings), 3)
    picture = Figure(figsize=(9.2, 3.4 + 0.26 * rows), layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.08))
    grid = picture.add_gridspec(2, 2, height_ratios=[2.4, 1.0 + 0.26 * rows])
    panels = [picture.add_subplot(grid[row, column]) for row in range(2) for column in range(2)]
    _draw_losses(panels[0], result.corpora)
    _draw_copying(panels[1], result)
    _draw_cache(panels[2], result)
    _draw_speed(panels[3], result)
    for panel in panels:
        make_quiet(panel, "x")
    names = "    ".join(f"{label}  {_short(each.name)}" for label, each in (("A", result.a), ("B", result.b)))
    picture.suptitle(names, x=0.01, ha="left", fontsize=10, fontweight="bold", color=TEXT)
    return picture


def _draw_losses(panel: Axes, corpora: tuple[Quality, ...]) -> None:
    """One point a document, its place across the line drawn by its number; the mean and its interval below."""
    for line, corpus in enumerate(corpora):
        values = corpus.each.loss_b - corpus.each.loss_a
        spread = np.random.default_rng(0).uniform(-0.26, 0.02, len(values))
        panel.plot(values, line + spread, "o", color=CHANCE, alpha=0.5, markersize=3, markeredgewidth=0)
        mean = corpus.loss_difference
        _error_bar(panel, mean.value, line + 0.22, mean.low, mean.high, FINDING)
    counts = [len(corpus.each.kl) for corpus in corpora]
    labels = [
        f"{_short(corpus.name)}\n{count} document{'s' * (count != 1)}"
        for corpus, count in zip(corpora, counts, strict=True)
    ]
    panel.set_yticks(range(len(corpora)), labels)
    panel.set_ylim(len(corpora) - 0.5, -0.5)
    panel.axvline(0, color=TEXT, linewidth=0.8, zorder=1)
    panel.set_xlabel("loss of B − loss of A (nats); mean and 95 %")
    _title(panel, "Loss by document")


def _draw_copying(panel: Axes, result: Verification) -> None:
    _title(panel, "Copying random tokens")
    if result.copying is None:
        return _say(panel, "not measured")
    chance = math.log(result.vocabulary)
    for line, (label, kind) in enumerate((("A", "a"), ("B", "b"))):
        loss, right = result.copying.of(f"loss_{kind}"), result.copying.of(f"correct_{kind}")
        _error_bar(panel, loss.value, line, loss.low, loss.high, _COLOURS[label])
        # Beyond the line of guessing there is no room for words.
        place, shift, side = (
            (loss.value, 0, "left") if loss.value < chance / 2 else (min(loss.value, chance), -4, "right")
        )
        panel.annotate(
            f"{right.value:.0%} right", (place, line), (shift, 8), textcoords="offset points", ha=side, color=MUTED,
            fontsize=8,
        )  # fmt: skip
    losses = [result.copying.of(kind) for kind in ("loss_a", "loss_b")]
    most = max(chance, *(number for loss in losses for number in (loss.value, loss.high) if not math.isnan(number)))
    panel.axvline(chance, color=CHANCE, linewidth=1, linestyle=(0, (4, 3)))
    panel.annotate("guessing", (chance, 1.55), (-4, 0), textcoords="offset points", ha="right", color=MUTED, fontsize=8)
    panel.set_yticks([0, 1], ["A", "B"])
    panel.set_ylim(1.7, -0.7)
    panel.set_xlim(0, 1.05 * most)  # markers at the edge are drawn whole
    panel.set_xlabel("loss on the second copy (nats); mean and 95 %")


def _draw_cache(panel: Axes, result: Verification) -> None:
    if result.cache is None:
        _title(panel, "Cache")
        return _say(panel, "not measured: no cache")
    dtypes = " and ".join(dict.fromkeys(each.dtype for each in result.cache))
    _title(panel, f"Cache of {result.cache[0].tokens:,} tokens in {dtypes}, and each further one")
    sizes = [each.allocated for each in result.cache]
    panel.barh([0, 1], sizes, height=0.4, color=list(_COLOURS.values()))
    for line, each in enumerate(result.cache):
        growth = f"+ {bytes_text(each.each_further_token)}" if each.each_further_token else "window full: + 0"
        panel.annotate(
            f"{bytes_text(each.allocated)}\n{growth}", (each.allocated, line), (4, 0), textcoords="offset points",
            va="center", color=MUTED, fontsize=8,
        )  # fmt: skip
    panel.set_yticks([0, 1], ["A", "B"])
    panel.set_ylim(1.7, -0.7)
    panel.set_xlim(0, 1.5 * max(*sizes, 1))
    panel.set_xticks([])


def _draw_speed(panel: Axes, result: Verification) -> None:
    _title(panel, "Time of B over time of A")
    if not result.timings:
        return _say(panel, "not measured")
    for line, timing in enumerate(result.timings):
        low, high = timing.quartiles
        colour = _COLOURS["B"] if timing.faster else CHANCE
        _error_bar(panel, timing.ratio, line, low, high, colour)
    labels = [f"{each.phase}, {each.batch} × {each.context:,}" for each in result.timings]
    panel.set_yticks(range(len(labels)), labels)
    panel.set_ylim(len(labels) - 0.4, -0.6)
    panel.axvline(1, color=TEXT, linewidth=0.8, zorder=1)
    panel.set_xlim(left=0)
    panel.set_xlabel("median paired ratio and quartiles;\ngrey: B is not shown to be faster")


def _error_bar(panel: Axes, value: float, line: float, low: float, high: float, colour: str) -> None:
    """NaN, the interval of a single document, draws no bar."""
    spread = [[max(value - low, 0)], [max(high - value, 0)]]
    panel.errorbar(value, line, xerr=spread, fmt="D", color=colour, markersize=5, capsize=2, lw=1.2)


def _short(name: str) -> str:
    """The end of a long path says more than its beginning."""
    return name if len(name) <= 32 else f"…{name[-31:]}"


def _title(panel: Axes, text: str) -> None:
    panel.set_title(text, fontsize=9, loc="left", color=TEXT)


def _say(panel: Axes, text: str) -> None:
    panel.text(0.5, 0.5, text, transform=panel.transAxes, ha="center", va="center", color=MUTED, fontsize=8)
    panel.set_xticks([])
    panel.set_yticks([])
