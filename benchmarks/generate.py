"""One more token of the demo model behind a long context: transformers as it comes beside headwise.

The model (SmolLM2-135M-Instruct) runs in bfloat16. Each way has its own copy of the model and its own cache, filled
with the same tokens; then both decode the same token again and again, in turns, taking it back each time.

* `transformers`: `attn_implementation="sdpa"` with its `DynamicCache`;
* `headwise`: `attn_implementation="headwise"` with `headwise_cache(model, capacity)`.

    python benchmarks/generate.py --contexts 128 2048 8000 --threads 2
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.bench import environment_record, measure_paired
from headwise.models import headwise_cache, load

RESULTS = Path(__file__).parent / "results"
STOCK, HEADWISE = "transformers", "headwise"
CHUNK = 512


def models() -> dict[str, Any]:
    """Two copies of the demo model in bfloat16, one for each way."""
    own = load("demo").model.to(torch.bfloat16).eval()
    stock = copy.deepcopy(own)
    stock.set_attn_implementation("sdpa")
    return {STOCK: stock, HEADWISE: own}


def step_of(model: Any, cache: Any, context: int) -> Callable[[], Tensor]:
    """Fill the cache with `context` tokens; what comes back decodes one more and takes it back."""
    generator = torch.Generator().manual_seed(8191)
    tokens = torch.randint(5, model.config.vocab_size, (1, context + 1), generator=generator)
    for part in tokens[:, :context].split(CHUNK, 1):
        model(input_ids=part, cache=cache, use_cache=True, logits_to_keep=1)

    def step() -> Tensor:
        logits: Tensor = model(input_ids=tokens[:, context:], cache=cache, use_cache=True).logits
        cache.crop(-1)
        return logits

    return step


def measure(ways: dict[str, Any], context: int, rounds: int) -> dict[str, Any]:
    """Seconds per token of both ways at one length."""
    from transformers import DynamicCache

    caches = {STOCK: DynamicCache(), HEADWISE: headwise_cache(ways[HEADWISE], context + 1)}
    steps = {name: step_of(model, caches[name], context) for name, model in ways.items()}
    off = (steps[STOCK]().float() - steps[HEADWISE]().float()).abs().max().item()
    times = measure_paired(steps, rounds=rounds, warmup=2)
    low, high = times.ratio_quartiles(STOCK, HEADWISE)
    return {
        "context": context,
        "median_seconds": {name: times.median(name) for name in steps},
        "transformers_over_headwise": {
            "median": times.median_ratio(STOCK, HEADWISE),
            "lower_quartile": low,
            "upper_quartile": high,
        },
        "largest_difference_of_logits": off,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Time one more token of the demo model behind a long context.")
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 2048, 8000], help="tokens before it")
    parser.add_argument("--rounds", type=int, default=15, help="how many times each way is timed (default: 15)")
    parser.add_argument("--threads", type=int, help="threads for torch (default: as many as torch chooses)")
    parser.add_argument("--out", type=Path, help="the JSON file (default: benchmarks/results/generate-<machine>.json)")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    ways, results = models(), []
    print(f"{'context':>8}{'transformers ms':>18}{'headwise ms':>14}{'ratio':>8}{'logits off by':>16}")
    with torch.inference_mode():
        for context in options.contexts:
            result = measure(ways, context, options.rounds)
            results.append(result)
            seconds = result["median_seconds"]
            print(
                f"{context:>8}{seconds[STOCK] * 1e3:>18.1f}{seconds[HEADWISE] * 1e3:>14.1f}"
                f"{result['transformers_over_headwise']['median']:>8.2f}{result['largest_difference_of_logits']:>16.3f}"
            )
    environment = environment_record()
    file = options.out or RESULTS / f"generate-{str(environment['instruction_set']).split()[0]}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"environment": environment, "results": results}, indent=2) + "\n", encoding="utf-8")
    print(f"written to {file}")


if __name__ == "__main__":
    main()
