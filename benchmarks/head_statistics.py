"""Reading every head of the demo model beside running it plainly.

The model is SmolLM2-135M-Instruct in float32 (30 layers of 9 heads over 3 KV heads of width 64), up to its last hidden
states. Three ways take turns in one process:

* `sdpa`: transformers with `attn_implementation="sdpa"`, which reads nothing;
* `headwise`: the same with `attn_implementation="headwise"`, which reads nothing either;
* `reading`: `headwise.study`'s reading: every relation of a text sample with its shuffled twins and a target per query,
  entropy, largest weight, distance, and their values under uniform attention.

Peak memory is that of a process of its own for each way: all of it, Python, PyTorch and the weights included, and what
the way adds to the loaded model.

    python benchmarks/head_statistics.py --lengths 4096 8192 --threads 2
"""

from __future__ import annotations

import argparse
import copy
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.attention import head_statistics
from headwise.bench import environment_record, measure_paired
from headwise.models import Checkpoint, HeadCall, load
from headwise.study.relations import Target
from headwise.study.samples import Sample
from headwise.study.scores import delimiter_ids, score_sample, text_relations

RESULTS = Path(__file__).parent / "results"
STOCK, HEADWISE, READING = "sdpa", "headwise", "reading"
MEBIBYTE = 2**20


def tokens_of(checkpoint: Checkpoint, length: int) -> Tensor:
    """Random tokens `[1, length]`, the second half as the first, so that there is something to find."""
    generator = torch.Generator().manual_seed(8191)
    tokens = torch.randint(5, checkpoint.model.config.vocab_size, (1, length), generator=generator)
    half = length // 2
    tokens[:, half : 2 * half] = tokens[:, :half].clone()
    return tokens


def relations_of(checkpoint: Checkpoint, tokens: Tensor) -> list[Any]:
    """All that the study reads, and a target per query."""
    half = torch.arange(tokens.shape[1]) - tokens.shape[1] // 2
    relations = text_relations(tokens, delimiter_ids(checkpoint.tokenizer), seed=0)
    return [*relations, Target(half.clamp(min=-1), "first copy")]


def reading_of(checkpoint: Checkpoint, length: int) -> Callable[[], Any]:
    tokens = tokens_of(checkpoint, length)
    sample = Sample(tokens, (0,), torch.ones(length, dtype=torch.bool))
    relations = relations_of(checkpoint, tokens)
    return lambda: score_sample(checkpoint, sample, relations)


def running_of(checkpoint: Checkpoint, length: int, attention: str) -> Callable[[], Tensor]:
    """The plain forward pass of a copy; `sdpa` has masks and attention of transformers alone."""
    model = copy.copy(checkpoint)
    model.model = copy.deepcopy(checkpoint.model)
    model.model.set_attn_implementation(attention)
    tokens = tokens_of(checkpoint, length)
    return lambda: model.body(tokens)


def check_agreement(checkpoint: Checkpoint, length: int) -> float:
    """How far the kernels' statistics of one layer lie from float64, in times of how far PyTorch's operations do.

    Raises:
        SystemExit: it is more than twice as far for one of them.
    """
    tokens = tokens_of(checkpoint, length)
    relations, ratios = relations_of(checkpoint, tokens), []

    def compare(call: HeadCall) -> None:
        if call.layer != 7:
            return
        query, key = call.query, call.key
        exact = head_statistics(query.double(), key.double(), relations, **call.arguments)
        found, plain = (head_statistics(query, key, relations, **call.arguments, backend=one) for one in (None, "math"))
        for field in ("mass", "entropy", "largest", "distance", "lse"):
            right = getattr(exact, field)
            off, budget = (float((getattr(one, field) - right).square().mean().sqrt()) for one in (found, plain))
            ratios.append(off / budget)

    with checkpoint.observe(compare):
        checkpoint.body(tokens)
    if not max(ratios) <= 2:
        sys.exit(
            "benchmarks/head_statistics: expected errors of at most twice those of PyTorch's operations, got "
            f"{max(ratios):.2f} times; nothing is timed before that is right"
        )
    return max(ratios)


def measure_times(length: int, rounds: int) -> dict[str, Any]:
    """Seconds of the three ways in turns."""
    checkpoint = load("demo")
    ways: dict[str, Callable[[], object]] = {
        STOCK: running_of(checkpoint, length, "sdpa"),
        HEADWISE: running_of(checkpoint, length, "headwise"),
        READING: reading_of(checkpoint, length),
    }
    with torch.inference_mode():
        error_ratio = check_agreement(checkpoint, 512)
        times = measure_paired(ways, rounds=rounds, warmup=1)
    over = {}
    for baseline in (STOCK, HEADWISE):
        lower, upper = times.ratio_quartiles(READING, baseline)
        median = times.median_ratio(READING, baseline)
        over[baseline] = {"median": median, "lower_quartile": lower, "upper_quartile": upper}
    seconds = {name: times.median(name) for name in ways}
    return {"length": length, "median_seconds": seconds, "reading_over": over, "error_over_pytorch": error_ratio}


def peak_bytes() -> int:
    """The highest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def measure_memory_here(way: str, length: int) -> dict[str, int]:
    """One pass in this process, which has done nothing but load the model."""
    checkpoint = load("demo")
    if way == STOCK:
        checkpoint.model.set_attn_implementation("sdpa")
    tokens = tokens_of(checkpoint, length)
    run = reading_of(checkpoint, length) if way == READING else lambda: checkpoint.body(tokens)
    loaded = peak_bytes()
    with torch.inference_mode():
        run()
    return {"loaded_bytes": loaded, "peak_bytes": peak_bytes()}


def measure_memory(way: str, length: int, threads: int) -> dict[str, int]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", way, "--lengths", str(length), "--threads", str(threads)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    measured: dict[str, int] = json.loads(output.splitlines()[-1])
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description="Time reading all heads beside running the model.")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192], help="tokens")
    parser.add_argument("--rounds", type=int, default=7, help="how many times each way is timed (default: 7)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads for torch")
    parser.add_argument(
        "--out", type=Path, help="the JSON file (default: benchmarks/results/head-statistics-<machine>.json)"
    )
    parser.add_argument("--one", choices=(STOCK, HEADWISE, READING), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one:
        print(json.dumps(measure_memory_here(options.one, options.lengths[0])))
        return
    results = []
    print(f"{'tokens':>8}{'way':>12}{'seconds':>10}{'peak MiB':>10}{'added MiB':>11}")
    for length in options.lengths:
        memory = {way: measure_memory(way, length, options.threads) for way in (STOCK, HEADWISE, READING)}
        result = measure_times(length, options.rounds)
        results.append({**result, "memory": memory})
        for way, one in memory.items():
            peak, added = one["peak_bytes"] / MEBIBYTE, (one["peak_bytes"] - one["loaded_bytes"]) / MEBIBYTE
            print(f"{length:>8}{way:>12}{result['median_seconds'][way]:>10.2f}{peak:>10.0f}{added:>11.0f}")
        ratio, peaks = (
            result["reading_over"][STOCK]["median"],
            memory[READING]["peak_bytes"] / memory[STOCK]["peak_bytes"],
        )
        print(f"{length:>8}{READING + ' / ' + STOCK:>18}: {ratio:.2f} of its time, {peaks:.2f} of its memory")
    environment = environment_record()
    file = options.out or RESULTS / f"head-statistics-{str(environment['instruction_set']).split()[0]}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"environment": environment, "results": results}, indent=2) + "\n", encoding="utf-8")
    print(f"written to {file}")


if __name__ == "__main__":
    main()
