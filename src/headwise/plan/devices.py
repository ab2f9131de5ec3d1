"""How fast devices read their memory and multiply: as their makers publish it, given, or measured here.

Published rates are for dense matrices (never with sparsity), bfloat16 in and float32 accumulated. They are ceilings:
what a kernel reaches is less.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwise.plan.errors import PlanError

__all__ = ["DEVICES", "Device", "device_named", "measured_here"]


@dataclass(frozen=True)
class Device:
    """One device.

    Attributes:
        name: how the command line calls it.
        bandwidth: bytes per second that it reads.
        flops: floating-point operations per second; None: unknown.
        source: who says so.
    """

    name: str
    bandwidth: int
    flops: int | None
    source: str

    @property
    def ridge(self) -> float | None:
        """FLOPs per byte above which arithmetic takes longer than reading."""
        return None if self.flops is None else self.flops / self.bandwidth


def _published(name: str, gigabytes: int, gigaflops: int, source: str) -> Device:
    return Device(name, gigabytes * 10**9, gigaflops * 10**9, source)


_NVIDIA = "https://www.nvidia.com/en-us/data-center"
# Where a maker names the rate with sparsity only, half of it is the dense one.
_TABLE = (
    _published("a100-40gb", 1_555, 312_000, f"NVIDIA A100 SXM 40 GB data sheet, {_NVIDIA}/a100/"),
    _published("a100-80gb", 2_039, 312_000, f"NVIDIA A100 SXM 80 GB data sheet, {_NVIDIA}/a100/"),
    _published("b200", 8_000, 2_250_000, f"NVIDIA DGX B200 data sheet, an eighth of it, {_NVIDIA}/dgx-b200/"),
    _published("h100-pcie", 2_000, 756_500, f"NVIDIA H100 PCIe data sheet, half of 1,513, {_NVIDIA}/h100/"),
    _published("h100-sxm", 3_350, 989_500, f"NVIDIA H100 SXM data sheet, half of 1,979, {_NVIDIA}/h100/"),
    _published("h200", 4_800, 989_500, f"NVIDIA H200 SXM data sheet, half of 1,979, {_NVIDIA}/h200/"),
    _published("l4", 300, 121_000, f"NVIDIA L4 data sheet, half of 242, {_NVIDIA}/l4/"),
    _published("l40s", 864, 362_050, f"NVIDIA L40S data sheet, {_NVIDIA}/l40s/"),
    _published("mi300x", 5_300, 1_307_400, "AMD Instinct MI300X data sheet, https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html"),
    _published("rtx-3090", 936, 71_000, "NVIDIA Ampere GA102 GPU architecture, table of the RTX 3090"),
    _published("rtx-4090", 1_008, 165_200, "NVIDIA Ada GPU architecture, table of the RTX 4090"),
    _published("tpu-v5e", 819, 197_000, "Google Cloud TPU v5e, https://cloud.google.com/tpu/docs/v5e"),
    _published("tpu-v5p", 2_765, 459_000, "Google Cloud TPU v5p, https://cloud.google.com/tpu/docs/v5p"),
)  # fmt: skip

DEVICES = {device.name: device for device in _TABLE}


def device_named(name: str, threads: int | None = None) -> Device:
    """The device of that name; ``here`` is this machine's processor, measured now.

    Raises:
        PlanError: there is none.
    """
    if name == "here":
        return measured_here(threads)
    device = DEVICES.get(name.lower())
    if device is None:
        raise PlanError(
            f"--device: expected here or one of {', '.join(DEVICES)}, got {name[:60]!r}; others by --bandwidth and "
            "--flop-rate"
        )
    return device


def measured_here(threads: int | None = None, dtype: str | None = None) -> Device:
    """This machine's processor: the median speed of reading, and of multiplying matrices if torch is there.

    Args:
        threads: for both; None: as many as each chooses.
        dtype: of the matrices, by torch's name for it; None: float32, and ``source`` says that others may differ.

    Raises:
        PlanError: the compiled part of headwise, which measures reading, is missing.
    """
    from headwise import native

    if not native.is_built():
        raise PlanError(
            "--device here: expected the compiled part of headwise, which measures how fast memory is read; "
            f"{native.status_line()}; or say it with --bandwidth"
        )
    measured = native.read_bandwidth(threads)
    flops, how = _matrix_flops(threads, dtype or "float32")
    how += ", narrower types may be faster" if flops and dtype is None else ""
    used = "1 thread" if measured.threads == 1 else f"{measured.threads} threads"
    reads = f"median of {len(measured.seconds)} reads of {measured.bytes_read >> 20} MiB, {used}"
    source = f"measured: {reads}{how}"
    return Device("here", round(measured.median * 1e9), flops, source)


def _matrix_flops(threads: int | None, dtype: str, size: int = 1_024, repeats: int = 5) -> tuple[int | None, str]:
    """FLOPs per second of matrices of ``size``, and in words how they were measured."""
    import statistics
    import time

    try:
        import torch
    except ImportError:
        return None, "; FLOP rate unknown, torch is missing"
    if threads is not None:
        torch.set_num_threads(threads)
    left, right = (torch.ones(size, size, dtype=getattr(torch, dtype)) for _ in range(2))
    left @ right  # the first call starts threads
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        left @ right
        seconds.append(time.perf_counter() - start)
    rate = round(2 * size**3 / statistics.median(seconds))
    how = f"; median of {repeats} products of {size} x {size} {dtype} matrices"
    return rate, how
