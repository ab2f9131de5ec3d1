"""How KV heads are merged: a method and what helps it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headwise.errors import UserError
from headwise.surgery.sharing.methods import METHODS

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """How heads are merged.

    Attributes:
        method: ``pca`` (default), ``aligned``, ``mean`` or ``first``, see :mod:`headwise.surgery.sharing.methods`.
        grouping: ``chosen`` (those that lose least together) or ``adjacent``; None: chosen where there is calibration
            text and the method is none of the baselines ``mean`` and ``first``.
        refit: whether the output projection is fitted to the original's outputs by least squares; None: as above.
        steps: of the fit of all four projections of a layer, 0 for none; None: 100 for ``pca``, else 0.
        rate: of that fit, as a share of a projection's root mean square.
        seed: of the order of rows in it.
    """

    method: str = "pca"
    grouping: str | None = None
    refit: bool | None = None
    steps: int | None = None
    rate: float = 0.02
    seed: int = 0

    def settled(self) -> Recipe:
        """The recipe with nothing left open.

        Raises:
            UserError: an unknown name, or a number that makes no sense.
        """
        if self.method not in METHODS:
            raise UserError(f"convert: expected method to be one of {', '.join(METHODS)}, got {self.method!r}")
        if self.grouping not in (None, "chosen", "adjacent"):
            raise UserError(f"convert: expected grouping to be chosen or adjacent, got {self.grouping!r}")
        if (self.steps or 0) < 0 or not self.rate > 0:
            raise UserError(f"convert: expected steps from 0 and a rate above 0, got {self.steps} and {self.rate}")
        careful = self.method in ("pca", "aligned")
        return replace(
            self,
            grouping=self.grouping or ("chosen" if careful else "adjacent"),
            refit=careful if self.refit is None else self.refit,
            steps=(100 if self.method == "pca" else 0) if self.steps is None else self.steps,
        )

    @property
    def needs_text(self) -> bool:
        """Whether there is anything to calibrate. The recipe is settled."""
        return self.method in ("pca", "aligned") or self.grouping == "chosen" or bool(self.refit) or bool(self.steps)
