"""Reading JSON that someone else wrote: one object in UTF-8, each key once, bounded size, depth and digits.

``NaN`` and ``Infinity`` are no JSON, yet real configs hold them in fields that are none of the planner's
(``time_step_limit``), since Python writes them so. They are read, and refused by whoever asks for that field.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from headwise.plan.errors import PlanError

__all__ = ["MOST_BYTES", "parse_object", "read_object"]

# The largest config.json that is known has some hundred kilobytes, the largest index of weights some megabytes.
MOST_BYTES = 32 << 20
MOST_DIGITS = 40
_MARK = b"\xef\xbb\xbf"  # editors of Windows put it in front of UTF-8; it means nothing


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The object in a file.

    Raises:
        PlanError: the file can't be read, is too large, or holds no such object.
    """
    file = Path(path)
    try:
        if not stat.S_ISREG(os.stat(file).st_mode):  # opening a pipe would wait for someone to write
            raise PlanError(f"{file}: expected a JSON file, got no regular file")
        with open(file, "rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "its name holds what no file name can"
        raise PlanError(f"{file}: expected a JSON file, got none that can be read ({why})") from None
    return parse_object(data, str(file))


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """The object that ``data`` holds.

    Args:
        data: what was read, no more than ``MOST_BYTES`` of it.
        where: its name, for messages.

    Raises:
        PlanError: it isn't UTF-8 or JSON, no object, nested too deeply, or has a key twice or too many digits.
    """
    if len(data) > MOST_BYTES:
        raise PlanError(f"{where}: expected at most {MOST_BYTES} bytes of JSON, got more")
    data = data.removeprefix(_MARK)
    if not data.strip():
        raise PlanError(f"{where}: expected JSON, got an empty file")
    try:
        parsed = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_once,
            parse_int=_whole,
        )
    except UnicodeDecodeError as error:
        raise PlanError(f"{where}: expected JSON in UTF-8, got the byte {data[error.start]:#04x} in it") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise PlanError(f"{where}: expected JSON, got a mistake in {place} ({error.msg})") from None
    except RecursionError:
        raise PlanError(f"{where}: expected JSON, got lists or objects nested too deeply") from None
    except _WrongError as wrong:
        raise PlanError(f"{where}: expected {wrong}") from None
    if not isinstance(parsed, dict):
        raise PlanError(f"{where}: expected an object in braces, got {_KINDS.get(type(parsed), 'something else')}")
    return parsed


_KINDS = {list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false", type(None): "null"}


class _WrongError(Exception):
    """What json itself would let pass."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _WrongError(f"each key once, got {key[:60]!r} again")
        found[key] = value
    return found


def _whole(digits: str) -> int:
    # Python itself refuses to read or print numbers of more than some thousand digits.
    count = len(digits.lstrip("-"))
    if count > MOST_DIGITS:
        raise _WrongError(f"numbers of at most {MOST_DIGITS} digits, got one of {count}")
    return int(digits)
