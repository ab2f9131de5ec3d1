"""The backends of attention, in the order in which they are tried."""

from headwise.attention.backends.math import MATH
from headwise.attention.backends.native import NATIVE
from headwise.attention.backends.sdpa import SDPA
from headwise.attention.backends.table import Backend, choose_backend

__all__ = ["BACKENDS", "Backend", "choose_backend"]

# The last one can do everything, so a choice always ends.
BACKENDS: tuple[Backend, ...] = (NATIVE, SDPA, MATH)
