"""What `pruning` compares, and how large it is."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.bench.experiments import sharing

__all__ = ["RANDOM", "TIMES", "TRAINED", "Settings"]

TRAINED, RANDOM = "trained", "random weights"
TIMES = ("whole_ms", "zeroed_ms", "removed_ms", "zeroed_time", "removed_time")


@dataclass(frozen=True)
class Settings(sharing.Settings):
    """Sizes: those of the model and its training, and these.

    Attributes:
        ranking: stretches by which heads are ranked.
        limit: from which rise on the loss has moved, in nats.
        rounds: of timing.
    """

    layers: int = 2
    rows: int = 64
    ranking: int = 32
    limit: float = 0.05
    rounds: int = 15
