"""One query per sequence against a long cache: how close attention comes to the speed at which memory can be read.

Decoding reads every key and value once and does little with them, so the measure is bytes of keys and values per
second, beside the speed of plain streaming reads in the same run. Four ways take turns in one process:

* `headwise`: `headwise.native.decode_attention`;
* `sdpa_enable_gqa`: PyTorch's `scaled_dot_product_attention(..., enable_gqa=True)`;
* `sdpa_folded`: the same with the query heads of a group as queries of its KV head, the fair way to use it;
* `onnxruntime`: its `GroupQueryAttention`, whose output has room for the cache (bfloat16 is not among its types).

Every way works through buffers that together are larger than the caches of the processor, so that none of them finds
its keys in a cache. Before anything is timed, all must give the same numbers.

    python benchmarks/decode.py --rounds 7 --threads 2
    python benchmarks/decode.py --cases "batch 1 keys 8192"

Each batch size and number of keys has a file of its own among the results.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headwise import HeadLayout, native
from headwise.bench import PairedTimes, environment_record, measure_paired

RESULTS = Path(__file__).parent / "results"
HEADWISE, GROUPED, FOLDED, ONNX = "headwise", "sdpa_enable_gqa", "sdpa_folded", "onnxruntime"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LAYOUTS = [(32, 8, 128), (32, 32, 128), (9, 3, 64), (28, 4, 128), (71, 1, 64)]
Way = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """One shape: query `[B, H, 1, D]`, keys and values `[B, G, S, D]`."""

    layout: HeadLayout
    batch: int
    keys: int
    dtype: str

    @property
    def name(self) -> str:
        layout = f"{self.layout.num_heads}/{self.layout.num_kv_heads}/{self.layout.head_dim}"
        return f"{layout} batch {self.batch} keys {self.keys} {self.dtype}"

    @property
    def bytes_read(self) -> int:
        """Bytes of the keys and values that one call reads."""
        elements = 2 * self.batch * self.layout.num_kv_heads * self.keys * self.layout.head_dim
        return elements * DTYPES[self.dtype].itemsize

    @property
    def set_name(self) -> str:
        """The cases that are written to one file."""
        return f"batch-{self.batch}-keys-{self.keys}"

    def count_buffers(self, room: int) -> int:
        """How many caches it takes to fill `room` bytes, two at least.

        One that is larger than twice that does by itself: when it has been read to its end, its beginning has left
        every cache long ago.
        """
        return 1 if self.bytes_read > 2 * room else max(2, -(-room // self.bytes_read))

    def buffers(self, room: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The caches, which all hold the same numbers."""
        generator = torch.Generator().manual_seed(8191)
        cached = (self.layout.num_kv_heads, self.keys)
        first = [
            torch.randn(self.batch, number, length, self.layout.head_dim, generator=generator).to(DTYPES[self.dtype])
            for number, length in ((self.layout.num_heads, 1), cached, cached)
        ]
        query, key, value = first
        others = range(self.count_buffers(room) - 1)
        return [(query, key, value), *((query, key.clone(), value.clone()) for _ in others)]


CASES = [
    Case(HeadLayout(*layout), batch, keys, dtype)
    for layout in LAYOUTS
    for dtype in DTYPES
    for batch, keys in ((1, 2048), (1, 8192), (1, 32768), (8, 2048), (8, 8192), (8, 32768))
]


def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    output = torch.empty_like(query)
    offsets = [key.shape[2] - 1] * query.shape[0]
    scale = query.shape[3] ** -0.5
    native.decode_attention(query, key, value, output, offsets=offsets, scale=scale, threads=torch.get_num_threads())
    return output


