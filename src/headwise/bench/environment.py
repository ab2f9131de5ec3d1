"""What has to be known of a machine before a time measured on it means anything. Imports nothing heavy by itself."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from headwise import native

__all__ = ["environment_record", "instruction_set", "package_versions", "processor_name", "required_packages"]


def environment_record() -> dict[str, object]:
    """Processor, instruction set, threads and versions, as plain values that JSON can hold.

    It imports torch, for the number of threads that torch uses. It names no user, host or folder.
    """
    import torch

    return {
        "processor": processor_name(),
        "instruction_set": instruction_set(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": package_versions(),
    }


def package_versions() -> dict[str, str | None]:
    """The installed version of headwise and of each package it requires, by name; None where one is missing."""
    return {name: _version(name) for name in ("headwise", *required_packages())}


def required_packages() -> list[str]:
    """The names of the packages that headwise itself requires, without those of its extras."""
    requirements = requires("headwise") or []
    always = [requirement for requirement in requirements if "extra ==" not in requirement]
    return sorted(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0] for requirement in always)


def processor_name() -> str:
    """What the processor calls itself; the architecture where it doesn't tell."""
    description = Path("/proc/cpuinfo")
    if description.exists():
        for line in description.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def instruction_set() -> str:
    """The level and the vector extensions that may be used; without the compiled part what torch tells, if it can."""
    if native.is_built():
        features = native.cpu_features()
        return " ".join((features.level, *features.extensions))
    try:
        from torch.backends import cpu
    except ImportError:
        return platform.machine()
    return f"{platform.machine()} {cpu.get_cpu_capability()}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
