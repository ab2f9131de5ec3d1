"""What the heads of a real model attend to, and how much of that heads with random weights do as well.

The demo model is run: some seconds, once for all figures here.
"""

from __future__ import annotations

from functools import cache

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Polygon
from matplotlib.path import Path as Outline
from style import Colours, quiet
from torch import Tensor

from headwise.attention import attention_weights
from headwise.models import Checkpoint, HeadCall, load
from headwise.study import Match
from headwise.study.nulls import random_weights

__all__ = ["FIGURES"]

TEXT = "The cat sat on the mat. The dog saw the cat, and the cat saw the dog."
SHOWN = {(18, 8): "the first token", (16, 0): "the token before", (8, 1): "the same token", (17, 5): "what came next"}
STEPS = (0.05, 0.2, 0.4, 0.6, 0.8)  # a weight below the first has no colour


@cache
def _model() -> Checkpoint:
    return load("demo")


@cache
def _words() -> list[str]:
    tokenizer = _model().tokenizer
    return [tokenizer.decode(token).strip() for token in tokenizer(TEXT)["input_ids"]]


@cache
def _maps() -> dict[tuple[int, int], Tensor]:
    """The weights ``[queries, keys]`` of the heads that are shown."""
    found: dict[tuple[int, int], Tensor] = {}

    def keep(call: HeadCall) -> None:
        weights = attention_weights(call.query, call.key, **call.arguments)[0]
        found.update({(layer, head): weights[head] for layer, head in SHOWN if layer == call.layer})

    with torch.no_grad(), _model().observe(keep):
        _model().forward(torch.tensor([_model().tokenizer(TEXT)["input_ids"]]))
    return found


def maps(colours: Colours) -> Figure:
    """Four heads on one text, each with a pattern that a name comes to mind for."""
    picture = Figure(figsize=(7.2, 7.4), layout="constrained")
    for place, (axes, (head, what)) in enumerate(zip(picture.subplots(2, 2).flat, SHOWN.items(), strict=True)):
        _map(axes, colours, _maps()[head])
        axes.set_title(f"L{head[0]}.H{head[1]}: {what}", color=colours.text)
        if place % 2:
            axes.set_yticklabels([])
        if place < 2:
            axes.set_xticklabels([])
    _legend(picture, colours)
    return picture


def _map(axes: Axes, colours: Colours, weights: Tensor) -> None:
    count = len(weights)
    stairs = [(0, 0), *(corner for row in range(count) for corner in ((row + 1, row), (row + 1, row + 1))), (0, count)]
    axes.add_patch(Polygon(stairs, color=colours.none, linewidth=0))
    for colour, low, high in zip(colours.amounts, STEPS, (*STEPS[1:], 2.0), strict=True):
        cells = ((weights >= low) & (weights < high)).nonzero().tolist()
        if cells:  # one path for all cells of a colour keeps the file small
            outlines = [_cell(column, row) for row, column in cells]
            axes.add_patch(PathPatch(Outline.make_compound_path(*outlines), color=colour, linewidth=0))
    axes.set_xlim(0, count)
    axes.set_ylim(count, 0)
    axes.set_aspect("equal")
    middles = [place + 0.5 for place in range(count)]
    axes.set_xticks(middles, _words(), rotation=90)
    axes.set_yticks(middles, _words())
    quiet(axes, colours)


def _cell(column: int, row: int) -> Outline:
    low, high = 0.05, 0.95
    corners = [(low, low), (high, low), (high, high), (low, high), (low, low)]
    return Outline([(column + x, row + y) for x, y in corners], closed=True)


def _legend(picture: Figure, colours: Colours) -> None:
    names = [f"{low:.0%} to {high:.0%}" for low, high in zip(STEPS, (*STEPS[1:], 1.0), strict=True)]
    marks = [PathPatch(Outline.unit_rectangle(), color=colour, linewidth=0) for colour in colours.amounts]
    box = picture.legend(
        marks, names, loc="outside lower center", ncols=5, frameon=False, fontsize=8,
        title="share of the query (row) that goes to the key (column)",
    )  # fmt: skip
    box.get_title().set(color=colours.muted, fontsize=8)
    for text in box.get_texts():
        text.set_color(colours.muted)


@cache
def _curves() -> list[tuple[str, float, Tensor, Tensor]]:
    """For a sentence and for random tokens twice: name, even attention, sorted scores, those of random weights."""
    sentence = torch.tensor([_model().tokenizer(TEXT)["input_ids"]])
    generator = torch.Generator().manual_seed(0)
    half = torch.randint(1000, _model().model.config.vocab_size, (4, 24), generator=generator)
    found = []
    with random_weights(_model()) as draws:
        untrained = draws.draw(0)
        for name, tokens in (("one short text", sentence), ("random tokens, twice", torch.cat([half, half], 1))):
            (trained, chance), (drawn, _) = _induction(_model(), tokens), _induction(untrained, tokens)
            found.append((name, chance, trained, drawn))
    return found


def _induction(model: Checkpoint, tokens: Tensor) -> tuple[Tensor, float]:
    relation, scores, chance = Match(1, tokens, name="induction"), [], []

    def read(call: HeadCall) -> None:
        statistics = call.read([relation])
        scores.append(statistics.score("induction").mean(0))
        chance.append(float(statistics.chance("induction").mean()))

    with torch.no_grad(), model.observe(read):
        model.forward(tokens)
    return torch.cat(scores).sort(descending=True).values, chance[0]


def chance(colours: Colours) -> Figure:
    """Induction scores of all heads in order, of the trained model and of the same with random weights."""
    picture = Figure(figsize=(7.2, 2.9), layout="constrained")
    for axes, (name, even, trained, drawn) in zip(picture.subplots(1, 2, sharey=True), _curves(), strict=True):
        places = range(1, len(trained) + 1)
        for values, colour, label in (
            (trained, colours.groups[0], "trained"),
            (drawn, colours.accent, "random weights"),
        ):
            (line,) = axes.plot(places, values.tolist(), color=colour, linewidth=1.8, label=label)
            line.get_path().should_simplify = False  # which points can go depends on the last bits
        axes.axhline(even, color=colours.muted, linewidth=1, linestyle=(0, (4, 3)), label="even attention")
        axes.set_title(name)
        axes.set_ylim(0, 1)
        axes.set_xticks([1, 90, 180, 270])
        axes.set_xlabel("head, by rank of its score")
        quiet(axes, colours, grid="y")
    first = picture.axes[0]
    first.set_ylabel("induction score")
    names = first.legend(loc="upper right", frameon=False, fontsize=8)
    for text in names.get_texts():
        text.set_color(colours.text)
    return picture


FIGURES = {"what-heads-do-maps": maps, "what-heads-do-chance": chance}
