"""Where headwise keeps what it can make again. Standard library only."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """The folder for converted models and other things that can be made again; it may not exist yet.

    `HEADWISE_CACHE` names it. Without that it is `headwise` in the user's cache folder: `XDG_CACHE_HOME` where that
    is an absolute path, else what the platform uses (`~/Library/Caches` on macOS, `LOCALAPPDATA` on Windows,
    `~/.cache` elsewhere).

    Args:
        environment: the environment variables to read; None: those of this process.
    """
    variables = os.environ if environment is None else environment
    named = variables.get("HEADWISE_CACHE", "")
    if named:
        return Path(named).expanduser().absolute()
    return _user_cache_folder(variables) / "headwise"


def _user_cache_folder(variables: Mapping[str, str]) -> Path:
    # The XDG specification asks for relative paths to be ignored.
    named = Path(variables.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32" and variables.get("LOCALAPPDATA"):
        return Path(variables["LOCALAPPDATA"])
    return Path.home() / ".cache"
