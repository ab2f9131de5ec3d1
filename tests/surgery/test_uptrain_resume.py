"""A training that is broken off goes on to the same numbers, whatever broke it off."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headwise.errors import UserError
from headwise.models import Checkpoint
from headwise.models.weights import copy_of
from headwise.surgery.uptrain import Uptrained, uptrain
from tests.surgery.uptrain_models import BATCH, FAST, LENGTH, open_pair, save
from tests.surgery.uptrain_worker import Stop, StopAfter

STEPS = 7
SETTINGS: dict[str, Any] = FAST | {"save_every": 2, "points": 3, "params": "all"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("uptrain")
    save(place)
    return place


def train(folder: Path, **options: Any) -> Uptrained:
    return uptrain(*open_pair(folder), STEPS * BATCH * LENGTH, control=True, **SETTINGS | options)


@pytest.fixture(scope="module")
def unbroken(folder) -> Uptrained:
    return train(folder)


def same(result: Uptrained, wanted: Uptrained) -> None:
    """To the last bit; only clocks differ."""
    assert result.checkpoint.weights_sha256 == wanted.checkpoint.weights_sha256
    for found, expected in ((result.record, wanted.record), (result.record["control"], wanted.record["control"])):
        assert found["curve"] == expected["curve"]
        assert found["steps"] == expected["steps"]
    assert result.record["share_closed"] == wanted.record["share_closed"]


@pytest.mark.parametrize("told", [5, 15])
def test_wherever_it_is_broken_off_the_numbers_stay_the_same(folder, tmp_path, unbroken, told):
    """After so many steps and measurements, of the student or of the original."""
    with contextlib.suppress(Stop):
        train(folder, partial=tmp_path / "p", progress=StopAfter(told))
    assert (tmp_path / "p" / "request.json").is_file()
    same(train(folder, partial=tmp_path / "p"), unbroken)


def test_a_finished_training_is_read_back(folder, tmp_path, unbroken, monkeypatch):
    first = train(folder, partial=tmp_path / "p")
    monkeypatch.setattr("headwise.surgery.training.loop.Training._step", None)
    again = train(folder, partial=tmp_path / "p")
    same(again, unbroken)
    assert again.record["seconds"] == first.record["seconds"]
    assert not list((tmp_path / "p").glob("*.pt"))


def test_a_killed_process_goes_on_to_the_same_numbers(folder, tmp_path, unbroken):
    words = [sys.executable, "-m", "tests.surgery.test_uptrain_resume", str(folder), str(tmp_path / "p")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 240
    while not (tmp_path / "p" / "student.json").exists():
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = json.loads((tmp_path / "p" / "student.json").read_text())
    assert 0 < kept["step"] < STEPS
    same(train(folder, partial=tmp_path / "p"), unbroken)


def test_other_settings_are_refused_and_replace_it_on_request(folder, tmp_path, unbroken):
    with contextlib.suppress(Stop):
        train(folder, partial=tmp_path / "p", progress=StopAfter(5), rate=1e-3)
    with pytest.raises(UserError, match=r"a half-finished training with other settings \(setting rate\) lies there"):
        train(folder, partial=tmp_path / "p")
    same(train(folder, partial=tmp_path / "p", overwrite=True), unbroken)


def changed(checkpoint: Checkpoint) -> Checkpoint:
    other = copy_of(checkpoint)
    with torch.no_grad():
        next(other.model.parameters()).add_(1)
    return other


def test_another_model_or_text_is_told_by_its_name(folder, tmp_path):
    with contextlib.suppress(Stop):
        train(folder, partial=tmp_path / "p", progress=StopAfter(5))
    student, teacher, documents = open_pair(folder)
    others = {
        "student": (changed(student), teacher, documents),
        "teacher": (student, changed(teacher), documents),
        "documents": (student, teacher, replace(documents, working=documents.working[::-1])),
    }
    for what, given in others.items():
        with pytest.raises(UserError, match=rf"other settings \({what}\) lies there"):
            uptrain(*given, STEPS * BATCH * LENGTH, control=True, partial=tmp_path / "p", **SETTINGS)


class _Slow(StopAfter):
    """Gives the one who kills the time to do it."""

    def __init__(self) -> None:
        super().__init__(1_000)

    def advance(self, tokens: float) -> None:
        time.sleep(0.2)


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(Path(sys.argv[1]), partial=Path(sys.argv[2]), progress=_Slow())
