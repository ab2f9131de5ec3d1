"""The knobs of a study, with defaults that suit a small model on a laptop."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headwise.errors import UserError


@dataclass(frozen=True)
class Settings:
    """How much is read, and how sure a finding must be.

    Attributes:
        seed: of everything that is drawn; the same seed gives the same study.
        documents: pieces of text on which heads are scored.
        length: tokens per piece, at most.
        repeated: samples of random tokens repeated twice. Scores on them differ from draw to draw (0.08 between samples
            for some heads of the demo model), and they are short, so many are read.
        unrelated: samples whose second half repeats nothing, the control.
        null_draws: models with random weights; None: so many that at least 1,500 random heads stand against the
            model's heads (at least 3, at most 128).
        null_documents: pieces of text that each random model reads.
        null_repeated: repeated samples that each random model reads.
        effect_documents: documents (and repeated samples) on which effects are measured, none of them used for scoring
            where there are enough.
        effect_length: tokens per piece there.
        leaders: how many heads of each score are ablated together.
        singles: how many of them are ablated one by one.
        controls: random draws per joint set.
        level: false discovery rate.
        margin: how far above every null a score must lie to count as a finding, in shares of attention mass. With
            many tokens even a hundredth is significant, and means nothing.
        batch: rows run side by side.
    """

    seed: int = 0
    documents: int = 24
    length: int = 256
    repeated: int = 64
    unrelated: int = 16
    null_draws: int | None = None
    null_documents: int = 4
    null_repeated: int = 6
    effect_documents: int = 8
    effect_length: int = 64
    leaders: int = 6
    singles: int = 3
    controls: int = 2
    level: float = 0.05
    margin: float = 0.05
    batch: int = 8

    def __post_init__(self) -> None:
        for name in ("documents", "repeated", "unrelated", "null_documents", "null_repeated", "effect_documents"):
            if getattr(self, name) < 2:
                raise UserError(f"study: {name} must be 2 or more, got {getattr(self, name)}; intervals need several")
        for name in ("leaders", "singles", "controls", "batch"):
            if getattr(self, name) < 1:
                raise UserError(f"study: {name} must be 1 or more, got {getattr(self, name)}")
        if not 0 <= self.margin < 1 or not 0 < self.level < 1:
            raise UserError(f"study: margin must be in [0, 1) and level in (0, 1), got {self.margin} and {self.level}")
        for name in ("length", "effect_length"):
            if getattr(self, name) < 16:
                raise UserError(f"study: {name} must be 16 tokens or more, got {getattr(self, name)}")

    def draws_for(self, heads: int) -> int:
        """Random models for a model with this many heads."""
        if self.null_draws is not None:
            return self.null_draws
        return min(128, max(3, -(-1_500 // heads)))

    def as_dict(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)
