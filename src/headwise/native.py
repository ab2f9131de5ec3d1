"""The door to the compiled part, which is optional: everything else works without it.

Importing this module loads nothing; the first question opens `headwise._native`. Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from statistics import median
from types import ModuleType
from typing import Any, TypeAlias

__all__ = [
    "CacheSizes",
    "CpuFeatures",
    "NativeMissingError",
    "ReadBandwidth",
    "cache_sizes",
    "cpu_features",
    "decode_attention",
    "instruction_sets",
    "is_built",
    "prefill_attention",
    "read_bandwidth",
    "status_line",
    "used_instruction_set",
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


def instruction_sets() -> tuple[str, ...]:
    """The instruction sets that kernels were built for and that this processor has, the best one last.

    The last one is used unless the environment variable `HEADWISE_ISA` names another.

    Raises:
        NativeMissingError: the compiled part isn't there.
    """
    return tuple(_required().kernel_names())


def used_instruction_set() -> str:
    """The one of :func:`instruction_sets` whose kernels are used: what `HEADWISE_ISA` names, or the best.

    Raises:
        NativeMissingError: the compiled part isn't there.
        ValueError: `HEADWISE_ISA` names none of them; the kernels raise the same.
    """
    names = instruction_sets()
    used = os.environ.get("HEADWISE_ISA") or names[-1]
    if used not in names:
        raise ValueError(
            "HEADWISE_ISA: expected one of the instruction sets that were built and that this processor has "
            f"({', '.join(names)}), got {used}"
        )
    return used


def decode_attention(
    query: Any,
    key: Any,
    value: Any,
    output: Any,
    *,
    offsets: Sequence[int],
    scale: float,
    lse: Any = None,
    key_lengths: Sequence[int] | None = None,
    left: Sequence[int] | None = None,
    right: Sequence[int] | None = None,
    mask: Any = None,
    bias: Any = None,
    sinks: Any = None,
    slopes: Any = None,
    softcap: float = 0.0,
    threads: int = 1,
    isa: str = "",
) -> None:
    """Attention of a few queries per sequence (best: 1 to 16), each key and value read once for its whole group.

    The meaning is that of `headwise.attention.attention`; sums are in float32. Tensors are PyTorch's, on the CPU, or
    whatever has their `data_ptr()`, `shape`, `stride()`, `dtype` and `device`. Results are the same bits for any number
    of threads.

    Args:
        query: `[B, H, L, D]`, float32, bfloat16 or float16, as key, value and output; their last axis has stride 1.
        key: `[B, G, S, D]`; its other axes may have any stride.
        value: `[B, G, S, Dv]`.
        output: `[B, H, L, Dv]`, which is written.
        offsets: position of the first query, one per sequence; key j stands at position j.
        scale: factor of the scores.
        lse: float32 `[B, H, L]`, contiguous, which is written; None: not asked for.
        key_lengths: how many leading keys each sequence holds, `[B]`; later ones are never read.
        left: how many keys before its own position a query sees, `[H]`, -1: all; None: all for every head.
        right: the same behind its own position; 0 for every head is causal order.
        mask: booleans that broadcast to `[B, H, L, S]`, True = may attend.
        bias: float32, bfloat16 or float16 that broadcasts to `[B, H, L, S]`.
        sinks: float32 `[H]`, contiguous.
        slopes: float32 `[H]` or `[B, H]`, contiguous, of ALiBi.
        softcap: bound of the scaled scores; 0: none.
        threads: at most so many threads work.
        isa: one of :func:`instruction_sets`; empty: the one that `HEADWISE_ISA` names, or the best.

    Raises:
        NativeMissingError: the compiled part isn't there.
        TypeError: a tensor has a dtype that the kernels don't know.
        ValueError: shapes, strides or numbers don't fit, a tensor isn't on the CPU, or there is no such `isa`.

    Source: online softmax, Milakov and Gimelshein 2018 (arXiv:1805.02867); splitting along the keys as in
    Flash-Decoding (Dao et al. 2023).
    """
    run = _required().decode_attention
    options = (lse, offsets, key_lengths, left, right, mask, bias, sinks, slopes, scale, softcap, threads, isa)
    _call(run, query, key, value, output, *options)


def prefill_attention(
    query: Any,
    key: Any,
    value: Any,
    output: Any,
    *,
    offsets: Sequence[int],
    scale: float,
    lse: Any = None,
    key_lengths: Sequence[int] | None = None,
    left: Sequence[int] | None = None,
    right: Sequence[int] | None = None,
    mask: Any = None,
    bias: Any = None,
    sinks: Any = None,
    slopes: Any = None,
    softcap: float = 0.0,
    threads: int = 1,
    isa: str = "",
) -> None:
    """The same as :func:`decode_attention`, arguments and errors alike, in the way that is faster for many queries.

    Source: tiles with an online softmax, Dao et al. 2022 (arXiv:2205.14135).
    """
    run = _required().prefill_attention
    options = (lse, offsets, key_lengths, left, right, mask, bias, sinks, slopes, scale, softcap, threads, isa)
    _call(run, query, key, value, output, *options)


def _call(
    run: Any,
    query: Any,
    key: Any,
    value: Any,
    output: Any,
    lse: Any,
    offsets: Sequence[int],
    key_lengths: Sequence[int] | None,
    left: Sequence[int] | None,
    right: Sequence[int] | None,
    mask: Any,
    bias: Any,
    sinks: Any,
    slopes: Any,
    *numbers: Any,
) -> None:
    run(
        _described("query", query),
        _described("key", key),
        _described("value", value),
        _described("output", output),
        None if lse is None else _described("lse", lse),
        offsets,
        key_lengths,
        left,
        right,
        None if mask is None else _described("mask", mask),
        None if bias is None else _described("bias", bias),
        None if sinks is None else _described("sinks", sinks),
        None if slopes is None else _described("slopes", slopes),
        *numbers,
    )


# Numbers of native/arguments.hpp, by the name of a dtype; plain attention takes the first four.
_ELEMENTS = {"float32": 0, "bfloat16": 1, "float16": 2, "bool": 3, "int64": 4, "int8": 5, "uint8": 6, "int32": 7}
_OF_ATTENTION = tuple(_ELEMENTS)[:4]

_Described: TypeAlias = tuple[int, int, Sequence[int], Sequence[int]]


def _described(
    name: str, tensor: Any, known: tuple[str, ...] = _OF_ATTENTION, who: str = "headwise.native"
) -> _Described:
    """What the compiled part needs of a tensor: address, element, shape, strides."""
    if tensor.device.type != "cpu":
        raise ValueError(f"{name}: expected a tensor on the CPU, got one on {tensor.device}")
    return tensor.data_ptr(), _element(tensor.dtype, known, who), tensor.shape, tensor.stride()


@cache
def _element(dtype: object, known: tuple[str, ...], who: str) -> int:
    # Keyed by the dtype itself, since making its name takes longer than the rest of a call.
    name = str(dtype).removeprefix("torch.")
    if name not in known:
        raise TypeError(f"{who}: expected a tensor of one of {', '.join(known)}, got {dtype}; convert it first")
    return _ELEMENTS[name]


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
