"""In which order heads go, and how many go before the loss has moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headwise.bench.experiments.pruning_removal import Head
from headwise.bench.experiments.training import Decoder

__all__ = ["Rise", "rank", "rank_anew", "rises_of", "within_limit"]

Rise = Callable[[Sequence[Head]], float]  # of the loss, without these heads


def rank(model: Decoder, rise: Rise) -> list[Head]:
    """All heads, the one that costs least alone first."""
    attentions: Sequence[Any] = list(model.attentions)
    heads = [(layer, head) for layer, attention in enumerate(attentions) for head in range(attention.num_heads)]
    return sorted(heads, key=lambda head: rise([head]))


def rank_anew(heads: Sequence[Head], rise: Rise) -> list[Head]:
    """The head that costs least beside those that are gone already, again and again."""
    gone: list[Head] = []
    while len(gone) < len(heads):
        gone.append(min((head for head in heads if head not in gone), key=lambda head: rise([*gone, head])))
    return gone


def rises_of(order: Sequence[Head], rise: Rise) -> list[float]:
    """The rise without the first 0, 1, 2, ... heads of an order."""
    return [0.0, *(rise(order[:count]) for count in range(1, len(order) + 1))]


def within_limit(rises: Sequence[float], limit: float) -> int:
    """How many go before the loss has risen by more than the limit; ``rises`` begins with 0 heads."""
    return next((count - 1 for count, rise in enumerate(rises) if rise > limit), len(rises) - 1)
