from __future__ import annotations

from tests.fixtures import demo, one_thread

__all__ = ["demo", "one_thread"]
