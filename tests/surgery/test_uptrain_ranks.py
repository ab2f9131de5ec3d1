"""Two processes that torchrun's launcher starts give what one gives: DDP and FSDP2, and the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwise.models import load
from headwise.surgery.export import export
from tests.surgery.uptrain_models import open_pair, save
from tests.surgery.uptrain_worker import CASES, train

ENGINES = ("ddp", "fsdp")
QUANTITIES = ("curve", "steps", "weights")
LIMIT = 400  # seconds, imports on a busy machine included


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("uptrain")
    save(place)
    export(open_pair(place)[0], place / "student")
    return place


@pytest.fixture(scope="module")
def reports(folder) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    words = [sys.executable, "-m", "tests.surgery.uptrain_worker", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


def distance(found: dict[str, Any], wanted: dict[str, Any], quantity: str) -> float:
    return float(np.abs(np.array(found[quantity]) - np.array(wanted[quantity])).max())


@pytest.fixture(scope="module", params=CASES)
def case(request, folder) -> tuple[str, dict[str, Any], dict[str, float]]:
    """What one process finds, in float64, and how far it is off if the rows of a batch are added up otherwise."""
    alone = train(folder, None, request.param)
    other = train(folder, None, request.param, at_once=4)
    spread = {quantity: distance(other, alone, quantity) for quantity in QUANTITIES}
    return request.param, alone, spread


@pytest.mark.parametrize("engine", ENGINES)
def test_two_processes_give_the_curve_of_one(reports, case, engine):
    name, alone, spread = case
    for rank in reports:
        for quantity in QUANTITIES:
            # The other order of the same sums, ten times over, or the last digits of the largest number there.
            digits = 8 * np.abs(np.array(alone[quantity])).max() * 2.0**-52
            assert distance(rank[f"{engine} {name}"], alone, quantity) <= max(10 * spread[quantity], digits), quantity
    assert reports[0][f"{engine} {name}"]["sha256"] == reports[1][f"{engine} {name}"]["sha256"]
    assert len(alone["curve"]) > 2
    assert alone["curve"][0] != alone["curve"][-1]


@pytest.mark.parametrize("engine", ENGINES)
def test_two_processes_that_are_broken_off_go_on_to_the_same_numbers(reports, engine):
    for rank in reports:
        whole, resumed = rank[f"{engine} attention"], rank[f"{engine} resumed"]
        assert resumed["sha256"] == whole["sha256"]
        assert resumed["steps"] == whole["steps"]
        assert resumed["curve"][-1] == whole["curve"][-1]


def test_only_the_first_process_writes_and_prints(reports, folder):
    first, second = (rank["command"] for rank in reports)
    assert first["code"] == second["code"] == 0, first["told"] + second["told"]
    told = json.loads(first["printed"])
    assert (told["engine"], told["ranks"]) == ("ddp", 2)
    assert second["printed"] == second["told"] == ""
    assert load(folder / "out").history[-1]["ranks"] == 2
    assert not (folder / "out.partial").exists()


def test_a_batch_that_two_processes_can_not_split_is_refused(reports):
    for rank in reports:
        assert rank["odd batch"] == ("uptrain: expected a batch that 2 ranks can split evenly, got 3 rows; use 2 rows")
        assert "expected what none needs, got several processes; give ddp or fsdp" in rank["none"]
