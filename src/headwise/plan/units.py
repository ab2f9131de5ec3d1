"""Bytes read and written as people do: ``24GiB`` in, ``24.00 GiB`` out. No float is involved on the way in."""

from __future__ import annotations

import re
from fractions import Fraction

from headwise.plan.errors import PlanError, shown

__all__ = ["bytes_text", "count_text", "parse_bytes", "parse_tokens", "percent_text", "seconds_text"]

_BINARY = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS = "KiB, MiB, GiB, TiB (times 1,024) and KB, MB, GB, TB (times 1,000)"
_SIZE = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,18}))?\s*([A-Za-z]*)", re.ASCII)
_MOST = 1 << 60  # an exbibyte; what is larger is a slip
_LEAST_BARE = 1 << 20  # what is written without a unit and is smaller was meant in another one
_BITS = re.compile(r"[A-Za-z]*[A-Z][A-Za-z]*b")  # Gb is a gigabit
_TOKENS = re.compile(r"(-?[0-9]{1,18})([kKmM]?)", re.ASCII)


def parse_bytes(value: str | int, name: str) -> int:
    """The bytes that ``24GiB``, ``80GB``, ``1.5 MiB`` or a plain number stand for.

    Args:
        value: KiB, MiB, GiB and TiB are powers of two; KB, MB, GB and TB powers of ten; without a unit, bytes, of
            which text must name a million or none.
        name: the option, for messages.

    Raises:
        PlanError: it is no such thing, no whole number of bytes, or lacks a unit.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        size = Fraction(value)
    else:
        match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
        unit = None if match is None else (_BINARY | _DECIMAL).get(match[3].lower() or "b")
        if match is None or unit is None or _BITS.fullmatch(match[3]):
            raise _refuse(value, name)
        size = Fraction(f"{match[1]}.{match[2] or 0}") * unit
        if not match[3] and 0 < size < _LEAST_BARE:
            meant = match[0].strip()
            raise PlanError(
                f"{name}: expected a size with its unit, got {shown(value)}; did you mean {meant}GiB? {meant}B is so "
                "many bytes"
            )
    if size.denominator != 1 or not 0 <= size <= _MOST:
        raise _refuse(value, name)
    return int(size)


def parse_tokens(value: str, name: str) -> int:
    """The tokens that ``8192``, ``8k`` or ``1m`` stand for; k is 1,024 and m 1,024 k, as model cards count.

    Raises:
        PlanError: it is no such thing.
    """
    match = _TOKENS.fullmatch(value.strip())
    if match is None:
        raise PlanError(f"{name}: expected a number of tokens, such as 8192, 8k (8 x 1,024) or 1m, got {shown(value)}")
    return int(match[1]) << {"": 0, "k": 10, "m": 20}[match[2].lower()]


def bytes_text(size: int) -> str:
    """``1.50 GiB``: in the largest binary unit that leaves at least 1; whole bytes below KiB."""
    for power in range(8, 0, -1):
        if size >= 1 << 10 * power:
            return f"{_short(Fraction(size, 1 << 10 * power))} {'KMGTPEZY'[power - 1]}iB"
    return f"{size:,} B"


def count_text(number: int) -> str:
    """``1.05 T``: a count from a million on in three digits or so."""
    if number >= 10**33:
        digits = str(number)
        return f"{digits[0]}.{digits[1:3]}e{len(digits) - 1}"
    for power in range(10, 1, -1):
        if number >= 10 ** (3 * power):
            return f"{_short(Fraction(number, 10 ** (3 * power)))} {'kMGTPEZYRQ'[power - 1]}"
    return f"{number:,}"


def percent_text(part: Fraction) -> str:
    """``3.125 %``, ``100 %``: at most three places, no zeros behind them."""
    return f"{_exact(part * 100, 3).rstrip('0').rstrip('.')} %"


def seconds_text(seconds: float) -> str:
    """``1.50 ms``."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= unit:
            return f"{seconds / unit:,.2f} {name}"
    return f"{seconds / 1e-9:.2f} ns"


def _short(number: Fraction) -> str:
    """Two places; none for numbers of four digits and more."""
    return _exact(number, 2) if number < 1000 else f"{round(number):,}"


def _exact(number: Fraction, places: int) -> str:
    """Rounded to that many places, however large it is: a float would lose digits, or overflow."""
    scaled = round(number * 10**places)
    whole, rest = divmod(abs(scaled), 10**places)
    return f"{'-' if scaled < 0 else ''}{whole:,}.{rest:0{places}}"


def _refuse(value: object, name: str) -> PlanError:
    return PlanError(
        f"{name}: expected a size in whole bytes, such as 24GiB or 80GB, got {shown(value)}; units are B, {_UNITS}"
    )
