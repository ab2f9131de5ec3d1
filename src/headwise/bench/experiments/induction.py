"""When induction heads form, what they do, and what one layer makes of the same task.

A row is a few tokens, then a block of tokens that are all different, again and again until the row is full. What
follows a token of the block can only be told by looking up what followed it before: blocks and their length are drawn
anew for each row, so position tells nothing and no two rows share a block.

Symbols: B rows, L length, H heads of a layer, D head dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headwise.attention import head_statistics
from headwise.bench.experiments.experiment import (
    FOUND,
    NO_CONCLUSION,
    NOT_SHOWN,
    Comparison,
    Curve,
    Dots,
    Experiment,
    Finding,
    Lines,
    Measure,
    Numbers,
)
from headwise.bench.experiments.findings import compare, difference_text, row_text
from headwise.bench.experiments.summary import Summary
from headwise.bench.experiments.training import Decoder, generator_of, seeded, split_of, train_decayed
from headwise.nn import GroupedQueryAttention, RotaryEmbedding
from headwise.study.relations import Match, Offset

__all__ = ["EXPERIMENT", "Rows", "Settings", "build", "draw_rows", "findings", "head_scores", "run", "without_heads"]

TWO, ONE = "two layers", "one layer"
VALIDATION, TEST, TRAINING = (0,), (1,), tuple(range(2, 8))


@dataclass(frozen=True)
class Settings:
    """Sizes.

    Attributes:
        vocabulary: tokens.
        length: of a row.
        prefix: most tokens before the first block.
        shortest: length of the shortest block.
        longest: of the longest.
        width: of the model.
        heads: of each layer.
        batch: rows of a step.
        steps: of training.
        rate: the highest learning rate.
        points: how many times the curves are measured after the start.
        rows: of validation, and of the test.
        threshold: from which score on a head is called one of its kind.
    """

    vocabulary: int = 40
    length: int = 33
    prefix: int = 4
    shortest: int = 8
    longest: int = 13
    width: int = 64
    heads: int = 4
    batch: int = 32
    steps: int = 240
    rate: float = 6e-3
    points: int = 16
    rows: int = 128
    threshold: float = 0.4


@dataclass(frozen=True)
class Rows:
    """Rows of tokens.

    Attributes:
        tokens: ``[B, length]``.
        known: ``[B, length]`` True where the token has stood in the row before, and with it what follows.
        blocks: ``[B, shortest]`` the first tokens of the block that is repeated, by which rows are held out.
    """

    tokens: Tensor
    known: Tensor
    blocks: Tensor


def draw_rows(count: int, splits: tuple[int, ...], generator: torch.Generator, settings: Settings) -> Rows:
    """Rows whose block belongs to one of the splits."""
    kept: list[tuple[Tensor, ...]] = []
    while sum(len(parts[0]) for parts in kept) < count:
        candidates = _candidates(2 * count, generator, settings)
        wanted = torch.isin(split_of(candidates[2]), torch.tensor(splits))
        kept.append(tuple(each[wanted] for each in candidates))
    tokens, known, blocks = (torch.cat(parts)[:count] for parts in zip(*kept, strict=True))
    return Rows(tokens, known, blocks)


def _candidates(count: int, generator: torch.Generator, settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """What :class:`Rows` holds, of any split."""
    order = torch.rand(count, settings.vocabulary, generator=generator).argsort(1)  # all tokens, each once
    prefix = torch.randint(settings.prefix + 1, (count, 1), generator=generator)
    size = torch.randint(settings.shortest, settings.longest + 1, (count, 1), generator=generator)
    places = torch.arange(settings.length)
    inside = settings.prefix + (places - prefix).remainder(size)  # of the order; what is before it is the prefix
    tokens = order.gather(1, torch.where(places < prefix, places, inside))
    blocks = order[:, settings.prefix : settings.prefix + settings.shortest]
    return tokens, places >= prefix + size, blocks


def build(layers: int, seed: int, settings: Settings) -> Decoder:
    """A model of attention layers only."""
    width, heads = settings.width, settings.heads
    with seeded(seed, "weights"):
        rope = RotaryEmbedding(width // heads)
        attentions = [GroupedQueryAttention(width, heads, rope=rope) for _ in range(layers)]
        return Decoder(settings.vocabulary, settings.vocabulary, attentions)


def head_scores(model: Decoder, rows: Rows) -> tuple[Tensor, Tensor]:
    """Previous-token and induction score of every head.

    Returns:
        Attention to the previous token over all queries, and to what followed the last copies of the query's token
        over the queries that have one: two of ``[layers, H]``.
    """
    relations = [Offset(1), Match(1, rows.tokens)]
    scores: list[Tensor] = []
    hooks = [
        attention.register_forward_pre_hook(
            lambda layer, arguments: scores.append(_scores_of(layer, arguments[0], relations))
        )
        for attention in model.attentions
    ]
    try:
        with torch.no_grad():
            model(rows.tokens)
    finally:
        for hook in hooks:
            hook.remove()
    previous, induction = torch.stack(scores, 1)
    return previous, induction


def _scores_of(layer: Any, hidden: Tensor, relations: Sequence[Any]) -> Tensor:
    """``[relations, H]`` over all rows, from the queries and keys that the layer makes of its input ``[B, L, E]``."""
    query = layer.q_proj(hidden).unflatten(-1, (layer.num_heads, layer.head_dim)).transpose(1, 2)  # [B, H, L, D]
    rotation = layer.rope.rotation(torch.arange(hidden.shape[1]), query.dtype)
    query, key = (layer.rope.rotate(each, rotation) for each in (query, layer.project_context(hidden).key))
    read = head_statistics(query, key, relations, causal=True)
    return torch.stack([read.score(relation.name).nanmean(0) for relation in relations])


@contextmanager
def without_heads(model: Decoder, heads: Iterable[tuple[int, int]], *, mean: bool = True) -> Iterator[None]:
    """Replace what heads write by its mean over all rows and positions, or by 0, within the block.

    Args:
        model: is as before behind the block.
        heads: (layer, head).
        mean: whether the mean takes its place.
    """
    taken: dict[int, list[int]] = {}
    for layer, head in heads:
        taken.setdefault(layer, []).append(head)
    with ExitStack() as stack:
        for number, chosen in taken.items():
            attention: Any = model.attentions[number]
            hook = attention.o_proj.register_forward_pre_hook(_replacing(chosen, attention.head_dim, mean))
            stack.callback(hook.remove)
        yield


def _replacing(heads: Sequence[int], width: int, mean: bool) -> Any:
    """A hook before the output projection, whose input ``[B, L, H * D]`` holds the heads side by side."""

    def replace(module: Any, arguments: tuple[Tensor]) -> tuple[Tensor]:
        outputs = arguments[0].clone()
        for head in heads:
            part = outputs[..., head * width : (head + 1) * width]
            part[:] = part.mean((0, 1)) if mean else 0.0
        return (outputs,)

    return replace


def _losses(model: Decoder, rows: Rows) -> tuple[Tensor, Tensor, float]:
    """The loss by row where what follows is known and where it is not, and the share of right answers where it is."""
    logits, wanted = model(rows.tokens[:, :-1]), rows.tokens[:, 1:]
    losses = functional.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")  # [B, L - 1]
    known = rows.known[:, :-1]
    right = (logits.argmax(-1) == wanted)[known].float().mean().item()
    return _mean(losses, known), _mean(losses, ~known), right


def _mean(losses: Tensor, where: Tensor) -> Tensor:
    return (losses * where).sum() / where.sum()


def run(name: str, seed: int, settings: Settings) -> Numbers:
    """The numbers of one condition and seed."""
    layers = 2 if name == TWO else 1
    rows = {
        split: draw_rows(settings.rows, splits, generator_of(seed, split), settings)
        for split, splits in (("validation", VALIDATION), ("test", TEST))
    }
    model = build(layers, seed, settings)
    curves = _train(model, seed, rows["validation"], settings)
    numbers: dict[str, Any] = {**curves, **_results(model, rows["test"])}
    numbers["untrained"] = curves["induction_curve"][0]
    for kind in ("previous", "induction"):
        numbers[f"{kind}_at"] = _first_above(curves["step"], curves[f"{kind}_curve"], settings.threshold)
    if layers == 2:
        numbers |= _effects(model, rows["validation"], rows["test"], settings)
        each = [numbers[f"without_{kind}"] - numbers["loss"] for kind in ("previous", "induction")]
        numbers["sum_of_both"] = numbers["loss"] + sum(each)
    return numbers


def _first_above(steps: Sequence[float], scores: Sequence[float], threshold: float) -> float | None:
    """The first step that was measured with a score of the threshold or more."""
    return next((step for step, score in zip(steps, scores, strict=True) if score >= threshold), None)


def _train(model: Decoder, seed: int, validation: Rows, settings: Settings) -> dict[str, Any]:
    """Train in place; curves on validation rows."""
    generator = generator_of(seed, "training")
    every = max(1, settings.steps // settings.points)
    curves: dict[str, Any] = {"step": [], "loss_curve": [], "previous_curve": [], "induction_curve": []}

    def measure(step: int) -> None:
        if step % every:
            return
        previous, induction = head_scores(model, validation)
        told = (step, _losses(model, validation)[0].item(), previous.max().item(), induction.max().item())
        for values, value in zip(curves.values(), told, strict=True):
            values.append(value)

    def loss_of(step: int) -> Tensor:
        return _losses(model, draw_rows(settings.batch, TRAINING, generator, settings))[0]

    train_decayed(model, loss_of, steps=settings.steps, rate=settings.rate, on_step=measure)
    return curves


def _results(model: Decoder, rows: Rows) -> dict[str, float]:
    """Loss and the best scores on test rows."""
    with torch.no_grad():
        loss, first, right = _losses(model, rows)
    previous, induction = head_scores(model, rows)
    return {
        "loss": loss.item(),
        "first_loss": first.item(),
        "accuracy": right,
        "previous": previous.max().item(),
        "induction": induction.max().item(),
    }


def _effects(model: Decoder, validation: Rows, rows: Rows, settings: Settings) -> dict[str, float]:
    """The loss on test rows without heads, which are chosen on validation rows."""
    previous, induction = head_scores(model, validation)
    kinds = {
        "previous": [(0, head) for head in _ranked(previous[0])],
        "induction": [(1, head) for head in _ranked(induction[1])],
    }
    counts = {
        "previous": int((previous[0] >= settings.threshold).sum()),
        "induction": int((induction[1] >= settings.threshold).sum()),
    }
    all_of = {kind: heads[: max(1, counts[kind])] for kind, heads in kinds.items()}
    sets = {
        "without_best_previous": kinds["previous"][:1],
        "without_best_induction": kinds["induction"][:1],
        "without_best_both": kinds["previous"][:1] + kinds["induction"][:1],
        "without_last_both": kinds["previous"][-1:] + kinds["induction"][-1:],
        "without_previous": all_of["previous"],
        "without_induction": all_of["induction"],
        "without_both": all_of["previous"] + all_of["induction"],
    }
    numbers: dict[str, float] = {f"{kind}_heads": count for kind, count in counts.items()}
    for name, heads in sets.items():
        numbers[name] = _loss_without(model, heads, rows, mean=True)
    numbers["zeroed_both"] = _loss_without(model, sets["without_both"], rows, mean=False)
    return numbers


def _ranked(scores: Tensor) -> list[int]:
    """Heads, the highest score first."""
    return [int(head) for head in scores.argsort(descending=True)]


def _loss_without(model: Decoder, heads: Sequence[tuple[int, int]], rows: Rows, *, mean: bool) -> float:
    with torch.no_grad(), without_heads(model, heads, mean=mean):
        return _losses(model, rows)[0].item()


def findings(summary: Summary) -> list[Finding]:
    """What follows and what does not."""
    return [_about_forming(summary), *_about_layers(summary), *_about_effects(summary), *_limits(summary)]


def _about_forming(summary: Summary) -> Finding:
    settings, count = summary.settings, len(summary.seeds)
    formed = {name: int((summary.values(name, "induction") >= settings.threshold).sum()) for name in (TWO, ONE)}
    two, one = (summary.row(name, "induction") for name in (TWO, ONE))
    text = (
        f"a head with an induction score of {settings.threshold} or more forms in {formed[TWO]} of {count} seeds with "
        f"two layers (best score {row_text(two)}, untrained {row_text(summary.row(TWO, 'untrained'))}) and in "
        f"{formed[ONE]} of {count} with one layer ({row_text(one)})"
    )
    return Finding(FOUND if formed[TWO] else NOT_SHOWN, text)


def _about_layers(summary: Summary) -> list[Finding]:
    settings = summary.settings
    position = math.log(settings.longest - settings.shortest + 1)
    return [
        compare(
            summary.difference("layers"),
            higher="one layer's loss where what follows is known is higher (one layer − two)",
            lower="one layer's loss where what follows is known is lower (one layer − two)",
            none="no difference between one layer and two is shown where what follows is known (one − two)",
        ),
        Finding(
            FOUND,
            f"one layer: the loss there is {row_text(summary.row(ONE, 'loss'))}; knowing how long blocks can be, "
            f"without any look at which tokens match, allows {position:.3f}; guessing costs "
            f"{math.log(settings.vocabulary):.3f}",
        ),
        compare(
            summary.difference("order"),
            higher="the previous-token score passes the threshold first, the induction score after it (steps between)",
            lower="the induction score passes the threshold before the previous-token score (steps between)",
            none="which of the two scores passes the threshold first is not shown (steps between)",
        ),
    ]


def _about_effects(summary: Summary) -> list[Finding]:
    return [
        compare(
            summary.difference(key),
            higher=f"without {heads} the loss there rises",
            lower=f"without {heads} the loss there falls",
            none=f"that the loss there changes without {heads} is not shown",
        )
        for key, heads in _TAKEN.items()
    ] + [
        compare(
            summary.difference("control"),
            higher="the best head of both kinds matters more than the least of both layers (losses without them)",
            lower="the best head of both kinds matters less than the least of both layers (losses without them)",
            none="that the best head of both kinds matters more than the least of both layers is not shown",
        )
    ]


def _limits(summary: Summary) -> list[Finding]:
    joint, alone = summary.difference("joint"), summary.difference("without_best_induction")
    told = []
    if joint.shown:
        way = "less" if joint.mean < 0 else "more"
        told.append(
            f"that effects add up: taken out together, both kinds cost {way} than the sum of what each costs "
            f"({difference_text(joint)})"
        )
    else:
        told.append("whether effects of the two kinds add up: that they don't is not shown")
    if not alone.shown:
        told.append("that a head with a high score matters: the best induction head alone is not shown to")
    if summary.mean(TWO, "induction_heads") > summary.settings.heads - 0.5:
        told.append(
            "what some heads of layer 1 do that others don't: nearly all of them are induction heads, so without all "
            "of the kind the whole layer is out, and the least head of that layer, the control, is of the kind as well"
        )
    told.append(
        "when, or whether, induction heads form in language models: the rows are nothing but repetitions, and the loss "
        "is only taken where what follows is known"
    )
    told.append("that one layer fails for want of depth alone: it also has fewer weights, and one size was tried")
    return [Finding(NO_CONCLUSION, text) for text in told]


_TAKEN = {
    "without_best_previous": "the best previous-token head",
    "without_best_induction": "the best induction head",
    "without_best_both": "the best head of both kinds",
    "without_previous": "all previous-token heads",
    "without_induction": "all induction heads",
    "without_both": "all heads of both kinds",
}
_MEASURES = {
    "loss": "loss where what follows is known (nats)",
    "first_loss": "loss elsewhere (nats)",
    "previous": "best previous-token score",
    "induction": "best induction score",
    "untrained": "best induction score, untrained",
    "sum_of_both": "loss if both kinds' effects added up",
    "zeroed_both": "loss without both kinds, by zeros",
    "without_last_both": "loss without each layer's least head",
} | {key: f"loss without {heads}" for key, heads in _TAKEN.items()}

EXPERIMENT = Experiment(
    name="induction",
    question="When do induction heads form, what do they do, and does one layer have them?",
    task="Models of attention layers only, with rotary positions. A row is a few tokens, then a block of different "
    "tokens again and again; blocks, their length and their start are drawn anew. The loss is taken where the token "
    "has stood in the row before, so that what follows is known. Heads are read by the study's relations Offset(1) and "
    "Match(1); a head is taken out by putting its mean over all test rows and positions in its place.",
    held_out="rows with one eighth of all blocks are kept for curves and for choosing heads, rows with another eighth "
    "for losses, scores and effects.",
    settings=Settings(),
    conditions=(TWO, ONE),
    run=run,
    measures=(
        *(Measure(key, title) for key, title in _MEASURES.items()),
        Measure("accuracy", "right where what follows is known", ".1%"),
        Measure("previous_heads", "previous-token heads of layer 0", ".1f"),
        Measure("induction_heads", "induction heads of layer 1", ".1f"),
        Measure("previous_at", "step: previous-token score passes", ".0f"),
        Measure("induction_at", "step: induction score passes", ".0f"),
    ),
    findings=findings,
    curves=(
        Curve("loss_curve", "loss where what follows is known (nats)", "step", "step"),
        Curve("previous_curve", "best previous-token score", "step", "step"),
        Curve("induction_curve", "best induction score", "step", "step"),
    ),
    comparisons=(
        Comparison("layers", "loss, one layer − two", (TWO, "loss"), (ONE, "loss")),
        Comparison(
            "order", "steps from previous-token to induction", (TWO, "previous_at"), (TWO, "induction_at"), ".1f"
        ),
        *(Comparison(key, f"without {heads}", (TWO, "loss"), (TWO, key)) for key, heads in _TAKEN.items()),
        Comparison("control", "best of both − least of both", (TWO, "without_last_both"), (TWO, "without_best_both")),
        Comparison("joint", "both kinds − sum of each", (TWO, "sum_of_both"), (TWO, "without_both")),
    ),
    panels=(
        Lines("Loss over training", ("loss_curve",)),
        Lines("Scores over training, two layers", ("previous_curve", "induction_curve"), (TWO,)),
        Dots(
            "Two layers: loss without heads",
            ("loss", "without_last_both", *_TAKEN),
            (TWO,),
        ),
        Lines("Induction score over training", ("induction_curve",)),
    ),
    cost=lambda name: 1.0 if name == TWO else 0.5,
)
