"""What two ranks do in the tests: train by every engine, and by the command, and tell what came of it.

Importing PyTorch and transformers takes most of the time, so one process does it, and ``torchrun``'s own launcher forks
the ranks off it.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from headwise.cli.main import main
from headwise.errors import UserError
from headwise.models import Checkpoint
from headwise.models.corpus import Corpus
from headwise.surgery.uptrain import uptrain
from tests.surgery.uptrain_models import FAST, open_pair

STEPS = 5
CASES: dict[str, dict[str, Any]] = {
    "attention": FAST | {"at_once": 1},
    "all": FAST | {"params": "all", "at_once": 1},
}


class Stop(Exception):
    """In the place of a kill."""


class StopAfter:
    """A progress that ends the training after so many steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps + 1  # the first measurement is told too

    def plan(self, tokens: float) -> None: ...

    def stage(self, text: str) -> None: ...

    def advance(self, tokens: float) -> None:
        self.left -= 1
        if self.left < 0:
            raise Stop


@cache
def _pair(folder: Path) -> tuple[Checkpoint, Checkpoint, Corpus]:
    return open_pair(folder, dtype=torch.float64)


def train(folder: Path, engine: str | None, case: str, **options: Any) -> dict[str, Any]:
    """The curve, the steps, and the weights as plain numbers."""
    student, teacher, documents = _pair(folder)
    settings = CASES[case]
    tokens = STEPS * settings["batch"] * settings["length"]
    result = uptrain(student, teacher, documents, tokens, engine=engine, **settings | options)
    weights = {name: tensor.double().sum().item() for name, tensor in result.checkpoint.model.state_dict().items()}
    return {
        "curve": [[point["losses"], point["divergences"]] for point in result.record["curve"]],
        "steps": [list(step.values()) for step in result.record["steps"]],
        "weights": [weights[name] for name in sorted(weights)],
        "sha256": result.checkpoint.weights_sha256,
    }


def resumed(folder: Path, engine: str) -> dict[str, Any]:
    """Broken off after three steps, and gone on with."""
    options: dict[str, Any] = {"partial": folder / f"partial-{engine}", "save_every": 2, "points": 1}
    with contextlib.suppress(Stop):
        train(folder, engine, "attention", progress=StopAfter(3), **options)
    return train(folder, engine, "attention", **options)


def command(folder: Path) -> dict[str, Any]:
    """What the command prints, and how it ends."""
    words = ["uptrain", str(folder / "student"), "--teacher", str(folder / "teacher"), "--tokens", "300"]
    words += ["--documents", str(folder / "texts"), "--batch", "2", "--length", "41", "--held-out", "7", "--json"]
    printed, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
        code = main([*words, "--out", str(folder / "out")])
    return {"code": code, "printed": printed.getvalue(), "told": told.getvalue()}


def refusal(folder: Path, **options: Any) -> str:
    """What is said against it."""
    try:
        train(folder, case="attention", **options)
    except UserError as error:
        return str(error)
    return "nothing"


def run(folder: Path) -> None:
    """In each rank: everything, into ``rank-N.json``."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    found = {f"{engine} {case}": train(folder, engine, case) for engine in ("ddp", "fsdp") for case in CASES}
    found |= {f"{engine} resumed": resumed(folder, engine) for engine in ("ddp", "fsdp")}
    found["odd batch"] = refusal(folder, engine="ddp", batch=3)
    found["none"] = refusal(folder, engine="none")
    found["command"] = command(folder)
    (folder / f"rank-{distributed.get_rank()}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


def launch(folder: Path) -> None:
    """As ``torchrun --standalone --nproc-per-node 2`` does it."""
    options = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "test", "start_method": "fork"}
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, **options)
    elastic_launch(config, run)(folder)


if __name__ == "__main__":
    import_module("torch.distributed.fsdp")  # before forking
    launch(Path(sys.argv[1]))
