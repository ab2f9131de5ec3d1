"""Which KV head a query head reads, and what sharing them changes."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from style import LIGHT, Colours, quiet

from headwise.layout import HeadLayout

__all__ = ["FIGURES"]

HEADS = 8
_HALF = 0.17  # of a box's height
_TITLES = {8: "MHA: 8 KV heads", 2: "GQA: 2 KV heads, R = 4", 1: "MQA: 1 KV head"}


def groups(colours: Colours) -> Figure:
    """Eight query heads above the KV heads that they read; the colour is the KV head."""
    picture = Figure(figsize=(7.2, 2.0), layout="constrained")
    for axes, (kv_heads, title) in zip(picture.subplots(1, 3), _TITLES.items(), strict=True):
        _panel(axes, colours, HeadLayout(HEADS, kv_heads, 1))
        axes.set_title(title)
        quiet(axes, colours)
    return picture


def _panel(axes: Axes, colours: Colours, layout: HeadLayout) -> None:
    for kv_head in range(layout.num_kv_heads):
        members = layout.heads_of(kv_head)
        colour = colours.groups[kv_head % len(colours.groups)] if layout.num_kv_heads < HEADS else colours.groups[0]
        middle = (members[0] + members[-1]) / 2
        for head in members:
            axes.plot([head, middle], [1 - _HALF, _HALF], color=colour, linewidth=1.1, zorder=1)
            _box(axes, head, 1.0, str(head), colour, colours)
        _box(axes, middle, 0.0, str(kv_head), colour, colours)
    axes.set_xlim(-0.6, HEADS - 0.4)
    axes.set_ylim(-0.25, 1.25)
    axes.set_xticks([])
    first = layout.num_kv_heads == HEADS
    axes.set_yticks([0, 1], ["KV head", "query head"] if first else ["", ""])


def _box(axes: Axes, across: float, up: float, word: str, colour: str, colours: Colours) -> None:
    corner, size = (across - 0.36, up - _HALF), (0.72, 2 * _HALF)
    axes.add_patch(FancyBboxPatch(corner, *size, boxstyle="round,pad=0,rounding_size=0.1", color=colour, linewidth=0))
    axes.text(across, up - 0.01, word, ha="center", va="center", fontsize=8, color=_ink(colours))


def _ink(colours: Colours) -> str:
    """What can be read on the colours of the groups, which are dark on light pages and light on dark ones."""
    return "#ffffff" if colours == LIGHT else "#1e2129"


def shares(colours: Colours) -> Figure:
    """What a layer of eight heads keeps of parameters, cache and products of queries with keys, by its KV heads."""
    counts = (8, 4, 2, 1)
    rows = {
        "parameters": [(1 + kv / HEADS) / 2 for kv in counts],
        "cache": [kv / HEADS for kv in counts],
        "scores": [1.0 for _ in counts],
    }
    picture = Figure(figsize=(7.2, 2.1), layout="constrained")
    for axes, (name, parts) in zip(picture.subplots(1, 3, sharey=True), rows.items(), strict=True):
        places = range(len(counts))
        axes.bar(places, parts, width=0.62, color=colours.accent if name == "scores" else colours.groups[0])
        for place, part in zip(places, parts, strict=True):
            axes.text(place, part + 0.03, f"{100 * part:g} %", ha="center", fontsize=8)
        axes.set_xticks(places, [str(kv) for kv in counts])
        axes.set_yticks([])
        axes.set_ylim(0, 1.15)
        axes.set_title({"scores": "products q · k", "parameters": "parameters of the layer"}.get(name, "cache"))
        axes.set_xlabel("KV heads")
        quiet(axes, colours)
    return picture


FIGURES = {"sharing-groups": groups, "sharing-shares": shares}
