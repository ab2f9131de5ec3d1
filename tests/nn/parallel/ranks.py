"""Runs named checks in several processes that talk by gloo, and tells what came of each.

Importing PyTorch takes most of the time, so one process does it and the ranks are forked off it (where forking is
safe). No check may stop between two collectives, or the other ranks would wait: it yields what it found, and only when
it is through is that compared.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.helpers.compare import EXACT, assert_same

PATIENCE = 60  # seconds for one collective, and for the end of the ranks once one has failed
LIMIT = 300  # seconds for everything, imports on a busy machine included


@dataclass(frozen=True)
class World:
    """What a check knows of its process.

    Attributes:
        rank, ranks: of this process, and how many there are.
        mesh: all ranks in one dimension.
    """

    rank: int
    ranks: int
    mesh: DeviceMesh


@dataclass(frozen=True)
class Found:
    """One comparison of a check."""

    what: str
    actual: Tensor
    expected: Tensor
    atol: float = EXACT


Check = Callable[[World], Iterator[Found]]


def true(what: str, fact: bool) -> Found:
    """A comparison of something that holds or doesn't."""
    return Found(what, torch.tensor(int(fact)), torch.tensor(1))


def run_checks(folder: Path, ranks: tuple[int, ...]) -> dict[int, dict[str, str]]:
    """Run all checks in worlds of so many ranks: what went wrong, by ranks and name of the check; "" for nothing."""
    command = [sys.executable, "-m", __name__, str(folder), *map(str, ranks)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        command, cwd=root, env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        printed, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
        printed, _ = process.communicate()
    return {count: _read(folder, count, printed.decode(errors="replace")) for count in ranks}


def _read(folder: Path, ranks: int, printed: str) -> dict[str, str]:
    reports = []
    for rank in range(ranks):
        file = folder / f"{ranks}-{rank}.json"
        reports.append(json.loads(file.read_text()) if file.exists() else {})
    return {
        name: "\n".join(
            f"rank {rank} of {ranks}: {report.get(name, 'did not get there; the processes said:' + printed)}"
            for rank, report in enumerate(reports)
            if report.get(name) != ""
        )
        for name in all_checks()
    }


def all_checks() -> dict[str, Check]:
    """Every check by its name."""
    from tests.nn.parallel import context_checks, tensor_checks

    return tensor_checks.CHECKS | context_checks.CHECKS


def _work(rank: int, ranks: int, folder: Path) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder / f'meeting-{ranks}'}"
    patience = timedelta(seconds=PATIENCE)
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks, timeout=patience)
    world = World(rank, ranks, init_device_mesh("cpu", (ranks,)))
    report: dict[str, str] = {}
    for name, check in all_checks().items():
        torch.manual_seed(20240531)
        broken = False
        try:
            found = list(check(world))
        except Exception:
            report[name], broken = traceback.format_exc(), True
        else:
            report[name] = _compared(found)
        (folder / f"{ranks}-{rank}.json").write_text(json.dumps(report))
        if broken:
            sys.exit(1)  # what the other ranks wait for now would be taken for something else
    distributed.destroy_process_group()


def _compared(found: list[Found]) -> str:
    wrong = [] if found else ["nothing was compared"]
    for one in found:
        try:
            assert_same(one.actual, one.expected, atol=one.atol, what=one.what)
        except AssertionError as error:
            wrong.append(str(error))
    return "\n".join(wrong)


def _run_world(folder: Path, ranks: int) -> None:
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    workers = [context.Process(target=_work, args=(rank, ranks, folder), daemon=True) for rank in range(ranks)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        time.sleep(0.02)
        if any(worker.exitcode for worker in workers):
            break
    ended = time.monotonic()
    for worker in workers:
        worker.join(max(0.0, ended + PATIENCE - time.monotonic()))
        worker.kill()


if __name__ == "__main__":
    all_checks()  # import everything once, before forking
    import_module("torch._dynamo")  # what the first distributed tensor would load in every rank
    for count in sys.argv[2:]:
        _run_world(Path(sys.argv[1]), int(count))