def grouped(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scaled_dot_product_attention(query, key, value, enable_gqa=True)


def folded(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    rows = query.view(query.shape[0], key.shape[1], -1, query.shape[3])  # [B, G, R, D]
    return scaled_dot_product_attention(rows, key, value).view(query.shape)


def onnx_way(case: Case, buffers: list[tuple[Tensor, Tensor, Tensor]]) -> Way | None:
    """ONNX Runtime with the last key and value as the new token; None where it isn't installed or has no such type."""
    try:
        import onnxruntime  # type: ignore[import-untyped]
        from onnx import TensorProto, helper
    except ImportError:
        return None
    types = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
    if case.dtype not in types:
        return None
    names = ["query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"]
    results = ["output", "present_key", "present_value"]
    sizes: dict[str, Any] = {"num_heads": case.layout.num_heads, "kv_num_heads": case.layout.num_kv_heads}
    node = helper.make_node("GroupQueryAttention", names, results, domain="com.microsoft", **sizes)
    kinds = [types[case.dtype]] * 5 + [TensorProto.INT32] * 2
    given = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(names, kinds, strict=True)]
    made = [helper.make_tensor_value_info(name, types[case.dtype], None) for name in results]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "decode", given, made), opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    # The present cache is bound to the memory of the past one, as its own generation loop does: nothing is copied.
    bound = {cache[1].data_ptr(): _bind(onnxruntime.OrtValue, session, case, cache) for cache in buffers}

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        binding, output, _ = bound[key.data_ptr()]
        session.run_with_iobinding(binding)
        return output

    return run


def _bind(
    make: Any, session: Any, case: Case, cache: tuple[Tensor, Tensor, Tensor]
) -> tuple[Any, Tensor, dict[str, Any]]:
    """Inputs and outputs tied to the tensors' own memory; the output; and what must stay alive with it."""
    query, key, value = cache
    output = torch.empty(case.batch, 1, case.layout.num_heads * case.layout.head_dim, dtype=query.dtype)
    tensors = {
        "query": query.transpose(1, 2).reshape(output.shape),
        "key": key[:, :, -1].reshape(case.batch, 1, -1),
        "value": value[:, :, -1].reshape(case.batch, 1, -1),
        "past_key": key,
        "past_value": value,
        "seqlens_k": torch.full((case.batch,), case.keys - 1, dtype=torch.int32),
        "total_sequence_length": torch.tensor([case.keys], dtype=torch.int32),
        "output": output,
    }
    held = {name: make.ortvalue_from_numpy(tensor.numpy()) for name, tensor in tensors.items()}
    binding = session.io_binding()
    for name in tensors:
        if name != "output":
            binding.bind_ortvalue_input(name, held[name])
    for name, memory in (("output", "output"), ("present_key", "past_key"), ("present_value", "past_value")):
        binding.bind_ortvalue_output(name, held[memory])
    return binding, output.view(query.shape), held


