"""One query per sequence over compact caches: codes of 8 and 4 bits, and blocks, against plain bfloat16 memory.

Decoding is bound by the bytes that it reads, so codes ought to save as much time as they save bytes. Two tables:

* kernels: `headwise.native_caches.decode_segments` over codes and blocks, beside `headwise.native.decode_attention`
  over the same keys and values in bfloat16. Every way works through buffers that together are larger than the caches of
  the processor. Blocks are taken in the order of the pool, and in a random one. Before anything is timed, all must give
  what they stand for.
* steps: `append` of one token and `attend` over all, through the caches of `headwise.cache`, in the shape of one layer
  of the demo model.

    python benchmarks/caches.py --rounds 15 --threads 2
    python benchmarks/caches.py --cases "32/8/128"
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise import HeadLayout, native
from headwise.attention.reference import reference_attention
from headwise.bench import PairedTimes, environment_record, measure_paired
from headwise.cache import BlockPool, DenseCache, PagedCache, QuantizedCache, attend
from headwise.cache.quantization import dequantize, quantize
from headwise.native_caches import Memory, Segment, decode_segments

RESULTS = Path(__file__).parent / "results"
PLAIN = "bfloat16"
BLOCK = 16
Way = Callable[[], Tensor]


@dataclass(frozen=True)
class Case:
    """One shape: query `[1, H, 1, D]`, keys and values `[1, G, S, D]`."""

    layout: HeadLayout
    keys: int

    @property
    def name(self) -> str:
        layout = f"{self.layout.num_heads}/{self.layout.num_kv_heads}/{self.layout.head_dim}"
        return f"{layout} keys {self.keys}"

    @property
    def bytes_read(self) -> int:
        """Bytes of the keys and values in bfloat16."""
        return 4 * self.layout.num_kv_heads * self.keys * self.layout.head_dim


CASES = [
    Case(HeadLayout(32, 32, 128), 8192),
    Case(HeadLayout(32, 8, 128), 8192),
    Case(HeadLayout(32, 8, 128), 32768),
    Case(HeadLayout(28, 4, 128), 32768),
    Case(HeadLayout(9, 3, 64), 32768),
]


def copies(room: int, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """As many copies as together fill `room` bytes, two at least."""
    count = max(2, -(-room // sum(tensor.nbytes for tensor in tensors)))
    return [tensors, *(tuple(tensor.clone() for tensor in tensors) for _ in range(count - 1))]


def over_segments(query: Tensor, case: Case, memories: list[Memory], table: Tensor | None = None) -> Way:
    """One call per turn, each on the next memory."""
    turns, output, scale = cycle(memories), torch.empty_like(query), case.layout.head_dim**-0.5

    def run() -> Tensor:
        segment = Segment(next(turns), (0,), (case.keys,), (0,), table)
        decode_segments(
            query,
            [segment],
            output,
            kv_heads=case.layout.num_kv_heads,
            keys=case.keys,
            offsets=[case.keys - 1],
            scale=scale,
            threads=torch.get_num_threads(),
        )
        return output

    return run


def over_plain(query: Tensor, case: Case, caches: list[tuple[Tensor, ...]]) -> Way:
    turns, output, scale = cycle(caches), torch.empty_like(query), case.layout.head_dim**-0.5

    def run() -> Tensor:
        key, value = next(turns)
        options: dict[str, Any] = {"offsets": [case.keys - 1], "scale": scale, "threads": torch.get_num_threads()}
        native.decode_attention(query, key, value, output, **options)
        return output

    return run


def quantized(query: Tensor, case: Case, bits: int, room: int, key: Tensor, value: Tensor) -> Way:
    tensors = (*quantize(key, bits), *quantize(value, bits))
    memories = [
        Memory(codes, value_codes, bits=bits, key_scales=scales, value_scales=value_scales)
        for codes, scales, value_codes, value_scales in copies(room, *tensors)
    ]
    return over_segments(query, case, memories)


def paged(query: Tensor, case: Case, order: Tensor, room: int, *tensors: Tensor) -> Way:
    """Blocks of which number `i` of the text is number `order[i]` of the pool."""
    pools = []
    for tensor in tensors:
        blocks = tensor[0].unflatten(1, (-1, BLOCK)).transpose(0, 1)  # [blocks, G, 16, D]
        pools.append(blocks[order.argsort()].contiguous())
    return over_segments(query, case, [Memory(*pair) for pair in copies(room, *pools)], order[None].contiguous())


def check(case: Case, name: str, way: Way, query: Tensor, key: Tensor, value: Tensor) -> None:
    """A time counts only for the right result: within twice what rounding keys, values and output to bfloat16 costs.

    Raises:
        SystemExit: it isn't.
    """
    exact = reference_attention(query, key, value).output
    rounded = reference_attention(query, key.bfloat16(), value.bfloat16()).output.bfloat16()
    off = float((way().double() - exact).abs().max())
    allowed = 2 * max(float((rounded.double() - exact).abs().max()), float(exact.abs().max()) * 2**-8)
    if not off <= allowed:
        sys.exit(
            f"benchmarks/caches: {case.name}: expected {name} to be at most {allowed:.3g} from float64, got {off:.3g}; "
            "nothing is timed before that is right"
        )


def measure_kernels(case: Case, rounds: int, room: int) -> dict[str, object]:
    """The result of one case, as plain values that JSON can hold."""
    generator = torch.Generator().manual_seed(8191)
    layout = case.layout
    shapes = [(1, number, length, layout.head_dim) for number, length in
              ((layout.num_heads, 1), (layout.num_kv_heads, case.keys), (layout.num_kv_heads, case.keys))]  # fmt: skip
    query, key, value = (torch.randn(shape, generator=generator).bfloat16() for shape in shapes)
    in_order = torch.arange(case.keys // BLOCK)
    anyhow = torch.randperm(case.keys // BLOCK, generator=generator)
    ways = {
        PLAIN: over_plain(query, case, copies(room, key, value)),
        "int8": quantized(query, case, 8, room, key, value),
        "int4": quantized(query, case, 4, room, key, value),
        "blocks in order": paged(query, case, in_order, room, key, value),
        "blocks anyhow": paged(query, case, anyhow, room, key, value),
    }
    for name, way in ways.items():
        bits = {"int8": 8, "int4": 4}.get(name)
        held = [key, value] if bits is None else [back(tensor, bits) for tensor in (key, value)]
        check(case, name, way, query, *held)
    times = measure_paired(dict(ways), rounds=rounds, warmup=1)
    return {
        "case": case.name,
        "bytes_in_bfloat16": case.bytes_read,
        "bfloat16_exceeds_last_level_cache": case.bytes_read > native.cache_sizes().l3,
        "bfloat16_gigabytes_per_second": case.bytes_read / times.median(PLAIN) / 1e9,
        "median_seconds": {name: times.median(name) for name in ways},
        "times_as_fast_as_bfloat16": {name: ratio(times, PLAIN, name) for name in ways if name != PLAIN},
    }


def back(tensor: Tensor, bits: int) -> Tensor:
    """What the codes of a tensor stand for, in float64."""
    codes, scales = quantize(tensor, bits)
    return dequantize(codes, scales.double(), tensor.shape[-1], bits, torch.float64)


def ratio(times: PairedTimes, numerator: str, denominator: str) -> dict[str, float]:
    lower, upper = times.ratio_quartiles(numerator, denominator)
    return {"median": times.median_ratio(numerator, denominator), "lower_quartile": lower, "upper_quartile": upper}


def measure_steps(held: int, dtype: torch.dtype, rounds: int) -> dict[str, object]:
    """Append one token and attend over all, in the shape of one layer of the demo model."""
    heads, kv_heads, width = 9, 3, 64
    geometry: dict[str, Any] = {"num_kv_heads": kv_heads, "head_dim": width, "dtype": dtype}
    capacity = held + 20 * rounds + 100
    caches: dict[str, Any] = {
        "dense": DenseCache(1, capacity=capacity, **geometry),
        "blocks of 16": PagedCache(BlockPool(capacity // BLOCK + 1, BLOCK, **geometry), 1),
        "8 bits": QuantizedCache(1, capacity=capacity, bits=8, **geometry),
        "4 bits": QuantizedCache(1, capacity=capacity, bits=4, **geometry),
    }
    key, value = torch.randn(2, 1, kv_heads, held, width).to(dtype)
    token = torch.randn(1, kv_heads, 1, width).to(dtype)
    query = torch.randn(1, heads, 1, width).to(dtype)

    def step(cache: Any) -> Callable[[], object]:
        def run() -> object:
            for _ in range(10):
                attend(query, cache.append(token, token))
            return cache

        return run

    for cache in caches.values():
        cache.append(key, value)
    times = measure_paired({name: step(cache) for name, cache in caches.items()}, rounds=rounds, warmup=1)
    return {
        "held": held,
        "dtype": str(dtype).removeprefix("torch."),
        "microseconds_per_step": {name: 1e5 * times.median(name) for name in caches},
        "times_of_dense": {name: ratio(times, name, "dense") for name in caches if name != "dense"},
    }


def row(result: dict[str, Any]) -> str:
    """One line of the first table."""
    cells = [f"{result['case']:<24}", f"{result['bfloat16_gigabytes_per_second']:>8.1f}"]
    cells += [f"{found['median']:>18.2f}×" for found in result["times_as_fast_as_bfloat16"].values()]
    return "".join(cells) + ("" if result["bfloat16_exceeds_last_level_cache"] else " *")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time decoding over codes and blocks beside plain memory.")
    parser.add_argument("--rounds", type=int, default=15, help="how many times each way is timed (default: 15)")
    parser.add_argument("--threads", type=int, help="threads for all of them (default: as many as torch chooses)")
    parser.add_argument("--cases", default="", help="only cases whose name contains this")
    parser.add_argument(
        "--out", type=Path, default=RESULTS / "caches.json", help="the JSON file (default: %(default)s)"
    )
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    room = max(128 << 20, 4 * native.cache_sizes().l3)
    print("GB/s in bfloat16, and times as fast as that (* bfloat16 fits into the cache)")
    print(f"{'':<24}{PLAIN:>8}{'int8':>19}{'int4':>19}{'blocks in order':>19}{'blocks anyhow':>19}")
    kernels, steps = [], []
    with torch.inference_mode():
        for case in CASES:
            if options.cases in case.name:
                kernels.append(measure_kernels(case, options.rounds, room))
                print(row(kernels[-1]), flush=True)
        for held in (2000, 8000):
            for dtype in (torch.float32, torch.bfloat16):
                steps.append(measure_steps(held, dtype, options.rounds))
                told = {name: round(each) for name, each in steps[-1]["microseconds_per_step"].items()}  # type: ignore[attr-defined]
                print(f"append and attend, µs: {held} tokens, {steps[-1]['dtype']}: {told}", flush=True)
    record = {"environment": environment_record(), "isa": native.instruction_sets()[-1], "rounds": options.rounds}
    record |= {"threads": torch.get_num_threads(), "kernels": kernels, "steps": steps}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
