"""Windows on half of the heads: does the time follow the pairs of queries and keys that are visible?

Causal attention over a long sequence runs with no window and with a window on every second group of heads, in turns.
What the visible pairs predict is the time without windows times the share of its pairs that are left.

    python benchmarks/windows.py --threads 2
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from headwise.attention import attention
from headwise.bench import environment_record, measure_paired

RESULTS = Path(__file__).parent / "results"
LAYOUTS = ((8, 2, 128), (9, 3, 64))
FULL, MIXED = "no window", "windows"


def visible_pairs(length: int, window: int | None) -> int:
    """Pairs that one causal head sees; its window counts the query's own key."""
    seen = length if window is None else min(window, length)
    return seen * (seen + 1) // 2 + (length - seen) * seen


def measure(layout: tuple[int, int, int], dtype: torch.dtype, length: int, window: int, rounds: int) -> dict[str, Any]:
    """Times of both, and the time that the pairs predict."""
    heads, kv_heads, width = layout
    generator = torch.Generator().manual_seed(31)
    query, key, value = (
        torch.randn(1, count, length, width, generator=generator).to(dtype) for count in (heads, kv_heads, kv_heads)
    )
    narrow = [head % 2 == 1 for head in range(heads)]
    spans = [(window - 1, 0) if one else None for one in narrow]
    ways = {
        FULL: lambda: attention(query, key, value, causal=True),
        MIXED: lambda: attention(query, key, value, causal=True, window=spans),
    }
    times = measure_paired(ways, rounds=rounds, warmup=1)
    pairs = sum(visible_pairs(length, window if one else None) for one in narrow)
    predicted = pairs / (heads * visible_pairs(length, None))
    return {
        "case": f"{heads}/{kv_heads}/{width} {str(dtype).removeprefix('torch.')}",
        "length": length,
        "window": window,
        "median_seconds": {name: times.median(name) for name in ways},
        "share_of_pairs": predicted,
        "time_over_prediction": times.median_ratio(MIXED, FULL) / predicted,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Time windows on half of the heads against what pairs predict.")
    parser.add_argument("--length", type=int, default=16_384, help="tokens (default: 16384)")
    parser.add_argument("--window", type=int, default=512, help="keys a query sees, its own included (default: 512)")
    parser.add_argument("--rounds", type=int, default=5, help="how many times each way is timed (default: 5)")
    parser.add_argument("--threads", type=int, help="threads for torch (default: as many as torch chooses)")
    parser.add_argument("--out", type=Path, default=RESULTS / "windows.json", help="the JSON file")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    results = []
    print(f"{'':<20}{'no window s':>14}{'windows s':>12}{'pairs left':>12}{'time over prediction':>22}")
    for layout in LAYOUTS:
        for dtype in (torch.float32, torch.bfloat16):
            result = measure(layout, dtype, options.length, options.window, options.rounds)
            results.append(result)
            seconds = result["median_seconds"]
            print(
                f"{result['case']:<20}{seconds[FULL]:>14.2f}{seconds[MIXED]:>12.2f}{result['share_of_pairs']:>12.3f}"
                f"{result['time_over_prediction']:>22.2f}"
            )
    written = {"environment": environment_record(), "results": results}
    options.out.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
