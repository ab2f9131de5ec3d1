"""How much a reshaped model is trained, and how."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from headwise.errors import UserError

__all__ = ["Settings"]

_WORDS = {
    "params": ("attention", "all"),
    "loss": ("kl", "ce"),
    "precision": ("float32", "bfloat16"),
    "attention": ("auto", "sdpa", "headwise"),
}
_RATE, _FULL_RATE_TOKENS = 2e-4, 4_000
_AT_LEAST_ONE = ("batch", "at_once", "points", "save_every")


@dataclass(frozen=True)
class Settings:
    """Settings of :func:`headwise.surgery.uptrain.uptrain`.

    Attributes:
        tokens: how many are trained on; rounded up to whole batches.
        params: ``attention`` (the projections of the heads only) or ``all``.
        loss: ``kl`` (Kullback-Leibler divergence from the teacher's distribution over the whole vocabulary; Hinton et
            al. 2015) or ``ce`` (cross entropy of the text itself).
        rate: the highest learning rate; None: 2e-4, and less in proportion for fewer than 4,000 tokens, see
            :attr:`peak`.
        temperature: of both distributions under ``kl``; the loss is multiplied by its square.
        batch: rows in one step, over all ranks.
        length: tokens per row.
        at_once: rows that pass through the model together on one rank; the others of the batch follow.
        warmup: share of the steps in which the rate rises to its highest.
        clip: largest norm of the gradient over all trained weights.
        weight_decay: of AdamW (Loshchilov and Hutter 2019).
        betas: of AdamW.
        held_out: rows that the curve is measured on, spread over as many documents as there are.
        points: how many times it is measured after the start.
        save_every: steps between two saved states.
        precision: ``bfloat16`` runs steps under autocast; weights, moments and measurements keep their dtype.
        attention: which implementation runs: ``sdpa`` (PyTorch's, with gradients of its own), ``headwise``, or ``auto``
            for PyTorch's where it computes all that the architecture asks for.
        seed: of the choice and order of documents.
    """

    tokens: int
    params: str = "attention"
    loss: str = "kl"
    rate: float | None = None
    temperature: float = 1.0
    batch: int = 8
    length: int = 256
    at_once: int = 2
    warmup: float = 0.05
    clip: float = 1.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    held_out: int = 16
    points: int = 4
    save_every: int = 10
    precision: str = "float32"
    attention: str = "auto"
    seed: int = 0

    @classmethod
    def of(cls, tokens: int, options: Mapping[str, Any]) -> Settings:
        """Settings from options by name.

        Raises:
            UserError: there is no setting of a name, or its value makes no sense.
        """
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(options) - set(known)):
            raise UserError(f"uptrain: expected settings out of {', '.join(known)}, got {', '.join(unknown)}")
        return cls(tokens=tokens, **options)

    def __post_init__(self) -> None:
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise UserError(f"uptrain: expected {name} to be {' or '.join(words)}, got {getattr(self, name)!r}")
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise UserError(f"uptrain: expected {name} of at least 1, got {getattr(self, name)}")
        for name in ("rate", "temperature", "clip"):
            value = self.peak if name == "rate" else getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise UserError(f"uptrain: expected {name} above 0, got {value}")
        self._check_amounts()

    def _check_amounts(self) -> None:
        if self.length < 16:
            raise UserError(f"uptrain: expected rows of at least 16 tokens, got length {self.length}")
        if self.held_out < 2:
            raise UserError(f"uptrain: expected at least 2 held-out rows, got {self.held_out}")
        if not 0 <= self.warmup < 1:
            raise UserError(f"uptrain: expected warmup to be a share of the steps from 0 to 1, got {self.warmup}")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise UserError(f"uptrain: expected weight_decay of at least 0, got {self.weight_decay}")
        if self.tokens < self.step_tokens:
            raise UserError(
                f"uptrain: expected at least one batch, {self.batch} rows of {self.length} tokens "
                f"({self.step_tokens:,}), got {self.tokens:,} tokens; ask for more, or for smaller batches"
            )

    @property
    def step_tokens(self) -> int:
        """Tokens of one step."""
        return self.batch * self.length

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return -(-self.tokens // self.step_tokens)

    @property
    def peak(self) -> float:
        """The highest learning rate.

        A step of AdamW moves every weight by about the rate, however little the gradient says, and few steps, or small
        ones, can't make up for what that breaks at first. So without a rate that was asked for a run of less text moves
        as much less. Two steps on 512 tokens each, for the demo model without two of its 90 KV groups, raise the
        divergence from 0.041 to 0.357 nats at 1e-3, and lower it to 0.037 at the 5e-5 that this gives; docs/reshape.md
        has longer runs at 1e-3 and at 2e-4.
        """
        if self.rate is not None:
            return self.rate
        return _RATE * min(1.0, self.steps * self.step_tokens / _FULL_RATE_TOKENS)

    @property
    def measured_steps(self) -> tuple[int, ...]:
        """After how many steps the curve is measured: at the start, evenly between, at the end."""
        return tuple(sorted({round(self.steps * point / self.points) for point in range(self.points + 1)}))

    def as_dict(self) -> dict[str, Any]:
        """As plain values that JSON can hold."""
        return asdict(self) | {"rate": self.peak, "betas": list(self.betas)}
