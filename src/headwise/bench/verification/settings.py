"""The knobs of a verification, with defaults that suit a small model on two cores."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headwise.errors import UserError

__all__ = ["Settings"]

WARMUP = 2  # rounds that run untimed before


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Attributes:
        seed: of everything that is drawn: rows, random tokens, resamples.
        tokens: tokens of held-out text from each corpus.
        length: tokens per row; cached decoding and cache bytes are looked at on rows of this length, too.
        copies: samples of random tokens repeated twice.
        speed: whether latency and peak memory are measured.
        batches: sequences side by side, for latency.
        contexts: tokens of each, for latency.
        rounds: how many times each model decodes, by turns; 5 are the fewest that can show that one is faster, if it
            wins them all.
        prefill_rounds: how many times each prefills, which takes longer.
        prefill_tokens: prefill is timed where batch times context are no more than this. A model of 135 million
            weights takes seconds for 4,096 tokens on two cores, and minutes for eight times 8,192.
    """

    seed: int = 0
    tokens: int = 8_192
    length: int = 256
    copies: int = 32
    speed: bool = True
    batches: tuple[int, ...] = (1, 8)
    contexts: tuple[int, ...] = (512, 4_096, 8_192)
    rounds: int = 9
    prefill_rounds: int = 5
    prefill_tokens: int = 4_096

    def __post_init__(self) -> None:
        least = {"tokens": 1, "length": 16, "copies": 2, "rounds": 5, "prefill_rounds": 5, "prefill_tokens": 1}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise UserError(f"verify: expected {name} of at least {smallest}, got {getattr(self, name)}")
        if not self.batches or min(self.batches) < 1:
            raise UserError(f"verify: expected batches of at least 1 sequence, got {_listed(self.batches)}")
        if not self.contexts or min(self.contexts) <= self.steps:
            raise UserError(
                f"verify: expected contexts of more than {self.steps} tokens, the last of which are decoded one by "
                f"one, got {_listed(self.contexts)}; ask for longer contexts or fewer rounds"
            )

    @property
    def steps(self) -> int:
        """Tokens that are decoded for one time: each round one, and the untimed ones before."""
        return WARMUP + self.rounds

    def as_dict(self) -> dict[str, Any]:
        """For the record."""
        return asdict(self)


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers)) or "none"
