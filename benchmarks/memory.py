"""Peak memory of attention forward and backward over the length, on this machine's CPU.

Every measurement is a process of its own: the highest resident size while it computes, less the size with the inputs
and their gradients in memory. What grows with the square of the length shows as a ratio of four between a length and
its double, what grows with the length as a ratio of two at most.

    python benchmarks/memory.py --lengths 4096 8192 16384
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headwise.attention import attention
from headwise.bench import environment_record

RESULTS = Path(__file__).parent / "results"
HEADS, KV_HEADS, WIDTH = 8, 2, 64
MEBIBYTE = 2**20


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention, nothing else."""
    return attention(query, key, value, causal=True)


def everything(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Windows per head, padding, bias, soft-cap, sinks and slopes together, with gradients for the last four."""
    length = query.shape[2]
    options: dict[str, Any] = {
        "mask": torch.arange(length) < length - 3,
        "bias": torch.zeros(HEADS, 1, length, requires_grad=True),
        "sinks": torch.zeros(HEADS, requires_grad=True),
        "alibi_slopes": torch.full((HEADS,), 0.01, requires_grad=True),
    }
    windows = [(1023, 0)] * (HEADS // 2) + [None] * (HEADS // 2)
    return attention(query, key, value, causal=True, window=windows, softcap=30.0, **options)


def masked(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """PyTorch's own, with the boolean mask of a causal window."""
    positions = torch.arange(query.shape[2])
    behind = positions[:, None] - positions
    return scaled_dot_product_attention(query, key, value, attn_mask=(behind >= 0) & (behind < 1024), enable_gqa=True)


WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "headwise, causal": plain,
    "headwise, everything": everything,
    "PyTorch, causal window": masked,
}


def peak_bytes() -> int:
    """The highest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def measure_here(name: str, length: int) -> dict[str, float]:
    """Run one way once, forward and backward, and say what it took."""
    generator = torch.Generator().manual_seed(8191)
    shapes = [(1, heads, length, WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    inputs = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    for tensor in inputs:
        tensor.grad = torch.zeros_like(tensor)
    # What loading and the first call of each kernel take isn't part of it.
    short = [tensor[:, :, :67] for tensor in inputs]
    WAYS[name](*short).sum().backward()
    before, started = peak_bytes(), time.perf_counter()
    WAYS[name](*inputs).sum().backward()
    return {"peak_bytes": peak_bytes() - before, "seconds": time.perf_counter() - started}


def measure_apart(name: str, length: int, threads: int) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", name, "--lengths", str(length), "--threads", str(threads)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    measured: dict[str, float] = json.loads(output)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the memory of attention over the length.")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192, 16384], help="query and key lengths")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads for torch")
    parser.add_argument("--out", type=Path, help="the JSON file (default: benchmarks/results/memory-<machine>.json)")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one:
        print(json.dumps(measure_here(options.one, options.lengths[0])))
        return
    results = []
    print(f"{'peak MiB at length':<26}" + "".join(f"{length:>10}" for length in options.lengths) + "   last ratio")
    for name in WAYS:
        measured = [measure_apart(name, length, options.threads) for length in options.lengths]
        peaks = [one["peak_bytes"] / MEBIBYTE for one in measured]
        ratio = f"{peaks[-1] / peaks[-2]:>13.2f}" if len(peaks) > 1 else ""
        print(f"{name:<26}" + "".join(f"{peak:>10.0f}" for peak in peaks) + ratio)
        results += [{"way": name, "length": n, **one} for n, one in zip(options.lengths, measured, strict=True)]
    environment = environment_record()
    file = options.out or RESULTS / f"memory-{str(environment['instruction_set']).split()[0]}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    sizes = {"heads": HEADS, "kv_heads": KV_HEADS, "width": WIDTH, "threads": options.threads}
    file.write_text(json.dumps({"environment": environment, **sizes, "results": results}, indent=2) + "\n", "utf-8")
    print(f"written to {file}")


if __name__ == "__main__":
    main()
