"""How far a short training brings a model with shared KV heads back: mean pooling and `pca`, on the same tokens.

The demo model with one KV head in place of three, trained against the original (attention only) on speeches, judged on
held-out ones. The original trained on the same tokens by cross entropy tells what the text alone brings.

    headwise convert demo --kv-heads 1 --documents SPEECHES --length 512 --out build/mqa
    python benchmarks/uptraining.py --speeches SPEECHES --converted build/mqa --threads 2
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from headwise.bench import environment_record
from headwise.models import Checkpoint, load
from headwise.models.corpus import Corpus, read_corpus
from headwise.surgery.convert import Recipe, convert
from headwise.surgery.uptrain import uptrain

RESULTS = Path(__file__).parent / "results"


def train(student: Checkpoint, teacher: Checkpoint, corpus: Corpus, tokens: int, control: bool) -> dict[str, Any]:
    """The record of one training, without what is as long as the training."""
    record = uptrain(student, teacher, corpus, tokens, points=5, control=control).record
    return {name: told for name, told in record.items() if name not in ("documents", "held_out", "steps")}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train models with shared KV heads, and say what it brings.")
    parser.add_argument("--speeches", type=Path, required=True, help="a folder of texts to train and judge on")
    parser.add_argument("--converted", type=Path, required=True, help="the demo model converted to one KV head")
    parser.add_argument("--tokens", type=int, default=40_960, help="to train on (default: 40960)")
    parser.add_argument("--threads", type=int, help="threads for torch (default: as many as torch chooses)")
    parser.add_argument("--out", type=Path, default=RESULTS / "uptraining.json", help="the JSON file")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    teacher, corpus = load("demo"), read_corpus(options.speeches)
    converted, mean = load(options.converted), convert(teacher, 1, recipe=Recipe("mean"))
    runs = {
        "mean": (mean, options.tokens, False),
        "pca": (converted, options.tokens, True),
        "pca, a tenth of the tokens": (converted, options.tokens // 10, False),
    }
    results: dict[str, Any] = {}
    for name, (student, tokens, control) in runs.items():
        results[name] = train(student, teacher, corpus, tokens, control)
        written = {"environment": environment_record(), "results": results}
        options.out.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
        print(f"{name}: {json.dumps(results[name])}", flush=True)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
