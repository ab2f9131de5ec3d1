"""Bytes of a model's weights, from headers and indices: no weight is loaded.

Safetensors files say in their header where each tensor lies; the index of a model in several files says how many bytes
all have together; a GGUF header has type and shape of each tensor.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

from headwise.plan.errors import PlanError
from headwise.plan.source import find, is_gguf
from headwise.plan.strict_json import parse_object, read_object

__all__ = ["weight_bytes"]

_SAY = "say --weights as a size, such as 16GiB"
INDEX = "model.safetensors.index.json"
# What the format itself allows.
LONGEST_HEADER = 100_000_000
_LARGEST = 1 << 60
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


def weight_bytes(model: str | os.PathLike[str]) -> int:
    """Bytes of all weights of a model.

    Args:
        model: a folder, a ``.safetensors`` or ``.gguf`` file (of several parts, any of them), an index file, the id of
            a model on the hub, or ``demo``.

    Raises:
        PlanError: they can't be known from what is there; say them with ``--weights``.
    """
    if not isinstance(model, (str, os.PathLike)):
        raise PlanError(f"--weights: expected a size, or a folder or file to read it from, got {type(model).__name__}")
    path = Path(model)
    if path.is_dir():
        return _of_folder(path)
    found = find(model)
    if found is None:
        return _of_index(_of_the_hub(str(model)), str(model))
    if is_gguf(found):
        return _of_gguf(found)
    if found.suffix == ".safetensors":
        return _of_safetensors(found)
    if found.name.endswith(".index.json"):
        return _of_index(read_object(found), str(found))
    if found.name == "config.json":
        return _of_folder(found.parent)
    raise PlanError(
        f"{found}: expected weights, which are a folder, a .safetensors, .index.json or .gguf file, and got none; "
        f"{_SAY}"
    )


def _of_folder(folder: Path) -> int:
    """All parts that the index names, or the files that are there; the index alone counts where no part is there."""
    files = sorted(folder.glob("*.safetensors"))
    if (folder / INDEX).exists():
        index = read_object(folder / INDEX)
        named = _parts(index, folder / INDEX)
        missing = sorted(named - {file.name for file in files})
        if not named & {file.name for file in files}:
            return _of_index(index, str(folder / INDEX))
        if missing:
            raise PlanError(
                f"{folder}: expected all parts that the index names, {missing[0][:60]} is missing; copy it there"
            )
        files = [folder / name for name in sorted(named)]
    if not files:
        raise PlanError(f"{folder}: expected *.safetensors or their index, got none; {_SAY}")
    return sum(_of_safetensors(file) for file in files)


def _parts(index: dict[str, Any], file: Path) -> set[str]:
    """Names of the files that an index names; never a path out of the folder."""
    weight_map = index.get("weight_map")
    names = set(weight_map.values()) if isinstance(weight_map, dict) and _texts(weight_map.values()) else set()
    if not names or any("/" in name or "\\" in name or not name.endswith(".safetensors") for name in names):
        raise PlanError(f"{file}: expected weight_map to name .safetensors files beside it")
    return names


def _texts(values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


def _of_index(index: dict[str, Any], where: str) -> int:
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    if not isinstance(total, int) or isinstance(total, bool) or not 0 < total <= _LARGEST:
        raise PlanError(f"{where}: expected metadata.total_size to be a number of bytes; {_SAY}")
    return total


def _of_the_hub(hub_id: str) -> dict[str, Any]:
    from headwise.plan.hub import read_hub_object

    index = read_hub_object(hub_id, INDEX)
    if index is None:
        raise PlanError(f"{hub_id}: no {INDEX} on the hub, its weights may lie in one file; {_SAY}")
    return index


def _of_safetensors(file: Path) -> int:
    """Bytes of the tensors in one file, which must all lie in it."""
    try:
        status = os.stat(file)
        if not stat.S_ISREG(status.st_mode):
            raise PlanError(f"{file}: expected a safetensors file, got no regular file")
        with open(file, "rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if status.st_size < 8 or length > min(LONGEST_HEADER, status.st_size - 8):
                raise _damaged(file)
            header = stream.read(length)
    except OSError as error:
        raise PlanError(f"{file}: expected a safetensors file, got none that can be read ({error.strerror})") from None
    tensors = parse_object(header, str(file))
    tensors.pop("__metadata__", None)
    sizes = [_span(tensor, status.st_size - 8 - length, file) for tensor in tensors.values()]
    return sum(sizes)


def _span(tensor: Any, most: int, file: Path) -> int:
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(offset) is int for offset in offsets):
        raise _damaged(file)
    begin, end = offsets
    if not 0 <= begin <= end <= most:
        raise _damaged(file)
    return int(end - begin)


def _damaged(file: Path) -> PlanError:
    return PlanError(f"{file}: expected a whole safetensors file, got one that is damaged or cut short; copy it again")


def _of_gguf(file: Path) -> int:
    """Bytes of the tensors; a model split over several files counts with all of them."""
    from headwise.plan.gguf import read_header

    part = _PART.fullmatch(file.name)
    if not part:
        return read_header(file).tensor_bytes
    stem, count = part.group(1), int(part.group(3))
    files = [file.with_name(f"{stem}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    missing = next((other for other in files if not other.exists()), None)
    if missing is not None or not files:
        raise PlanError(f"{file}: expected all {count} parts beside it, {missing} is missing; copy it there")
    return sum(read_header(other).tensor_bytes for other in files)
