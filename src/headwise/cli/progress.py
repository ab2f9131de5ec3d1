"""The progress bar of a long command, on standard error, with the time left."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["Bar"]


class Bar:
    """Shows stages and the share of the planned work that is done; silent where standard error is no terminal but for
    one line per stage."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._task = self._bar.add_task("", total=None)
        self._planned = 0.0

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def plan(self, tokens: float) -> None:
        """More work has become known, in tokens of one forward pass."""
        self._planned += tokens
        self._bar.update(self._task, total=self._planned)

    def stage(self, text: str) -> None:
        """What is being done now."""
        self._bar.update(self._task, description=text)
        if not self._console.is_terminal:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def advance(self, tokens: float) -> None:
        """So much of it is done."""
        self._bar.advance(self._task, tokens)