def in_double(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The result in float64, one KV head of one sequence after the other, since such copies of all need much memory."""
    rows = query.unflatten(1, (key.shape[1], -1)).squeeze(3)  # [B, G, R, D]
    exact = torch.empty_like(rows, dtype=torch.float64)
    for b in range(key.shape[0]):
        for g in range(key.shape[1]):
            exact[b, g] = scaled_dot_product_attention(rows[b, g].double(), key[b, g].double(), value[b, g].double())
    return exact.view(query.shape)


def check_agreement(ways: dict[str, Way], case: Case, cache: tuple[Tensor, Tensor, Tensor]) -> None:
    """A time counts only for the right result: none may be much further from float64 than PyTorch is by itself.

    Raises:
        SystemExit: one of them is.
    """
    exact = in_double(*cache)
    off = {name: float((way(*cache).double() - exact).abs().max()) for name, way in ways.items()}
    allowed = 4 * max(off[GROUPED], off[FOLDED])
    for name, distance in off.items():
        if not distance <= allowed:
            sys.exit(
                f"benchmarks/decode: {case.name}: expected {name} to be at most 4 times as far from float64 as PyTorch "
                f"({allowed / 4:.3g}), got {distance:.3g}; nothing is timed before that is right"
            )


def rotated(way: Way, buffers: list[tuple[Tensor, Tensor, Tensor]]) -> Callable[[], Tensor]:
    """One call per turn, each on the next buffer."""
    caches: Iterator[tuple[Tensor, Tensor, Tensor]] = cycle(buffers)
    return lambda: way(*next(caches))


def measure(case: Case, rounds: int, room: int) -> dict[str, object]:
    """The result of one case, as plain values that JSON can hold."""
    buffers = case.buffers(room)
    found = {HEADWISE: ours, GROUPED: grouped, FOLDED: folded, ONNX: onnx_way(case, buffers)}
    ways = {name: way for name, way in found.items() if way is not None}
    # As much memory per measurement as one call reads, but what no cache can hold.
    bandwidths: list[float] = []

    def read() -> None:
        bandwidths.append(native.read_bandwidth(torch.get_num_threads(), buffer_bytes=room, repeats=5).median)

    with torch.inference_mode():
        check_agreement(ways, case, buffers[0])
        turns: dict[str, Callable[[], object]] = {name: rotated(way, buffers) for name, way in ways.items()}
        times = measure_paired({**turns, "read": read}, rounds=rounds, warmup=1)
    bandwidth = statistics.median(bandwidths)
    speed = {name: case.bytes_read / times.median(name) / 1e9 for name in ways}
    return {
        "case": case.name,
        "bytes_read": case.bytes_read,
        "exceeds_last_level_cache": case.bytes_read > native.cache_sizes().l3,
        "absent": [name for name in found if name not in ways],
        "read_gigabytes_per_second": bandwidth,
        "median_seconds": {name: times.median(name) for name in ways},
        "gigabytes_per_second": speed,
        "share_of_reading": speed[HEADWISE] / bandwidth,
        "times_as_fast_as": {name: ratio(times, name) for name in ways if name != HEADWISE},
    }


def ratio(times: PairedTimes, other: str) -> dict[str, float]:
    """How many times as fast headwise is as the other, round by round."""
    lower, upper = times.ratio_quartiles(other, HEADWISE)
    return {"median": times.median_ratio(other, HEADWISE), "lower_quartile": lower, "upper_quartile": upper}


def row(result: dict[str, Any]) -> str:
    """One line of the table: GB/s, share of the reading speed, and how many times as fast as each peer."""
    cells = [f"{result['case']:<38}", f"{result['read_gigabytes_per_second']:>7.1f}"]
    cells.append(f"{result['gigabytes_per_second'][HEADWISE]:>9.1f}")
    cells.append(f"{100 * result['share_of_reading']:>6.0f} %" + (" " if result["exceeds_last_level_cache"] else "*"))
    for name in (GROUPED, FOLDED, ONNX):
        ratios = result["times_as_fast_as"]
        cells.append(f"{ratios[name]['median']:>15.1f}×" if name in ratios else f"{'absent':>16}")
    return "".join(cells)


def fits(case: Case, room: int) -> bool:
    """Whether its buffers, and the copy of its keys that ONNX Runtime makes, fit into this machine's memory."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return case.bytes_read * (case.count_buffers(room) + 1) < 0.9 * memory


def write(results: dict[str, list[dict[str, object]]], options: argparse.Namespace) -> None:
    """One file for each batch size and number of keys, or all into the one that was asked for."""
    files = {RESULTS / f"decode-{name}.json": found for name, found in results.items()}
    if options.out:
        files = {options.out: [one for found in results.values() for one in found]}
    for file, found in files.items():
        record = {"environment": environment_record(), "isa": native.instruction_sets()[-1], "results": found}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(record | {"rounds": options.rounds}, indent=2) + "\n", encoding="utf-8")
        print(f"written to {file}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time decoding attention beside its peers and the speed of memory.")
    parser.add_argument("--rounds", type=int, default=7, help="how many times each way is timed (default: 7)")
    parser.add_argument("--threads", type=int, help="threads for all of them (default: as many as torch chooses)")
    parser.add_argument("--cases", default="", help="only cases whose name contains this")
    parser.add_argument("--out", type=Path, help="one JSON file for all (default: one per batch and keys)")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    room = max(256 << 20, 4 * native.cache_sizes().l3)
    print("GB/s of plain reads and of headwise, its share (* fits into the cache), times as fast as")
    print(f"{'':<38}{'reads':>7}{HEADWISE:>9}{'share':>9}{GROUPED:>16}{FOLDED:>16}{ONNX:>16}")
    results: dict[str, list[dict[str, object]]] = {}
    for case in CASES:
        if options.cases in case.name:
            if not fits(case, room):
                print(f"{case.name:<38} left out: it needs more memory than there is", flush=True)
                continue
            result = measure(case, options.rounds, room)
            results.setdefault(case.set_name, []).append(result)
            print(row(result), flush=True)
    write(results, options)


if __name__ == "__main__":
    main()
