"""A study as a folder: written beside, step by step, and renamed when it is whole.

``DIR.partial`` holds one safetensors file per finished step while the study runs. Interrupted, the same command finds
them and goes on from there. When everything is done the tables are written, the steps removed, and the folder renamed
to ``DIR``: a folder of that name is always a finished study.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headwise.folders import REQUEST, check_free, claim_partial, partial_of, write_atomically

Arrays = dict[str, np.ndarray]


class Store:
    """Steps of one study, kept as they finish.

    Args:
        folder: where the finished study will lie.
        request: everything that decides the numbers (model hash, seed, settings); a half-finished study is only
            continued for the same request.
        overwrite: replace a finished study in ``folder`` (once the new one is whole), and drop a half-finished one that
            belongs to another request.

    Raises:
        UserError: the folder exists, holds something else, or cannot be written.
    """

    def __init__(self, folder: Path, request: Mapping[str, Any], overwrite: bool = False) -> None:
        self.folder = folder
        self.partial = partial_of(folder)
        self._steps = self.partial / "steps"
        check_free(folder, overwrite)
        self.resumed = claim_partial(self.partial, request, overwrite)
        self._steps.mkdir(exist_ok=True)

    def step(self, name: str, compute: Callable[[], Arrays]) -> Arrays:
        """The arrays of one step: read back if it was finished before, else computed and kept.

        Args:
            name: the step's name, unique in the study; ``/`` is allowed.
            compute: gives the step's arrays by name.
        """
        from safetensors.numpy import load_file, save

        file = self._steps / (_file_name(name) + ".safetensors")
        if file.is_file():
            return load_file(file)
        arrays = {key: np.ascontiguousarray(array) for key, array in compute().items()}
        write_atomically(file, save(arrays))
        return arrays

    def finish(self) -> Path:
        """Drop the steps and put the folder in its place."""
        shutil.rmtree(self._steps)
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.partial.rename(self.folder)
        (self.folder / REQUEST).unlink()  # last: a half-finished folder without it would be refused as none of ours
        return self.folder


def _file_name(name: str) -> str:
    """Names of many heads are longer than a file name may be."""
    plain = name.replace("/", "__")
    return plain if len(plain) <= 100 else f"{plain[:60]}-{hashlib.sha256(plain.encode()).hexdigest()[:24]}"
