"""Limits that make a verification a check."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headwise.bench.verification.quality import Quality
from headwise.bench.verification.result import Verification
from headwise.errors import UserError

__all__ = ["Limits", "Shortfall", "find_shortfalls"]

_AGREEMENT = "top-1 agreement"


@dataclass(frozen=True)
class Limits:
    """What B may lose at most, in the mean over the documents of every corpus; None: no such limit.

    Attributes:
        max_loss_increase: loss of B minus loss of A, in nats.
        min_agreement: share of positions where both have their largest logit at the same token.
        max_kl: KL(A || B) in nats.

    Raises:
        UserError: a limit is no finite number.
    """

    max_loss_increase: float | None = None
    min_agreement: float | None = None
    max_kl: float | None = None

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            if limit is not None and not math.isfinite(limit):
                raise UserError(f"--{name.replace('_', '-')}: expected a finite number, got {limit}")


@dataclass(frozen=True)
class Shortfall:
    """A limit that was not kept."""

    corpus: str
    what: str
    value: float
    limit: float

    def __str__(self) -> str:
        side = "at least" if self.what == _AGREEMENT else "at most"
        return f"{self.corpus}: expected {self.what} of {side} {self.limit:g}, got {self.value:.4g}"

    def record(self) -> dict[str, Any]:
        """As JSON holds it."""
        return vars(self)


def find_shortfalls(result: Verification, limits: Limits) -> list[Shortfall]:
    """Every limit that some corpus does not keep; none if all are kept."""
    checks: list[tuple[str, float | None, Callable[[Quality], float]]] = [
        ("a loss increase", limits.max_loss_increase, lambda corpus: corpus.loss_difference.value),
        (_AGREEMENT, limits.min_agreement, lambda corpus: corpus.of("agreement").value),
        ("KL", limits.max_kl, lambda corpus: corpus.of("kl").value),
    ]
    found = []
    for what, limit, value_of in checks:
        if limit is None:
            continue
        for corpus in result.corpora:
            value = value_of(corpus)
            if not (value >= limit if what == _AGREEMENT else value <= limit):  # so that NaN falls short
                found.append(Shortfall(corpus.name, what, value, limit))
    return found
