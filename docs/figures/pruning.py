"""What heads cost one by one and together, and what the scores of docs/reshape.md choose.

The first figure runs the demo model for some seconds.
"""

from __future__ import annotations

from functools import cache

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from style import Colours, quiet

from headwise.models import load

__all__ = ["FIGURES"]

LEADERS = [(18, 6), (17, 3), (17, 4), (17, 5), (18, 7)]  # in the order of their induction scores
# Nats added, with 95 % intervals, as measured for docs/reshape.md: by heads removed of 270, cut only and compensated.
REMOVED = (27, 54, 90)
MEASURED = {
    "contribution": (
        ((0.549, 0.527, 0.572), (1.472, 1.296, 1.621), (2.685, 2.328, 2.988)),
        ((0.122, 0.071, 0.182), (0.349, 0.283, 0.418), (0.796, 0.708, 0.896)),
    ),
    "random, one draw": (
        ((1.532, 1.347, 1.685), (1.708, 1.504, 1.868), (2.401, 2.154, 2.597)),
        ((0.233, 0.188, 0.286), (0.298, 0.232, 0.373), (0.598, 0.512, 0.691)),
    ),
    "first-order": (
        ((0.045, 0.035, 0.055), (0.189, 0.154, 0.229), (0.540, 0.466, 0.615)),
        ((0.032, 0.024, 0.039), (0.129, 0.094, 0.163), (0.371, 0.302, 0.439)),
    ),
}


@cache
def _costs() -> tuple[list[float], float]:
    """What each leader costs alone, and all of them together, on random tokens that come twice."""
    checkpoint = load("demo")
    generator = torch.Generator().manual_seed(0)
    half = torch.randint(1000, checkpoint.model.config.vocab_size, (8, 16), generator=generator)
    tokens = torch.cat([half, half], 1)

    def loss(heads: list[tuple[int, int]]) -> float:
        with torch.no_grad(), checkpoint.ablate(heads):
            logits = checkpoint.forward(tokens).logits[:, 15:-1]
        return float(torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 16:]))

    whole = loss([])
    return [loss([head]) - whole for head in LEADERS], loss(LEADERS) - whole


def together(colours: Colours) -> Figure:
    """Bars: each head alone, the sum of these, and all at once."""
    singles, joint = _costs()
    names = [f"L{layer}.H{head}" for layer, head in LEADERS]
    picture = Figure(figsize=(7.2, 2.9), layout="constrained")
    axes = picture.subplots()
    places = [0.0, 1.0, 2.0, 3.0, 4.0, 5.5, 6.5]
    for place, cost, colour in zip(places, singles, colours.groups, strict=False):
        axes.bar(place, cost, width=0.7, color=colour)
    bottom = 0.0
    for cost, colour in zip(singles, colours.groups, strict=False):
        axes.bar(places[5], cost, width=0.7, bottom=bottom, color=colour)
        bottom += cost
    axes.bar(places[6], joint, width=0.7, color=colours.muted)
    for place, height in zip(places, [*singles, sum(singles), joint], strict=True):
        axes.annotate(
            f"{height:.2f}", (place, height), (0, 3), textcoords="offset points", ha="center", fontsize=8,
            color=colours.text,
        )  # fmt: skip
    axes.set_xticks(places, [*names, "sum of\nthe five", "all five\nat once"])
    axes.set_ylabel("loss added on copying (nats)")
    axes.set_ylim(0, 7)
    quiet(axes, colours, grid="y")
    return picture


def scores(colours: Colours) -> Figure:
    """Loss added against heads removed, for three scores, without and with compensation."""
    picture = Figure(figsize=(7.2, 3.1), layout="constrained")
    for place, (axes, title) in enumerate(
        zip(picture.subplots(1, 2, sharey=True), ("cut only", "compensated"), strict=True)
    ):
        _lines(axes, colours, place)
        axes.set_title(title)
        axes.set_xticks([0, *REMOVED])
        axes.set_xlabel("query heads removed of 270")
        axes.set_ylim(0, 3.1)
        quiet(axes, colours, grid="y")
    first = picture.axes[0]
    first.set_ylabel("loss added (nats)")
    names = picture.axes[1].legend(loc="upper left", frameon=False, fontsize=8)
    for text in names.get_texts():
        text.set_color(colours.text)
    return picture


def _lines(axes: Axes, colours: Colours, place: int) -> None:
    shades = (colours.accent, colours.muted, colours.groups[0])
    for (name, both), colour in zip(MEASURED.items(), shades, strict=True):
        middles, lows, highs = zip(*both[place], strict=True)
        reach = [[m - low for m, low in zip(middles, lows, strict=True)],
                 [high - m for m, high in zip(middles, highs, strict=True)]]  # fmt: skip
        axes.errorbar(
            REMOVED, middles, reach, color=colour, linewidth=1.8, marker="o", markersize=4, elinewidth=1, capsize=2,
            label=name,
        )  # fmt: skip


FIGURES = {"pruning-together": together, "pruning-scores": scores}
