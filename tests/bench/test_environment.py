from __future__ import annotations

import getpass
import json
import os
import platform
import socket
from importlib.metadata import version
from pathlib import Path

import pytest

from headwise import native
from headwise.bench import environment_record, package_versions
from headwise.bench.environment import instruction_set, processor_name, required_packages


def test_the_record_says_what_a_time_depends_on():
    import torch

    record = environment_record()
    assert record["cores"] == os.cpu_count()
    assert record["threads"] == torch.get_num_threads()
    assert record["python"] == platform.python_version()
    assert record["versions"]["torch"] == version("torch")
    assert record["instruction_set"] == instruction_set()
    assert record["processor"] == processor_name() != ""


def test_the_record_can_be_published():
    text = json.dumps(environment_record())
    assert str(Path.home()) not in text
    assert socket.gethostname() not in text
    assert os.getcwd() not in text
    assert len(getpass.getuser()) < 3 or f'"{getpass.getuser()}"' not in text


def test_versions_are_those_of_the_requirements_alone():
    assert {"torch", "transformers", "typer", "pyarrow"} <= set(required_packages())
    assert not {"pytest", "ruff", "selenium"} & set(required_packages())
    assert list(package_versions()) == ["headwise", *required_packages()]


def test_a_missing_package_has_no_version(monkeypatch):
    monkeypatch.setattr("headwise.bench.environment.required_packages", lambda: ["numpy", "not-installed-anywhere"])
    assert package_versions() == {
        "headwise": version("headwise"),
        "numpy": version("numpy"),
        "not-installed-anywhere": None,
    }


@pytest.mark.skipif(not native.is_built(), reason="the native part is not built")
def test_the_instruction_set_is_told_by_the_compiled_part():
    features = native.cpu_features()
    assert instruction_set() == " ".join([features.level, *features.extensions])


def test_without_the_compiled_part_torch_tells_the_instruction_set(monkeypatch):
    import torch

    absent = ImportError("absent")
    monkeypatch.setattr(native, "_open", lambda: absent)
    assert instruction_set() == f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
