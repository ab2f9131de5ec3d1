"""What a long context costs one more token: llama.cpp beside headwise, on the same model file.

Both decode one token of the demo model (SmolLM2-135M-Instruct) behind a short and behind a long context. The
difference is the time of attention over the keys between; the rest of the model, which is quantized in llama.cpp and
bfloat16 in transformers, falls out of it.

* `headwise`: transformers in bfloat16 with `attn_implementation="headwise"` and `headwise_cache`;
* `llama.cpp`: through `llama-cpp-python`, with flash attention and its default cache in float16, as many threads.

llama.cpp works in a process of its own, and the two take turns of several tokens each. It may be installed for another
Python than headwise; where there is none it is named as absent.

    python benchmarks/llama.py --contexts 128 8000 --threads 2 --llama-python ~/llama/bin/python
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.bench import environment_record
from headwise.models import headwise_cache, load
from headwise.models.gguf import demo_file

RESULTS, WORKER = Path(__file__).parent / "results", Path(__file__).parent / "llama_worker.py"
HEADWISE, LLAMA = "headwise", "llama.cpp"
CHUNK = 512
Step = Callable[[], Tensor]


@dataclass
class Peer:
    """The process in which llama.cpp runs."""

    process: subprocess.Popen[str]
    version: str = ""
    logits: dict[str, list[float]] = field(default_factory=dict)  # by context

    def ask(self, line: str) -> str:
        """Its answer to one line.

        Raises:
            SystemExit: it ended instead.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"benchmarks/llama: expected an answer from llama.cpp, but it ended with {self.process.wait()}")
        return answer

    def seconds(self, context: int, count: int) -> float:
        """Time of one token behind a context, in seconds."""
        return float(self.ask(f"{context} {count}"))


def has_llama(python: str) -> bool:
    """Whether that Python has llama-cpp-python."""
    # Isolated, so that no file of this folder is taken for the package.
    found = subprocess.run([python, "-I", "-c", "import llama_cpp"], capture_output=True, check=False)
    return found.returncode == 0


def start_peer(python: str, tokens: list[int], contexts: list[int]) -> Peer:
    """llama.cpp with the tokens of every context in its caches."""
    given = {"file": str(demo_file()), "tokens": tokens, "contexts": contexts, "threads": torch.get_num_threads()}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    peer = Peer(subprocess.Popen([python, "-I", str(WORKER)], **pipes))
    first = json.loads(peer.ask(json.dumps(given)))
    peer.version, peer.logits = first["version"], first["logits"]
    return peer


def step_of(model: Any, tokens: list[int], context: int) -> Step:
    """headwise with `context` tokens in a cache of its own; what comes back decodes one more and takes it back."""
    cache, given = headwise_cache(model, context + 1), torch.tensor([tokens])
    for part in given[:, :context].split(CHUNK, 1):
        model(input_ids=part, cache=cache, use_cache=True, logits_to_keep=1)

    def step() -> Tensor:
        logits: Tensor = model(input_ids=given[:, context : context + 1], cache=cache, use_cache=True).logits[0, -1]
        cache.crop(-1)
        return logits

    return step


def seconds_of(step: Step, count: int) -> float:
    """Time of one token, after one that is not timed."""
    step()
    start = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - start) / count


def check_same_model(steps: dict[int, Step], peer: Peer) -> dict[str, float]:
    """The correlation of the logits at each context; rounding to 4 and 8 bits leaves it near 1.

    Raises:
        SystemExit: the two do not compute the same.
    """
    found = {}
    for context, step in steps.items():
        both = torch.stack((step().double(), torch.tensor(peer.logits[str(context)]).double()))
        found[str(context)] = float(torch.corrcoef(both)[0, 1])
        if not found[str(context)] > 0.9:
            sys.exit(
                f"benchmarks/llama: expected logits of both that go together behind {context} tokens (correlation "
                f"above 0.9), got {found[str(context)]:.3f}; nothing is timed before that is right"
            )
    return found


