"""Which copies of a cache there are: deep ones, that have memory of their own."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["DeepCopies"]


class DeepCopies:
    """What writes to its memory in place: a shallow copy would write to the same, and each would read the other's."""

    def __copy__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__}: expected copy.deepcopy, got copy.copy; two caches can't write the same memory"
        )
