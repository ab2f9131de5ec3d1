"""Peak memory of a process: how much physical memory it has held at most, as the system counts it.

With what the allocator keeps and with the pages of files, which torch's own count of its tensors leaves out. That
number doesn't fall by itself in the life of a process, so what is measured gets a fresh one. On Linux it is ``VmHWM``;
``getrusage`` would tell more: there a process inherits the peak of the one that started it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["forget_peak", "peak_bytes", "run_fresh"]


def run_fresh(module: str, order: Mapping[str, Any], timeout: float = 600.0) -> dict[str, Any] | str:
    """Run a module in a fresh process and read the object that it prints.

    Args:
        module: gets ``order`` as JSON in its only argument, and prints a JSON object as its last line.
        order: what to do.
        timeout: seconds until it is given up.

    Returns:
        The object, or in words why there is none.
    """
    command = [sys.executable, "-m", module, json.dumps(dict(order))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"the process took longer than {timeout:.0f} s"
    if done.returncode:
        words = done.stderr.strip().splitlines()[-1:] or [f"it ended with code {done.returncode}"]
        return words[0]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def forget_peak() -> bool:
    """Let the peak be what is held now, so that only what comes shows; False where the system can't (not Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def peak_bytes() -> int:
    """The most physical memory that this process has held so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
