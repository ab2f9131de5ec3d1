"""What a step with a cache computes, and how a cache grows."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from style import Colours, quiet

__all__ = ["FIGURES"]

TOKENS, CACHED = 5, 2
GIB = 1 << 30


def steps(colours: Colours) -> Figure:
    """Five tokens at once, two and then three, and the same with the mask at the wrong corner."""
    picture = Figure(figsize=(7.2, 2.75), layout="constrained")
    titles = ("all five at once", "two, then three: lower right", "the same, upper left: wrong")
    for axes, title, at_once, offset in zip(
        picture.subplots(1, 3), titles, (True, False, False), (CACHED, CACHED, 0), strict=True
    ):
        _mask(axes, colours, at_once, offset)
        axes.set_title(title)
        quiet(axes, colours)
        if title.endswith("wrong"):
            axes.title.set_color(colours.accent)
    return picture


def _mask(axes: Axes, colours: Colours, at_once: bool, offset: int) -> None:
    for query in range(TOKENS):
        first = query < CACHED
        colour = colours.groups[0] if at_once or first else colours.groups[1]
        for key in range(TOKENS):
            if not at_once and first and key >= CACHED:
                continue  # these keys do not exist yet
            last = query if at_once or first else query - CACHED + offset
            shown = colour if key <= last else colours.none
            axes.add_patch(Rectangle((key + 0.05, query + 0.05), 0.9, 0.9, color=shown, linewidth=0))
    if not at_once:
        for places in (([CACHED, CACHED], [0, TOKENS]), ([0, TOKENS], [CACHED, CACHED])):
            axes.plot(*places, color=colours.muted, linewidth=0.9, linestyle=(0, (3, 3)))
    axes.set_xlim(0, TOKENS)
    axes.set_ylim(TOKENS, 0)
    axes.set_aspect("equal")
    numbers = [place + 0.5 for place in range(TOKENS)]
    axes.set_xticks(numbers, [str(place) for place in range(TOKENS)])
    axes.set_yticks(numbers, [str(place) for place in range(TOKENS)])
    axes.set_xlabel("key")
    axes.set_ylabel("query")


def growth(colours: Colours) -> Figure:
    """The cache of Llama 3 8B's sizes against the context, by KV heads, beside the weights."""
    contexts = [1 << power for power in range(10, 18)]
    picture = Figure(figsize=(7.2, 3.0), layout="constrained")
    axes = picture.subplots()
    for (kv_heads, name), colour in zip(
        {32: "32 KV heads (MHA)", 8: "8 (Llama 3 8B)", 1: "1 (MQA)"}.items(), colours.groups, strict=False
    ):
        sizes = [2 * 32 * kv_heads * tokens * 128 * 2 / GIB for tokens in contexts]
        axes.plot(contexts, sizes, color=colour, linewidth=1.8, marker="o", markersize=3)
        axes.text(contexts[-1] * 1.2, sizes[-1], name, color=colour, va="center", fontsize=8)  # beside the grid
    weights = 8_030_261_248 * 2 / GIB
    axes.plot(contexts[:: len(contexts) - 1], [weights] * 2, color=colours.muted, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.text(contexts[0], 20, "weights, 15 GiB", color=colours.muted, fontsize=8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlim(contexts[0] * 0.85, contexts[-1] * 1.1)
    axes.set_ylim(2**-6.5, 2**7)
    axes.set_xticks(contexts, [f"{tokens >> 10}k" for tokens in contexts])
    heights = [2**-6, 2**-4, 2**-2, 1, 4, 16, 64]
    axes.set_yticks(heights, ["1/64", "1/16", "1/4", "1", "4", "16", "64"])
    axes.minorticks_off()
    axes.set_xlabel("tokens of one sequence")
    axes.set_ylabel("cache, GiB (16 bits)")
    quiet(axes, colours, "both")
    return picture


FIGURES = {"caches-steps": steps, "caches-growth": growth}
