"""Progress of a long computation, counted in tokens that pass through the model.

The computation only knows this interface; how it is shown is the command line's business.
"""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """What a long computation tells about itself."""

    def plan(self, tokens: float) -> None:
        """More work has become known, in tokens of one forward pass."""

    def stage(self, text: str) -> None:
        """What is being done now."""

    def advance(self, tokens: float) -> None:
        """So much of it is done."""


class Silent:
    """Shows nothing."""

    def plan(self, tokens: float) -> None: ...

    def stage(self, text: str) -> None: ...

    def advance(self, tokens: float) -> None: ...