def in_turns(steps: dict[int, Step], peer: Peer | None, rounds: int, count: int) -> dict[str, list[dict[int, float]]]:
    """Seconds per token by context, one entry per round."""
    ways: dict[str, Callable[[int], float]] = {HEADWISE: lambda context: seconds_of(steps[context], count)}
    if peer is not None:
        ways[LLAMA] = lambda context: peer.seconds(context, count)
    times: dict[str, list[dict[int, float]]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name in sorted(ways, reverse=turn % 2 == 1):
            times[name].append({context: ways[name](context) for context in steps})
    return times


def differences(times: list[dict[int, float]]) -> list[float]:
    """What the longest context costs above the shortest, one entry per round."""
    return [one[max(one)] - one[min(one)] for one in times]


def summary(times: dict[str, list[dict[int, float]]]) -> dict[str, Any]:
    """Medians, and the ratio of the differences of headwise and llama.cpp round by round."""
    result: dict[str, Any] = {"median_seconds": {}, "median_seconds_of_context": {}}
    for name, each in times.items():
        result["median_seconds"][name] = {
            str(context): statistics.median(one[context] for one in each) for context in each[0]
        }
        result["median_seconds_of_context"][name] = statistics.median(differences(each))
    if LLAMA in times:
        pairs = zip(differences(times[HEADWISE]), differences(times[LLAMA]), strict=True)
        lower, median, upper = statistics.quantiles([own / other for own, other in pairs], n=4, method="inclusive")
        result["headwise_over_llama_cpp"] = {"median": median, "lower_quartile": lower, "upper_quartile": upper}
    return result


def print_table(result: dict[str, Any]) -> None:
    contexts = list(result["median_seconds"][HEADWISE])
    print(f"{'ms per token at':<18}" + "".join(f"{context:>10}" for context in contexts) + f"{'difference':>14}")
    for name in (HEADWISE, LLAMA):
        if name not in result["median_seconds"]:
            print(f"{name:<18}{'absent':>10}  (pip install llama-cpp-python, here or where --llama-python says)")
            continue
        seconds = result["median_seconds"][name]
        cells = "".join(f"{seconds[context] * 1e3:>10.1f}" for context in contexts)
        print(f"{name:<18}{cells}{result['median_seconds_of_context'][name] * 1e3:>14.1f}")
    if "headwise_over_llama_cpp" in result:
        ratio = result["headwise_over_llama_cpp"]
        print(
            f"headwise over llama.cpp, differences of the same round: {ratio['median']:.2f} "
            f"(quartiles {ratio['lower_quartile']:.2f} to {ratio['upper_quartile']:.2f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Time what a long context costs one token, beside llama.cpp.")
    parser.add_argument("--contexts", type=int, nargs=2, default=[128, 8000], help="a short and a long one, in tokens")
    parser.add_argument("--rounds", type=int, default=9, help="how many turns each takes (default: 9)")
    parser.add_argument("--tokens", type=int, default=5, help="tokens timed per turn and context (default: 5)")
    parser.add_argument("--threads", type=int, help="threads for both (default: as many as torch chooses)")
    parser.add_argument("--llama-python", default=sys.executable, help="a Python that has llama-cpp-python")
    parser.add_argument("--out", type=Path, default=RESULTS / "llama_cpp.json", help="the JSON file")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    model = load("demo").model.to(torch.bfloat16).eval()
    generator = torch.Generator().manual_seed(8191)
    tokens = torch.randint(5, model.config.vocab_size, (max(options.contexts) + 1,), generator=generator).tolist()
    contexts = sorted(options.contexts)
    peer = start_peer(options.llama_python, tokens, contexts) if has_llama(options.llama_python) else None
    with torch.inference_mode():
        steps = {context: step_of(model, tokens, context) for context in contexts}
        correlation = None if peer is None else check_same_model(steps, peer)
        result = summary(in_turns(steps, peer, options.rounds, options.tokens))
    if peer is not None:
        peer.process.communicate()  # nothing more to say: it ends
    print_table(result)
    result |= {"absent": [LLAMA] if peer is None else [], "correlation_of_logits": correlation}
    versions = {"llama-cpp-python": None if peer is None else peer.version}
    record = {"environment": environment_record(), "model": demo_file().name, **versions, "results": result}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
