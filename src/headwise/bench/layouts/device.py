"""How fast this processor reads its memory and multiplies matrices of the dtype in question: measured now."""

from __future__ import annotations

import statistics
import time

import torch

from headwise import native
from headwise.plan.devices import Device

__all__ = ["measured_device"]

_SIZE, _REPEATS = 1_024, 5


def measured_device(dtype: str) -> Device | str:
    """The speeds behind the roofline, on as many threads as torch uses, or in words why there are none."""
    if not native.is_built():
        return "the compiled part of headwise, which measures how fast memory is read, is missing (headwise doctor)"
    threads = torch.get_num_threads()
    read = native.read_bandwidth(threads)
    used = "1 thread" if read.threads == 1 else f"{read.threads} threads"
    source = (
        f"measured: median of {len(read.seconds)} reads of {read.bytes_read >> 20} MiB, {used}; median of {_REPEATS} "
        f"products of {_SIZE} x {_SIZE} {dtype} matrices"
    )
    return Device("here", round(read.median * 1e9), _matrix_flops(dtype), source)


@torch.inference_mode()
def _matrix_flops(dtype: str) -> int:
    left, right = (torch.ones(_SIZE, _SIZE, dtype=getattr(torch, dtype)) for _ in range(2))
    left @ right  # the first call starts threads
    seconds = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        left @ right
        seconds.append(time.perf_counter() - start)
    return round(2 * _SIZE**3 / statistics.median(seconds))
