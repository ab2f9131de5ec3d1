"""Peak memory of a model, taken in a process of its own.

What counts is the most physical memory that the process has held, as the system counts it: with what the allocator
keeps and with the pages of files, which torch's own count of its tensors leaves out. That number never falls in the
life of a process, so each model gets a fresh one; it opens the model, fills a cache, and decodes a token.

On Linux it is ``VmHWM``. ``getrusage`` would tell more: there a process inherits the peak of the one that started it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["MemoryUse", "measure_memory"]


@dataclass(frozen=True)
class MemoryUse:
    """Peaks of a process in bytes.

    Attributes:
        imported: with Python, torch and transformers, before any model.
        loaded: when the model was open; opening may take more than running.
        peak: after a decoded token behind the filled cache.
    """

    imported: int
    loaded: int
    peak: int


def measure_memory(
    source: str, *, dtype: str, batch: int, context: int, threads: int, timeout: float = 600.0
) -> MemoryUse | str:
    """Open a model in a fresh process and decode one token behind a full cache.

    Args:
        source: what :func:`headwise.models.load` opens.
        dtype: ``float32`` or ``bfloat16``.
        batch: sequences side by side.
        context: tokens of each; an encoder reads them instead.
        threads: for torch.
        timeout: seconds until it is given up.

    Returns:
        The peaks, or in words why there are none.
    """
    order = {"source": source, "dtype": dtype, "batch": batch, "context": context, "threads": threads}
    command = [sys.executable, "-m", "headwise.bench.verification.memory", json.dumps(order)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"the process took longer than {timeout:.0f} s"
    if done.returncode:
        words = done.stderr.strip().splitlines()[-1:] or [f"it ended with code {done.returncode}"]
        return words[0]
    return MemoryUse(**json.loads(done.stdout.splitlines()[-1]))


def _run(source: str, dtype: str, batch: int, context: int, threads: int) -> MemoryUse:
    import torch

    from headwise.bench.verification import caches
    from headwise.models import load

    torch.set_num_threads(threads)
    imported = _peak_bytes()
    checkpoint = load(source, dtype=getattr(torch, dtype), check=False)
    loaded = _peak_bytes()
    with torch.inference_mode():
        if checkpoint.causal:
            cache = caches.filled_cache(checkpoint, batch, context - 1, seed=0)
            caches.advance(checkpoint, cache, torch.ones(batch, 1, dtype=torch.int64))
        else:
            checkpoint.forward(torch.ones(batch, context, dtype=torch.int64))
    return MemoryUse(imported, loaded, _peak_bytes())


def _peak_bytes() -> int:
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    print(json.dumps(asdict(_run(**json.loads(sys.argv[1])))))
