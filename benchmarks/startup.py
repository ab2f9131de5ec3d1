"""How long a person waits for a command that computes next to nothing: processor time of fresh processes.

The commands take turns with `import typer.rich_utils`, which is what typer loads to print any help; the ratio to it
says what headwise adds. Bytecode is written in the first round, which is not timed. `headwise doctor` is left out: it
measures the memory bandwidth. What the same commands may do at most is counted in tests/test_imports.py and
tests/cli/test_plan.py.

    python benchmarks/startup.py --rounds 25
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from headwise.bench import PairedTimes, environment_record, measure_paired

RESULTS = Path(__file__).parent / "results"
PYTHON, TYPER = "python -c pass", "import typer.rich_utils"
HELP, PLAN, PLAN_HELP = "headwise --help", "headwise plan CONFIG", "headwise plan --help"
COMMAND = "import sys; from headwise.cli.main import main; sys.exit(main())"  # as the installed script does
CONFIG = {
    "model_type": "gemma2",
    "hidden_size": 2304,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
    "max_position_embeddings": 8192,
}


def fresh(code: str, *words: str) -> Callable[[], object]:
    """Python code in a process of its own, which may keep its bytecode and prints into nothing."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["COLUMNS"] = "80"
    command = [sys.executable, "-c", code, *words]
    return lambda: subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


def processor_seconds() -> float:
    """Processor time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def spread(values: tuple[float, ...]) -> dict[str, float]:
    """The median, and the quartiles, between which half of the values lies."""
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": statistics.median(values), "lower_quartile": lower, "upper_quartile": upper}


def measure(rounds: int) -> PairedTimes:
    """All commands in turns."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(CONFIG), encoding="utf-8")
        rivals = {
            PYTHON: fresh("pass"),
            TYPER: fresh(TYPER),
            HELP: fresh(COMMAND, "--help"),
            PLAN: fresh(COMMAND, "plan", str(config)),
            PLAN_HELP: fresh(COMMAND, "plan", "--help"),
        }
        return measure_paired(rivals, rounds=rounds, warmup=1, clock=processor_seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the start of commands against what typer loads.")
    parser.add_argument("--rounds", type=int, default=25, help="how many times each command is timed (default: 25)")
    parser.add_argument("--out", type=Path, default=RESULTS / "startup.json", help="the JSON file")
    options = parser.parse_args()
    times = measure(options.rounds)
    results = []
    print(f"{'':<26}{'milliseconds':>14}{'over typer':>12}  (half of the rounds)")
    for name, seconds in times.seconds.items():
        ratio = spread(times.ratios(name, TYPER))
        results.append({"command": name, "seconds": spread(seconds), "over_typer": ratio})
        print(
            f"{name:<26}{1e3 * times.median(name):>14.0f}{ratio['median']:>12.2f}"
            f"  ({ratio['lower_quartile']:.2f} to {ratio['upper_quartile']:.2f})"
        )
    written = {"environment": environment_record(), "rounds": options.rounds, "results": results}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
