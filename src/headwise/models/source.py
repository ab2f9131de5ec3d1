"""What a caller may name as a model, and where its files are.

Everything that can be refused by looking at names and at the first bytes of files is refused here, before transformers
is asked to open anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.errors import UserError
from headwise.models import hub
from headwise.models.gguf import DEMO_NAME, demo_file, folder_of
from headwise.models.refusal import refusing
from headwise.models.weight_files import check_parts

__all__ = ["Source", "find"]

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.msgpack", "*.h5")
_LATENT = "latent.json"  # beside weights that headwise has converted to latent attention
_PICKLED = (
    "which can run code when opened and are never loaded; convert them where you trust them, with "
    "model.save_pretrained(folder, safe_serialization=True)"
)


@dataclass(frozen=True)
class Source:
    """Where the files of a model are.

    Attributes:
        location: a folder, or the id of a model on the hub.
        name: what to call the model in tables and pages.
        online: whether files may be fetched.
    """

    location: str
    name: str
    online: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """How transformers must open it. Left alone, it would ask on a terminal whether to run a checkpoint's code."""
        return {"trust_remote_code": False, "local_files_only": not self.online}

    def require_safetensors(self) -> None:
        """Refuse a model of the hub that has no safetensors, which transformers would have converted over there.

        Raises:
            UserError: it has none.
        """
        if Path(self.location).is_dir():
            return
        with refusing(self.name, "weights"):
            found = hub.has_safetensors(self.location, self.online)
        if not found:
            where = "on the hub" if self.online else "in the local cache of the hub, and the hub did not answer"
            raise UserError(f"{self.name}: no safetensors {where}; weights in other formats are pickled, {_PICKLED}")


def find(source: str | Path) -> Source:
    """Where the files of ``source`` are.

    Args:
        source: a local folder, a hub id, a ``.gguf`` file or ``demo``. A :class:`~pathlib.Path` is never a hub id.

    Raises:
        UserError: there is nothing to read.
    """
    if source == "demo":
        return Source(str(folder_of(demo_file())), DEMO_NAME)
    path = _path(source)
    if path.is_dir():
        _check_folder(path)
        return Source(str(path), path.resolve().name)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            kind = f"a {path.suffix} file" if path.suffix else "a file without ending"
            raise UserError(f"{source}: expected a model folder, a hub id, a .gguf file or demo, got {kind}")
        return Source(str(folder_of(path)), path.stem)
    if isinstance(source, Path) or not _HUB_ID.fullmatch(source) or path.suffix.lower() == ".gguf":
        raise UserError(f"{source}: no such folder or file; check the spelling (a hub id has the form org/name)")
    return Source(source, source, online=hub.answers())


def _path(source: str | Path) -> Path:
    if not str(source):  # would be the current folder
        raise UserError("'': expected a model folder, a hub id, a .gguf file or demo, got nothing")
    try:
        return Path(source).expanduser()
    except RuntimeError:  # ~name without a user of that name
        return Path(source)


def _check_folder(folder: Path) -> None:
    """Refuse a folder without a config or without safetensors, and say what is there instead."""
    if not (folder / "config.json").is_file():
        if (folder / _LATENT).is_file():
            raise UserError(
                f"{folder}: expected a Hugging Face model folder, got a model with latent attention (it has no "
                "config.json); open it with headwise.surgery.mla.checkpoint.load_latent"
            )
        inside = next(iter(sorted(folder.glob("*.gguf"))), None)
        hint = f"; give the file {inside} itself" if inside else ""
        raise UserError(f"{folder}: expected a Hugging Face model folder, got one without config.json{hint}")
    if any(folder.glob("*.safetensors")):
        check_parts(folder)
        return
    pickled = next((file for pattern in _PICKLES for file in sorted(folder.glob(pattern))), None)
    if pickled:
        raise UserError(f"{folder}: only pickled weights ({pickled.name}), {_PICKLED}")
    raise UserError(f"{folder}: has a config.json but no *.safetensors, so no weights; copy them there")
