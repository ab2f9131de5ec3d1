"""Heads that share keys and values: what the loss pays for a smaller cache, at equal width and at equal parameters.

Four ways to hold keys and values: one KV head for each query head (MHA), one for four (GQA), one for all (MQA), and a
latent from which all are read (MLA), here as large as GQA's keys and values. At equal width all sizes are those of MHA:
GQA and MQA have fewer parameters then, MLA has a few more, since its queries are longer. At equal parameters the hidden
layer of their MLPs is as wide as makes the totals agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.bench.experiments.characters import draw_stretches, loss_of, read_characters
from headwise.bench.experiments.experiment import (
    FOUND,
    NO_CONCLUSION,
    Comparison,
    Curve,
    Dots,
    Experiment,
    Finding,
    Lines,
    Measure,
    Numbers,
    Plane,
)
from headwise.bench.experiments.findings import compare, row_text
from headwise.bench.experiments.summary import Summary
from headwise.bench.experiments.training import Decoder, generator_of, parameter_count, seeded, train_decayed
from headwise.cache import DenseCache, LatentCache
from headwise.nn import GroupedQueryAttention, LatentAttention, RotaryEmbedding

__all__ = ["EXPERIMENT", "Settings", "build", "cache_bytes", "condition", "findings", "run", "train_on_text"]

MHA, GQA, MQA, MLA = "MHA", "GQA", "MQA", "MLA"
WIDTH, PARAMETERS = "equal width", "equal parameters"
OTHERS, EQUALS = (GQA, MQA, MLA), (WIDTH, PARAMETERS)


@dataclass(frozen=True)
class Settings:
    """Sizes.

    Attributes:
        width: of the model.
        layers: how many.
        heads: query heads of each.
        kv_heads: of GQA.
        latent: of MLA.
        rotary: features of MLA's keys that are turned, shared by all heads; the latent and they make its cache.
        mlp: hidden layer of the MLPs at equal width.
        length: characters that are read at once.
        batch: stretches of a step.
        steps: of training.
        rate: the highest learning rate, for all.
        points: how many times the curve is measured after the start.
        rows: stretches of validation, and of the test.
        margin: a difference of losses that is called none, in nats.
    """

    width: int = 64
    layers: int = 1
    heads: int = 8
    kv_heads: int = 2
    latent: int = 24
    rotary: int = 8
    mlp: int = 128
    length: int = 48
    batch: int = 12
    steps: int = 150
    rate: float = 1e-2
    points: int = 5
    rows: int = 128
    margin: float = 0.01


def condition(kind: str, equal: str = WIDTH) -> str:
    """The name of a condition; MHA is what the others are made equal to."""
    return MHA if kind == MHA else f"{kind}, {equal}"


def build(name: str, seed: int, settings: Settings) -> Decoder:
    """The model of a condition."""
    if PARAMETERS not in name:
        return _build(name, settings.mlp, seed, settings)
    wanted, own = (parameter_count(_build(each, settings.mlp, seed, settings)) for each in (MHA, name))
    unit = settings.layers * (2 * settings.width + 1)  # what one more hidden feature in every MLP costs
    return _build(name, settings.mlp + round((wanted - own) / unit), seed, settings)


def _build(name: str, mlp: int, seed: int, settings: Settings) -> Decoder:
    count = read_characters().count
    with seeded(seed, "weights"):
        attentions = [_attention(name[:3], settings) for _ in range(settings.layers)]
        return Decoder(count, count, attentions, mlp=mlp)


def _attention(kind: str, settings: Settings) -> nn.Module:
    width, heads = settings.width, settings.heads
    head_dim = width // heads
    if kind == MLA:
        return LatentAttention(
            width,
            heads,
            latent_dim=settings.latent,
            nope_head_dim=head_dim,
            rope_head_dim=settings.rotary,
            value_head_dim=head_dim,
        )
    kv_heads = {MHA: heads, GQA: settings.kv_heads, MQA: 1}[kind]
    return GroupedQueryAttention(width, heads, kv_heads, rope=RotaryEmbedding(head_dim))


def cache_bytes(model: Decoder, tokens: Tensor) -> int:
    """What the caches of all layers hold after a row ``[1, L]``, with room for no more than it."""
    caches = [_cache_of(attention, tokens.shape[1]) for attention in model.attentions]
    with torch.no_grad():
        hidden = model.embed(tokens)
        for attention, cache in zip(model.attentions, caches, strict=True):
            attention(hidden, causal=True, cache=cache)
    return sum(cache.nbytes for cache in caches)


def _cache_of(attention: Any, capacity: int) -> DenseCache | LatentCache:
    if isinstance(attention, LatentAttention):
        return LatentCache(1, capacity, attention.latent_dim, attention.rope_head_dim)
    return DenseCache(1, attention.num_kv_heads, capacity, attention.head_dim)


def run(name: str, seed: int, settings: Settings) -> Numbers:
    """The numbers of one condition and seed."""
    model = build(name, seed, settings)
    curves, train_loss = train_on_text(model, seed, settings)
    test = draw_stretches(read_characters().test, settings.rows, settings.length, generator_of(seed, "test"))
    with torch.no_grad():
        loss = loss_of(model, test).item()
    return {
        **curves,
        "loss": loss,
        "train_loss": train_loss,
        "cache": cache_bytes(model, test[:1, :-1]) / settings.length,
        "parameters": parameter_count(model),
        "mlp": model.mlps[0][1].out_features,  # type: ignore[index]
    }


def train_on_text(model: Decoder, seed: int, settings: Settings) -> tuple[dict[str, list[float]], float]:
    """Train in place.

    Returns:
        The curve on validation stretches, and the training loss over the last tenth of the steps.
    """
    text, steps = read_characters(), settings.steps
    validation = draw_stretches(text.validation, settings.rows, settings.length, generator_of(seed, "validation"))
    generator, every = generator_of(seed, "training"), max(1, steps // settings.points)
    curve: dict[str, list[float]] = {"step": [], "loss_curve": []}

    def measure(step: int) -> None:
        if step % every == 0:
            curve["step"].append(step)
            curve["loss_curve"].append(loss_of(model, validation).item())

    def step_loss(step: int) -> Tensor:
        return loss_of(model, draw_stretches(text.training, settings.batch, settings.length, generator))

    return curve, train_decayed(model, step_loss, steps=steps, rate=settings.rate, on_step=measure)


def findings(summary: Summary) -> list[Finding]:
    """What follows and what does not."""
    return [_about_caches(summary), *_about_losses(summary), *_limits(summary)]


def _about_caches(summary: Summary) -> Finding:
    whole = summary.mean(MHA, "cache")
    told = ", ".join(
        f"{kind} {cache:.0f} (1/{whole / cache:.3g})"
        for kind in OTHERS
        for cache in [summary.mean(condition(kind), "cache")]
    )
    return Finding(FOUND, f"bytes that a cached character takes: MHA {whole:.0f}, {told}")


def _about_losses(summary: Summary) -> list[Finding]:
    margin = summary.settings.margin
    return [
        compare(
            summary.difference(f"{first} {second} {equal}"),
            higher=f"{equal}: {second} has the higher held-out loss ({second} − {first})",
            lower=f"{equal}: {second} has the lower held-out loss ({second} − {first})",
            none=f"{equal}: no difference of held-out losses is shown ({second} − {first})",
            same=f"{equal}: held-out losses differ by less than {margin} nats ({second} − {first})",
            margin=margin,
        )
        for equal in EQUALS
        for first, second in _PAIRS
    ]


def _limits(summary: Summary) -> list[Finding]:
    told = [text for kind in OTHERS if (text := _about_parameters(summary, kind))]
    start, end = (row_text(summary.row(MHA, key)) for key in ("train_loss", "loss"))
    told += [
        f"what a long training gives: {summary.settings.steps} steps end at a training loss of {start} and a held-out "
        f"loss of {end} with MHA, and one learning rate serves all",
        "anything about large models: keys and values of a head are few numbers here, and the text is short",
        "that other texts give the same: intervals are over seeds, all of which read the same topics",
        "that equal parameters are equal work: what attention saves in parameters goes to the MLPs",
    ]
    return [Finding(NO_CONCLUSION, text) for text in told]


def _about_parameters(summary: Summary, kind: str) -> str:
    """Whether what is seen at equal width is the sharing's or the parameters'."""
    width, parameters = (summary.difference(f"{MHA} {kind} {equal}") for equal in EQUALS)
    if not (width.shown and width.mean > 0):
        return ""
    if parameters.shown and parameters.mean > 0:
        return f"{kind}: that parameters alone explain the loss at equal width: it is higher at equal ones as well"
    own, whole = (summary.mean(name, "parameters") for name in (condition(kind), MHA))
    return (
        f"{kind}: that sharing as such costs loss: at equal width {kind} has {own:,.0f} parameters and MHA "
        f"{whole:,.0f}, and at equal ones it is not shown to be behind"
    )


_PAIRS = ((MHA, GQA), (MHA, MQA), (MHA, MLA), (GQA, MLA))

EXPERIMENT = Experiment(
    name="sharing",
    question="What does the loss pay for a smaller cache: MHA, GQA, MQA and MLA?",
    task="The next character of Python's help topics, by one layer with an MLP, trained from scratch: eight query "
    "heads with rotary positions, with eight KV heads (MHA), two (GQA), one (MQA), or a latent of GQA's size in the "
    "cache (MLA). equal width: all sizes as with MHA. equal parameters: the MLP's hidden layer is as wide as makes the "
    "totals agree. All read the same stretches in the same order, at one learning rate.",
    held_out="a quarter of all topics, chosen by a hash of their text: half of them for the curve, half for the test. "
    "Nothing is chosen by either.",
    settings=Settings(),
    conditions=(MHA, *(condition(kind, equal) for equal in EQUALS for kind in OTHERS)),
    run=run,
    measures=(
        Measure("loss", "held-out loss (nats per character)"),
        Measure("train_loss", "training loss (nats per character)"),
        Measure("cache", "cache (bytes per character)", ".0f"),
        Measure("parameters", "parameters", ",.0f"),
        Measure("mlp", "hidden layer of the MLP", ".0f"),
    ),
    findings=findings,
    curves=(Curve("loss_curve", "held-out loss (nats per character)", "step", "step"),),
    comparisons=tuple(
        Comparison(
            f"{first} {second} {equal}",
            f"{equal}: held-out loss, {second} − {first}",
            (condition(first, equal), "loss"),
            (condition(second, equal), "loss"),
        )
        for equal in EQUALS
        for first, second in _PAIRS
    ),
    panels=(
        Plane("Equal width", "cache", "loss", (MHA, *(condition(kind, WIDTH) for kind in OTHERS)), log_x=True),
        Plane(
            "Equal parameters", "cache", "loss", (MHA, *(condition(kind, PARAMETERS) for kind in OTHERS)), log_x=True
        ),
        Dots("Held-out loss", ("loss",)),
        Lines("Held-out loss over training", ("loss_curve",)),
    ),
    inputs=lambda: {"corpus": read_characters().digest},
)
