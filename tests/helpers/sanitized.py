"""A pytest plugin (`-p tests.helpers.sanitized`): the native part of another build in place of the installed one.

`HEADWISE_NATIVE` names its file. AddressSanitizer must have been loaded first (`LD_PRELOAD`), so that it watches the
memory of PyTorch's tensors too; before any test runs, one overrun is planted to see that it does.
"""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest
import torch  # before the module, which then shares its OpenMP library

_WATCHED = "AddressSanitizer: heap-buffer-overflow"


def _load() -> None:
    spec = importlib.util.spec_from_file_location("headwise._native", os.environ["HEADWISE_NATIVE"])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["headwise._native"] = module


_load()  # when the plugin is loaded, which is before any test file asks for the instruction sets


def _overrun() -> None:
    """Claims two floats of a tensor that has one."""
    from headwise import native

    class Longer:
        shape, dtype, device = (1, 1, 1, 2), torch.float32, torch.device("cpu")
        memory = torch.zeros(1)

        def data_ptr(self) -> int:
            return self.memory.data_ptr()

        def stride(self) -> tuple[int, ...]:
            return (2, 2, 2, 1)

    key, output = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2)
    native.prefill_attention(key, Longer(), key, output, offsets=[0], scale=1.0, isa="baseline")


def pytest_sessionstart(session: pytest.Session) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 2)
        _overrun()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, errors="replace") as report:
        said = report.read()
    os.waitpid(child, 0)
    if _WATCHED not in said:
        pytest.exit(
            f"the sanitizer let a planted overrun pass; what was said instead: {said or 'nothing'}", returncode=2
        )
