"""headwise attention beside PyTorch's own, on this machine's CPU.

Three ways to compute the same attention take turns in one process: `headwise.attention.attention`, PyTorch's
`scaled_dot_product_attention` with `enable_gqa=True`, and the same with K and V repeated for every query head first,
as model code often does. What is written down are ratios of times from the same round, with the machine they were
taken on. Before anything is timed, all three must give the same numbers.

    python benchmarks/attention.py --rounds 25 --threads 2
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headwise import HeadLayout, native
from headwise.attention import attention
from headwise.bench import PairedTimes, environment_record, measure_paired

RESULTS = Path(__file__).parent / "results"
HEADWISE, GROUPED, REPEATED = "headwise", "sdpa_enable_gqa", "sdpa_repeated"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """One shape: decoding has one query per sequence, prefill as many queries as keys."""

    layout: HeadLayout
    batch: int
    queries: int
    keys: int
    dtype: str

    @property
    def name(self) -> str:
        kind = "decode" if self.queries == 1 else "prefill"
        layout = f"{self.layout.num_heads}/{self.layout.num_kv_heads}/{self.layout.head_dim}"
        return f"{kind} {layout} batch {self.batch} keys {self.keys} {self.dtype}"

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Random query `[B, H, L, D]`, key and value `[B, G, S, D]`, the same each time."""
        generator = torch.Generator().manual_seed(8191)
        layout = self.layout
        shapes = [(layout.num_heads, self.queries), (layout.num_kv_heads, self.keys), (layout.num_kv_heads, self.keys)]
        query, key, value = (
            torch.randn(self.batch, heads, length, layout.head_dim, generator=generator).to(DTYPES[self.dtype])
            for heads, length in shapes
        )
        return query, key, value


SMALL, MEDIUM, LARGE = HeadLayout(9, 3, 64), HeadLayout(8, 2, 128), HeadLayout(32, 8, 128)
CASES = [
    Case(layout, batch, queries, keys, dtype)
    for dtype in DTYPES
    for layout in (SMALL, LARGE)
    for batch, queries, keys in ((1, 1, 2048), (4, 1, 2048), (1, 512, 512))
] + [Case(layout, 1, 4096, 4096, dtype) for dtype in DTYPES for layout in (SMALL, MEDIUM)]


def rivals(case: Case) -> dict[str, Callable[[], Tensor]]:
    """The three ways, each `() -> [B, H, L, D]`."""
    query, key, value = case.tensors()
    group_size = case.layout.group_size
    # SDPA aligns its causal mask top-left: right for prefill, while a single query simply sees every key.
    causal = case.queries > 1

    def repeated() -> Tensor:
        keys, values = (tensor.repeat_interleave(group_size, dim=1) for tensor in (key, value))
        return scaled_dot_product_attention(query, keys, values, is_causal=causal)

    return {
        HEADWISE: lambda: attention(query, key, value, causal=True),
        GROUPED: lambda: scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=True),
        REPEATED: repeated,
    }


def check_agreement(ways: dict[str, Callable[[], Tensor]], case: Case) -> None:
    """A time counts only for the right result: no way may be much further from float64 than PyTorch is by itself.

    Raises:
        SystemExit: one of them is.
    """
    query, key, value = (tensor.double() for tensor in case.tensors())
    exact = scaled_dot_product_attention(query, key, value, is_causal=case.queries > 1, enable_gqa=True)
    off = {name: (way().double() - exact).abs().max().item() for name, way in ways.items()}
    for name, distance in off.items():
        if not distance <= 4 * off[REPEATED]:
            sys.exit(
                f"benchmarks/attention: {case.name}: expected {name} to be at most 4 times as far from float64 as "
                f"{REPEATED} ({off[REPEATED]:.3g}), got {distance:.3g}; nothing is timed before that is right"
            )


def measure(case: Case, rounds: int) -> dict[str, object]:
    """The result of one case, as plain values that JSON can hold."""
    ways = rivals(case)
    with torch.inference_mode():
        check_agreement(ways, case)
        pilot = measure_paired(ways, rounds=3, warmup=2)
        # At least a millisecond between two looks at the clock, so that the looks themselves don't count.
        shortest = min(pilot.median(name) for name in ways)
        times = measure_paired(ways, rounds=rounds, warmup=1, runs_per_time=max(1, round(1e-3 / shortest)))
    result: dict[str, object] = {"case": case.name, "median_seconds": {name: times.median(name) for name in ways}}
    result["headwise_over"] = {name: _ratio(times, name) for name in (GROUPED, REPEATED)}
    if case.queries == 1:
        read = 2 * case.batch * case.layout.num_kv_heads * case.keys * case.layout.head_dim  # elements of K and V
        result["gigabytes_per_second"] = {
            name: read * DTYPES[case.dtype].itemsize / times.median(name) / 1e9 for name in ways
        }
    return result


def _ratio(times: PairedTimes, baseline: str) -> dict[str, float]:
    lower, upper = times.ratio_quartiles(HEADWISE, baseline)
    return {"median": times.median_ratio(HEADWISE, baseline), "lower_quartile": lower, "upper_quartile": upper}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time headwise attention beside PyTorch's own.")
    parser.add_argument("--rounds", type=int, default=25, help="how many times each way is timed (default: 25)")
    parser.add_argument("--threads", type=int, help="threads for torch (default: as many as torch chooses)")
    parser.add_argument("--out", type=Path, help="the JSON file (default: benchmarks/results/attention-<machine>.json)")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    results = []
    print(f"{'time of headwise over that of':<48}{GROUPED:>18}{REPEATED:>18}")
    for case in CASES:
        results.append(measure(case, options.rounds))
        ratios: dict[str, dict[str, float]] = results[-1]["headwise_over"]  # type: ignore[assignment]
        print(f"{case.name:<48}" + "".join(f"{ratios[name]['median']:>18.2f}" for name in (GROUPED, REPEATED)))
    record = {"environment": environment_record(), "rounds": options.rounds, "results": results}
    if native.is_built():
        record["read_bandwidth_gigabytes_per_second"] = native.read_bandwidth(torch.get_num_threads()).median
    machine = f"{environment_record()['instruction_set']}".split()[0]
    file = options.out or RESULTS / f"attention-{machine}-{torch.get_num_threads()}-threads.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"written to {file}")


if __name__ == "__main__":
    main()
