"""States of a training that is under way, so that a killed one goes on where it was, to the same numbers.

Nothing is drawn at random while a model is trained (no dropout, rows in a fixed order), so weights, the optimiser's
moments, the step and the curve so far are all there is to keep. Tensors lie in safetensors, the rest in JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headwise.folders import write_atomically
from headwise.surgery.training.ranks import Ranks, like, whole

__all__ = ["State"]

_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class State:
    """The kept states of one training.

    Attributes:
        folder: where they lie; None keeps nothing.
        name: of the training, since several may share a folder.
        ranks: the first one writes, all read.
    """

    folder: Path | None
    name: str
    ranks: Ranks

    def save(
        self, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, step: int, log: dict[str, Any]
    ) -> None:
        """Keep the weights, the moments and the log after ``step`` steps; the state before is dropped then."""
        if self.folder is None:
            return
        tensors: dict[str, Tensor] = {}
        for name, parameter in parameters.items():
            found = {"weight": parameter.detach()} | {key: optimizer.state[parameter][key] for key in _MOMENTS}
            for key, tensor in found.items():
                gathered = whole(tensor)
                if self.ranks.first:
                    tensors[f"{key}/{name}"] = gathered.cpu().contiguous()
        if self.ranks.first:
            self._write(self.folder, tensors, step, log)

    def _write(self, folder: Path, tensors: dict[str, Tensor], step: int, log: dict[str, Any]) -> None:
        from safetensors.torch import save_file

        file = folder / f"{self.name}-{step}.safetensors"
        beside = file.with_name(file.name + ".writing")
        save_file(tensors, beside)
        os.replace(beside, file)
        # The file named here counts: before this line it is the one before.
        told = json.dumps({"step": step, "file": file.name, "log": log})
        write_atomically(folder / f"{self.name}.json", told.encode())
        for other in folder.glob(f"{self.name}-*.safetensors*"):
            if other != file:
                other.unlink()

    def restore(
        self, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
    ) -> tuple[int, dict[str, Any]] | None:
        """Put the kept weights and moments back; the steps that were done and the log, or None if nothing was kept."""
        if self.folder is None or not (self.folder / f"{self.name}.json").is_file():
            return None
        from safetensors.torch import load_file

        told = json.loads((self.folder / f"{self.name}.json").read_text(encoding="utf-8"))
        tensors = load_file(self.folder / told["file"])
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(like(tensors[f"weight/{name}"], parameter))
                moments = {key: like(tensors[f"{key}/{name}"], parameter) for key in _MOMENTS}
                optimizer.state[parameter] = {"step": torch.tensor(float(told["step"])), **moments}
        return told["step"], told["log"]
