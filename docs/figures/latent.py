"""The two forms of latent attention, and what a cached token takes."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from style import Colours, quiet

__all__ = ["FIGURES"]


def forms(colours: Colours) -> Figure:
    """The same attention with keys and values made from the latents, and with both maps moved to the other side."""
    picture = Figure(figsize=(7.2, 2.9), layout="constrained")
    for axes, absorbed in zip(picture.subplots(1, 2), (False, True), strict=True):
        _form(axes, colours, absorbed)
        axes.set_title("absorbed: one latent serves all heads" if absorbed else "expanded: a key and a value per head")
        quiet(axes, colours)
    return picture


# Where a word stands (across, up), and what it is made of; the cache is at the bottom, the output at the top.
_EXPANDED = {
    "latents c, cached": (0.52, 0, ()),
    "q": (0.14, 1, ()),
    "W_UK c": (0.44, 1, ("latents c, cached",)),
    "W_UV c": (0.82, 1, ("latents c, cached",)),
    "weights a": (0.36, 2, ("q", "W_UK c")),
    "Σ a W_UV c": (0.82, 2, ("weights a", "W_UV c")),
    "W_O Σ a W_UV c": (0.82, 3, ("Σ a W_UV c",)),
}
_ABSORBED = {
    "latents c, cached": (0.52, 0, ()),
    "q": (0.14, 0, ()),
    "W_UKᵀ q": (0.14, 1, ("q",)),
    "weights a": (0.36, 2, ("W_UKᵀ q", "latents c, cached")),
    "Σ a c": (0.82, 2, ("weights a", "latents c, cached")),
    "(W_O W_UV) Σ a c": (0.82, 3, ("Σ a c",)),
}


def _form(axes: Axes, colours: Colours, absorbed: bool) -> None:
    axes.set_xlim(0, 1.1)
    axes.set_ylim(-0.4, 3.4)
    axes.set_xticks([])
    axes.set_yticks([])
    words = _ABSORBED if absorbed else _EXPANDED
    boxes = {word: _word(axes, colours, word, across, up) for word, (across, up, _) in words.items()}
    for word, (across, up, sources) in words.items():
        for source in sources:
            arrow = {"arrowstyle": "-|>,head_width=0.18,head_length=0.35", "color": colours.muted, "linewidth": 1.0}
            ends = {"patchA": boxes[source], "patchB": boxes[word], "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (across, up), words[source][:2], arrowprops=arrow | ends)


def _word(axes: Axes, colours: Colours, word: str, across: float, up: float) -> FancyBboxPatch:
    half = 0.0125 * len(word) + 0.035
    box = FancyBboxPatch(
        (across - half, up - 0.25), 2 * half, 0.5, boxstyle="round,pad=0,rounding_size=0.02", mutation_aspect=5,
        facecolor=colours.none, edgecolor=colours.accent if word.endswith("cached") else colours.groups[0],
        linewidth=1.1, zorder=3,
    )  # fmt: skip
    axes.text(across, up - 0.02, word, ha="center", va="center", fontsize=8, zorder=4)
    return axes.add_patch(box)  # type: ignore[return-value]


def elements(colours: Colours) -> Figure:
    """Numbers that are cached for a token in one layer with 128 query heads of width 128."""
    rows = {"MHA, 128 KV heads": 32_768, "GQA, 8 KV heads": 2_048, "MLA, 512 + 64": 576, "MQA, 1 KV head": 256}
    picture = Figure(figsize=(7.2, 1.9), layout="constrained")
    axes = picture.subplots()
    for place, (name, count) in enumerate(rows.items()):
        colour = colours.accent if name.startswith("MLA") else colours.groups[0]
        axes.plot(
            count, place, "o", markersize=7, color=colour
        )  # on a logarithmic axis the length of a bar says nothing
        axes.text(count * 1.18, place, f"{count:,}", va="center", fontsize=8)
    axes.set_xscale("log", base=2)
    axes.set_xlim(64, 1 << 17)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), list(rows))
    ticks = [256, 1_024, 4_096, 16_384]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    quiet(axes, colours, "x")
    axes.tick_params(axis="y", labelcolor=colours.text)
    axes.set_xlabel("numbers cached for one token in one layer (logarithmic)")
    return picture


FIGURES = {"latent-forms": forms, "latent-elements": elements}
