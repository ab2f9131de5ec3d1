"""Reading the header of a GGUF file: metadata and the bytes of its tensors, nothing of the tensors themselves.

After the format's description, ``docs/gguf.md`` of ggml (versions 2 and 3, either byte order). The file is someone
else's: each length is held against what is left of the file before anything is read, what isn't needed is skipped
where it lies, and counts have limits far beyond any model, so a damaged or malicious file costs neither memory nor
time.
"""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from headwise.plan.config import LARGEST, MOST_LAYERS
from headwise.plan.errors import PlanError
from headwise.plan.gguf_types import BLOCKS

__all__ = ["Header", "read_header"]

Value: TypeAlias = "int | float | bool | str | tuple[int | float | bool, ...]"

MOST_PAIRS = 1 << 16
MOST_TENSORS = 1 << 20
MOST_STRINGS = 1 << 23
SMALLEST_PAIR, SMALLEST_TENSOR = 13, 24  # bytes, with an empty name and nothing in it
LONGEST_NAME = (1 << 16) - 1
# What is kept of the metadata: texts and lists that could describe an architecture, not templates or vocabularies.
LONGEST_TEXT = 1 << 10
KEPT_TENSOR_NAMES = 256
ALIGNMENT = 32

# Type of a metadata value -> how struct calls it.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of itself.

    Attributes:
        path: the file.
        metadata: numbers, short texts and short lists of numbers, by key.
        tensors: how many tensors it holds.
        tensor_bytes: their bytes, without the padding between them.
        first_block: names of the tensors of block 0, without ``blk.0.``; they tell which projections have a bias.
    """

    path: Path
    metadata: dict[str, Value]
    tensors: int
    tensor_bytes: int
    first_block: frozenset[str]


def read_header(path: str | os.PathLike[str]) -> Header:
    """The header of a GGUF file.

    Raises:
        PlanError: the file can't be read, is no GGUF, is cut short, or holds what no model has.
    """
    file = Path(path)
    try:
        status = os.stat(file)
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for someone to write
            raise PlanError(f"{file}: expected a GGUF file, got no regular file")
        with open(file, "rb") as stream:
            return _Reader(file, stream, status.st_size).header()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "its name holds what no file name can"
        raise PlanError(f"{file}: expected a GGUF file, got none that can be read ({why})") from None


class _Reader:
    """Walks through a header from front to back."""

    def __init__(self, file: Path, stream: BinaryIO, size: int) -> None:
        self.file, self.stream, self.size = file, stream, size
        self.position, self.order, self.strings = 0, "<", 0

    def header(self) -> Header:
        tensors, pairs = self._counts()
        metadata: dict[str, Value] = {}
        for _ in range(pairs):
            self._pair(metadata)
        return self._tensors(tensors, metadata)

    def _counts(self) -> tuple[int, int]:
        if self._take(4) != b"GGUF":
            raise PlanError(f"{self.file}: expected a GGUF file, got one that does not start with the letters GGUF")
        version = self._number("I")
        if not version & 0xFFFF:  # written in the other byte order
            self.order = ">"
            version = int.from_bytes(version.to_bytes(4, "little"), "big")
        if version not in (2, 3):
            raise PlanError(f"{self.file}: expected version 2 or 3 of GGUF, got {version}; convert the model anew")
        tensors, pairs = self._number("Q"), self._number("Q")
        self._limit(tensors, MOST_TENSORS, "tensors")
        self._limit(pairs, MOST_PAIRS, "pairs of metadata")
        self._check_left(tensors * SMALLEST_TENSOR + pairs * SMALLEST_PAIR)
        return tensors, pairs

    def _pair(self, metadata: dict[str, Value]) -> None:
        key, kind = self._name("key of metadata"), self._number("I")
        value = self._value(kind, key, kept=not key.startswith("tokenizer."))
        if key in metadata:
            raise PlanError(f"{self.file}: expected each key of metadata once, got {key[:60]!r} again")
        if value is not None:
            metadata[key] = value

    def _value(self, kind: int, key: str, kept: bool) -> Value | None:
        if kind == _STRING:
            return self._text(kept)
        if kind == _ARRAY:
            return self._array(key, kept)
        return self._scalar(kind, key)

    def _scalar(self, kind: int, key: str) -> int | float | bool:
        if kind not in _NUMBERS:
            raise PlanError(f"{self.file}: expected a known type for {key[:60]!r}, got {kind}; the file may be damaged")
        value: int | float | bool = self._number(_NUMBERS[kind])
        return value

    def _text(self, kept: bool) -> str | None:
        length = self._number("Q")
        if kept and length <= LONGEST_TEXT:
            return self._take(length).decode("utf-8", errors="replace")
        self._skip(length)
        return None

    def _array(self, key: str, kept: bool) -> tuple[int | float | bool, ...] | None:
        kind, count = self._number("I"), self._number("Q")
        if kind == _STRING:
            self._skip_strings(count)
            return None
        if kind not in _NUMBERS:
            raise PlanError(f"{self.file}: expected a list of numbers or texts for {key[:60]!r}, got type {kind}")
        each = struct.calcsize("=" + _NUMBERS[kind])
        if kept and count <= MOST_LAYERS:
            return struct.unpack(f"{self.order}{count}{_NUMBERS[kind]}", self._take(count * each))
        self._skip(count * each)
        return None

    def _skip_strings(self, count: int) -> None:
        self.strings += count
        self._limit(self.strings, MOST_STRINGS, "texts in lists")
        for _ in range(count):
            self._skip(self._number("Q"))

    def _tensors(self, count: int, metadata: dict[str, Value]) -> Header:
        total, end = 0, 0
        first_block: set[str] = set()
        for _ in range(count):
            name, size, offset = self._tensor()
            total, end = total + size, max(end, offset + size)
            if name.startswith("blk.0.") and len(first_block) < KEPT_TENSOR_NAMES:
                first_block.add(name.removeprefix("blk.0."))
        self._check_data(total, end, metadata.get("general.alignment", ALIGNMENT))
        return Header(self.file, metadata, count, total, frozenset(first_block))

    def _tensor(self) -> tuple[str, int, int]:
        """Name, bytes, and where they begin behind the header."""
        name, dimensions = self._name("tensor"), self._number("I")
        self._limit(dimensions, 4, f"dimensions of {name[:60]!r}")
        shape = [self._number("Q") for _ in range(dimensions)]
        kind, offset = self._number("I"), self._number("Q")
        if kind not in BLOCKS:
            raise PlanError(f"{self.file}: expected a known type for tensor {name[:60]!r}, got {kind}")
        block, size = BLOCKS[kind]
        elements = 1
        for extent in shape:
            elements *= extent
            self._limit(elements, LARGEST, f"elements of {name[:60]!r}")
        if (shape[0] if shape else 1) % block:
            raise PlanError(f"{self.file}: expected rows in blocks of {block} for {name[:60]!r}, got {shape[0]}")
        return name, elements // block * size, offset

    def _check_data(self, total: int, end: int, alignment: object) -> None:
        if not isinstance(alignment, int) or alignment < 1 or alignment > 1 << 20:
            raise PlanError(
                f"{self.file}: expected general.alignment to be a small whole number, got {alignment!r:.60}"
            )
        needed = -(-self.position // alignment) * alignment + max(total, end)
        if total and needed > self.size:
            raise PlanError(
                f"{self.file}: expected at least {needed} bytes, got {self.size}; it is cut short, copy it again"
            )

    def _name(self, what: str) -> str:
        length = self._number("Q")
        self._limit(length, LONGEST_NAME, f"bytes in the name of a {what}")
        return self._take(length).decode("utf-8", errors="replace")

    def _number(self, kind: str) -> int:
        value: int = struct.unpack(self.order + kind, self._take(struct.calcsize("=" + kind)))[0]
        return value

    def _take(self, count: int) -> bytes:
        self._check_left(count)
        taken = self.stream.read(count)
        if len(taken) != count:  # someone has shortened it meanwhile
            raise self._short()
        self.position += count
        return taken

    def _skip(self, count: int) -> None:
        self._check_left(count)
        self.stream.seek(count, os.SEEK_CUR)
        self.position += count

    def _check_left(self, count: int) -> None:
        if count > self.size - self.position:
            raise self._short()

    def _limit(self, count: int, most: int, what: str) -> None:
        if count > most:
            raise PlanError(f"{self.file}: expected at most {most} {what}, got {count}; the file may be damaged")

    def _short(self) -> PlanError:
        return PlanError(f"{self.file}: expected a whole GGUF header, got one that is cut short; copy the file again")
