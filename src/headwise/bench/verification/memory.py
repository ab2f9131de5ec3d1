"""Peak memory of a model, taken in a process of its own.

What counts is told in :mod:`headwise.bench.processes`: a peak never falls in the life of a process, so each model gets
a fresh one; it opens the model, fills a cache, and decodes a token.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass

from headwise.bench.processes import peak_bytes, run_fresh

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
    done = run_fresh("headwise.bench.verification.memory", order, timeout)
    return done if isinstance(done, str) else MemoryUse(**done)


def _run(source: str, dtype: str, batch: int, context: int, threads: int) -> MemoryUse:
    import torch

    from headwise.bench.verification import caches
    from headwise.models import load

    torch.set_num_threads(threads)
    imported = peak_bytes()
    checkpoint = load(source, dtype=getattr(torch, dtype), check=False)
    loaded = peak_bytes()
    with torch.inference_mode():
        if checkpoint.causal:
            cache = caches.filled_cache(checkpoint, batch, context - 1, seed=0)
            caches.advance(checkpoint, cache, torch.ones(batch, 1, dtype=torch.int64))
        else:
            checkpoint.forward(torch.ones(batch, context, dtype=torch.int64))
    return MemoryUse(imported, loaded, peak_bytes())


if __name__ == "__main__":
    print(json.dumps(asdict(_run(**json.loads(sys.argv[1])))))
