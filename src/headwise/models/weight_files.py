"""Whether the weights that a folder promises are there: told by the names of its files, none of which is opened but the
index of a model in several parts."""

from __future__ import annotations

import json
from pathlib import Path

from headwise.errors import UserError
from headwise.models.refusal import refusing

__all__ = ["check_parts", "check_weight_files"]

# In the order in which transformers looks for them.
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_NAMED = 3


def check_weight_files(folder: Path, named: str | None = None) -> None:
    """Refuse a folder whose weights are not all there.

    Args:
        folder: of a model.
        named: the file that its config names instead of the usual ones (``transformers_weights``).

    Raises:
        UserError: a file is missing; the text names it.
    """
    name = _looked_for(folder, named)
    if not (folder / name).is_file():
        inside = ", ".join(sorted(file.name for file in folder.glob("*.safetensors"))[:_NAMED]) or "none"
        expected = named or f"{_WHOLE}, or in parts with {_INDEX}"
        raise UserError(f"{folder}: expected weights in {expected}, got {inside}; copy what is missing there")
    check_parts(folder, named)


def check_parts(folder: Path, named: str | None = None) -> None:
    """Refuse a folder whose weights are in parts that are not all there; one without an index passes.

    Args:
        folder, named: as for :func:`check_weight_files`.

    Raises:
        UserError: parts are missing; the text names them.
    """
    name = _looked_for(folder, named)
    if not name.endswith(".index.json") or not (folder / name).is_file():
        return
    if missing := [part for part in _parts(folder / name) if not (folder / part).is_file()]:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise UserError(
            f"{folder}: expected all parts of the weights that {name} names, got a folder without "
            f"{', '.join(missing[:_NAMED])}{more}; copy them there, the download is incomplete"
        )


def _looked_for(folder: Path, named: str | None) -> str:
    return named or (_WHOLE if (folder / _WHOLE).is_file() else _INDEX)


def _parts(index: Path) -> list[str]:
    with refusing(str(index.parent), "weights"):
        told = json.loads(index.read_text(encoding="utf-8"))
        parts = told["weight_map"].values() if isinstance(told, dict) else None
        if parts is None or not all(isinstance(part, str) for part in parts):
            raise ValueError(f"{index.name} lists no files; copy it again")
        return sorted(set(parts))
