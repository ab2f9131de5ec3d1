"""Numbers with a sign, as every table of the commands that reshape a model writes them."""

from __future__ import annotations

__all__ = ["signed"]


def signed(number: float, form: str) -> str:
    """``−0.123``, ``+4.5%``, ``0.000``: with a true minus, and without a sign where all that is shown is zero.

    Args:
        number: what to show.
        form: as ``format`` takes it, for instance ``+.3f``.
    """
    text = format(number, form)
    if text[0] not in "+-":
        return text
    if not text.strip("+-0.%"):
        return text[1:]
    return text.replace("-", "−", 1) if text[0] == "-" else text
