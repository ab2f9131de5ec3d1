"""How grouped decoding goes through memory, and what reading heads holds beside a map of weights."""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from style import Colours, quiet

from headwise.attention import HeadStatistics, head_statistics
from headwise.study import Keys, Match, Offset

__all__ = ["FIGURES"]

HEADS, KV_HEADS, BLOCK_MIB = 9, 3, 32
_RUNS = ("run 1", "run 2", "run 3")


def decode(colours: Colours) -> Figure:
    """One KV head cut into runs of keys; each run gives a small result for every query head, and these are merged."""
    picture = Figure(figsize=(7.2, 3.0), layout="constrained")
    axes = picture.subplots()
    for place, run in enumerate(_RUNS):
        left = 2.6 * place
        for kind, up in (("keys", 2.5), ("values", 2.12)):
            axes.add_patch(Rectangle((left, up), 2.5, 0.33, color=colours.amounts[1], linewidth=0))
            _word(axes, left + 1.25, up + 0.165, f"{kind} of {run}", colours)
        _arrow(axes, (left + 1.25, 2.1), (left + 1.25, 1.72), colours.accent)
        for head in range(3):
            across = left + 0.08 + 0.81 * head
            _box(axes, across, 1.25, 0.74, "m, s, o", colours.groups[head], colours)
            _arrow(axes, (across + 0.37, 1.23), (2.03 + 1.8 * head, 0.58), colours.groups[head])
    for head in range(3):
        _box(axes, 1.4 + 1.8 * head, 0.12, 1.26, f"head {head}", colours.groups[head], colours)
    axes.set_xlim(0, 7.7)
    axes.set_ylim(0, 2.9)
    axes.set_xticks([])
    axes.set_yticks(
        [2.47, 1.48, 0.34], ["in memory:\none KV head", "partial results\nof 3 query heads", "merged outputs"]
    )
    quiet(axes, colours)
    return picture


def _word(axes: Axes, across: float, up: float, word: str, colours: Colours) -> None:
    axes.text(across, up - 0.01, word, ha="center", va="center", fontsize=8, color=colours.text)


def _box(axes: Axes, left: float, low: float, width: float, word: str, colour: str, colours: Colours) -> None:
    shape = "round,pad=0,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch((left, low), width, 0.45, boxstyle=shape, color=colour, linewidth=0))
    ink = "#ffffff" if colours.text.startswith("#1") else "#22252d"  # what can be read on the groups' colours
    axes.text(left + width / 2, low + 0.215, word, ha="center", va="center", fontsize=8, color=ink)


def _arrow(axes: Axes, begin: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    axes.add_patch(FancyArrowPatch(begin, end, arrowstyle="-|>", mutation_scale=8, color=colour, linewidth=1.0))


def memory(colours: Colours) -> Figure:
    """Bytes that a map of weights and the statistics of five relations take, by the number of tokens."""
    lengths = [2**power for power in range(8, 18)]
    per_token = _statistics_bytes(128) / 128
    maps = [HEADS * length**2 * 4 / 2**20 for length in lengths]
    lines = {
        "map of weights": (maps, colours.accent),
        "statistics of five relations": ([per_token * length / 2**20 for length in lengths], colours.groups[0]),
        "one block of scores, in PyTorch's operations": ([min(BLOCK_MIB, whole) for whole in maps], colours.muted),
    }
    picture = Figure(figsize=(7.2, 2.7), layout="constrained")
    axes = picture.subplots()
    for name, (amounts, colour) in lines.items():
        style = "--" if colour == colours.muted else "-"
        (line,) = axes.loglog(lengths, amounts, color=colour, linewidth=1.8, linestyle=style, base=2)
        line.get_path().should_simplify = False
        at, above = (3, 1.6) if name.startswith("map") else (6, 0.28) if name.startswith("stat") else (5, 1.5)
        axes.text(lengths[at], amounts[at] * above, name, color=colour, fontsize=8, ha="right" if at == 3 else "left")
    axes.set_xticks(lengths[::3], [f"{length:,}" for length in lengths[::3]])
    axes.set_yticks([2**-4, 1, 2**5, 2**10, 2**15], ["64 KiB", "1 MiB", "32 MiB", "1 GiB", "32 GiB"])
    axes.minorticks_off()
    axes.set_xlabel("tokens of one sequence")
    quiet(axes, colours, grid="y")
    return picture


def _statistics_bytes(length: int) -> int:
    """Bytes that the statistics of one call hold, as they lie in memory."""
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, heads, length, 64, generator=generator) for heads in (HEADS, KV_HEADS))
    tokens, first = torch.arange(length)[None], torch.arange(length) == 0
    relations = [
        *(Offset(1, "previous"), Match(0, tokens, "duplicate"), Match(1, tokens, "induction")),
        *(Keys(first, "first"), Keys(~first, "others")),
    ]
    statistics = head_statistics(query, key, relations, causal=True, backend="math")
    tensors = [getattr(statistics, name) for name in HeadStatistics.__dataclass_fields__ if name != "names"]
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


FIGURES = {"explanations-decode": decode, "explanations-memory": memory}
