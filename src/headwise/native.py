"""The door to the compiled part, which is optional: everything else works without it.

Importing this module loads nothing; the first question opens `headwise._native`. Standard library only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from statistics import median
from types import ModuleType

__all__ = [
    "CacheSizes",
    "CpuFeatures",
    "NativeMissingError",
    "ReadBandwidth",
    "cache_sizes",
    "cpu_features",
    "is_built",
    "read_bandwidth",
    "status_line",
]

_HOW_TO_GET_IT = (
    "install a C++20 compiler (GCC 11, Clang 14, MSVC 2022 or newer) and install headwise again "
    "(in a clone: make native)"
)


class NativeMissingError(ImportError):
    """The compiled part was asked for and isn't there; the message says how to get it."""


@dataclass(frozen=True)
class CpuFeatures:
    """What the processor offers and the operating system lets a program use.

    Attributes:
        level: `x86-64`, `x86-64-v2`, `-v3` or `-v4` (the levels of the x86-64 psABI); elsewhere the architecture.
        extensions: the vector extensions that may be used, such as `avx2` or `neon`.
    """

    level: str
    extensions: tuple[str, ...]


@dataclass(frozen=True)
class CacheSizes:
    """Cache sizes of one core, or of the cores that share the cache, in bytes; 0 where the machine doesn't tell."""

    l1_data: int
    l2: int
    l3: int


@dataclass(frozen=True)
class ReadBandwidth:
    """How fast memory was read, in repeats over one buffer that no cache can hold.

    Attributes:
        bytes_read: bytes that all threads together read in one repeat.
        threads: how many threads read at the same time, each its own part.
        seconds: one entry per repeat, from the common start to the end of the slowest thread.
    """

    bytes_read: int
    threads: int
    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        """The fastest repeat, in GB/s (1 GB = 10^9 bytes): what the machine can do."""
        return self.bytes_read / min(self.seconds) / 1e9

    @property
    def median(self) -> float:
        """The median over the repeats, in GB/s (1 GB = 10^9 bytes): what it does beside its other work."""
        return self.bytes_read / median(self.seconds) / 1e9


def is_built() -> bool:
    """Whether the compiled part is there and loads."""
    return not isinstance(_open(), ImportError)


def status_line() -> str:
    """One line that says whether the compiled part is there and, if not, how to get it."""
    module = _open()
    if isinstance(module, ImportError):
        return f"native part: not built ({module}); to get it, {_HOW_TO_GET_IT}"
    return "native part: built"


def cpu_features() -> CpuFeatures:
    """The instruction set that may be used here.

    Raises:
        NativeMissingError: the compiled part isn't there.
    """
    level, extensions = _required().cpu_features()
    return CpuFeatures(level, tuple(extensions))


def cache_sizes() -> CacheSizes:
    """The sizes of the caches of this machine, in bytes.

    Raises:
        NativeMissingError: the compiled part isn't there.
    """
    return CacheSizes(*_required().cache_sizes())


def read_bandwidth(threads: int | None = None, *, buffer_bytes: int | None = None, repeats: int = 7) -> ReadBandwidth:
    """Measure how fast this machine streams memory: the bound on decoding.

    Other Python threads run meanwhile. It takes well under a second on most machines.

    Args:
        threads: how many threads read at the same time; None: one for each core that this process may use.
        buffer_bytes: size of the buffer in bytes; None: at least 256 MiB and at least four last-level caches.
        repeats: how often the buffer is read.

    Raises:
        NativeMissingError: the compiled part isn't there.
        ValueError: a number is below 1, or the buffer has less than 8 bytes for each thread.
        MemoryError: there is no room for the buffer.
        RuntimeError: the system refuses so many threads; or a part of the buffer wasn't read, so that the time would
            mean nothing.
    """
    module = _required()
    threads = _usable_cores() if threads is None else threads
    buffer_bytes = module.default_buffer_bytes() if buffer_bytes is None else buffer_bytes
    if min(threads, repeats) < 1 or buffer_bytes < 8 * threads:
        raise ValueError(
            "read_bandwidth: expected at least 1 thread, 1 repeat and a buffer of 8 bytes per thread, "
            f"got threads={threads}, repeats={repeats} and buffer_bytes={buffer_bytes}"
        )
    bytes_read, threads, seconds, checksum = module.measure_read_bandwidth(threads, buffer_bytes, repeats)
    if checksum != module.expected_checksum(bytes_read, repeats):
        raise RuntimeError("read_bandwidth: the sum of the words read is wrong; don't trust this build's measurements")
    return ReadBandwidth(bytes_read, threads, tuple(seconds))


def _usable_cores() -> int:
    # In a container or under taskset a process may use fewer cores than the machine has.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _required() -> ModuleType:
    module = _open()
    if isinstance(module, ImportError):
        raise NativeMissingError(
            f"headwise.native: expected the compiled part headwise._native, got none ({module}); {_HOW_TO_GET_IT}"
        )
    return module


@cache
def _open() -> ModuleType | ImportError:
    """The compiled module, or why it can't be had: it wasn't built, or it doesn't fit this machine."""
    try:
        return import_module("headwise._native")
    except ModuleNotFoundError:
        return ImportError("this installation was made without it")
    except ImportError as error:
        return error
