"""What is asked of a comparison of layouts, and what of it is refused before any work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwise.bench.layouts.costs import Cost, Load
from headwise.bench.layouts.specs import LayoutSpec
from headwise.errors import UserError
from headwise.plan.units import bytes_text

__all__ = ["DTYPES", "Settings", "check_memory", "needed_bytes"]

DTYPES = ("float32", "bfloat16", "float16")
_SHARE = 0.5  # of the memory that is free


@dataclass(frozen=True)
class Settings:
    """One comparison.

    Attributes:
        specs: the layouts; the first one is what others are compared with.
        load: batch, context and dtype.
        backend: of headwise attention; None: chosen by each call.
        rounds: how many times everything is timed.
        seed: of weights and activations.
        memory: whether peak memory is taken, for which processes start one after another.
        like: the model whose sizes are taken; None: sizes were given.
        notes: what has to be said of it.
    """

    specs: tuple[LayoutSpec, ...]
    load: Load
    backend: str | None = None
    rounds: int = 15
    seed: int = 0
    memory: bool = True
    like: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        load = self.load
        if len(self.specs) < 2 and not any(spec.grouped for spec in self.specs):
            raise UserError(
                f"--layouts: expected something to compare {self.specs[0].name} with, got it alone; name another "
                "layout, such as mqa"
            )
        if load.batch < 1:
            raise UserError(f"--batch: expected at least 1 sequence, got {load.batch}")
        if load.context < 2:
            raise UserError(f"--context: expected at least 2 tokens, the last of which is decoded, got {load.context}")
        if load.dtype not in DTYPES:
            raise UserError(f"--dtype: expected {', '.join(DTYPES[:-1])} or {DTYPES[-1]}, got {load.dtype[:60]!r}")
        if not 5 <= self.rounds <= 10_000:
            raise UserError(
                f"--rounds: expected 5, of which there are quartiles, to 10,000, which take hours, got {self.rounds}"
            )

    def as_dict(self) -> dict[str, Any]:
        """For the record."""
        first = self.specs[0]
        return {
            "layouts": [spec.name for spec in self.specs],
            "width": first.width,
            "like": self.like,
            "batch": self.load.batch,
            "context": self.load.context,
            "dtype": self.load.dtype,
            "backend": self.backend,
            "rounds": self.rounds,
            "seed": self.seed,
            "layers": 1,
        }


def check_memory(settings: Settings, costs: Sequence[Cost], available: int | None) -> None:
    """Refuse what this machine has no memory for.

    Raises:
        UserError: more than half of what is free would be needed.
    """
    needed = needed_bytes(settings, costs)
    if available is not None and needed > _SHARE * available:
        load = settings.load
        raise UserError(
            f"--context: expected caches and activations in at most half of the {bytes_text(available)} that are free, "
            f"got about {bytes_text(needed)} for {len(settings.specs)} layouts at batch {load.batch}, context "
            f"{load.context:,} in {load.dtype}; ask for a shorter --context, a smaller --batch or fewer --layouts"
        )


def needed_bytes(settings: Settings, costs: Sequence[Cost]) -> int:
    """About what is held at once: all weights and caches, and the activations of the largest prefill.

    Those are, for every token, input and output, queries, keys and values of every head, repeated ones among them, and
    the heads' outputs; twice, since some are laid out anew on the way.
    """
    held = sum(
        cost.parameters_total * cost.item_bytes + cost.planned * (2 if spec.grouped else 1)
        for spec, cost in zip(settings.specs, costs, strict=True)
    )
    tokens = settings.load.batch * settings.load.context
    widest = max(2 * spec.width + 4 * spec.heads * (spec.head_dim + spec.rope) for spec in settings.specs)
    return held + 2 * tokens * widest * settings.load.item_bytes
