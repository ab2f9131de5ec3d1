"""What is lost when KV groups are removed, by score, with and without compensation.

The demo model, scored and compensated on speeches, judged on held-out ones: the loss added, with a paired interval over
documents.

    python benchmarks/pruning.py --speeches FOLDER --threads 2
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from headwise.bench import environment_record
from headwise.intervals import bootstrap_interval
from headwise.models import load
from headwise.models.corpus import cut_rows, read_corpus
from headwise.models.questions import document_losses
from headwise.surgery.prune import prune
from headwise.surgery.pruning.scores import score_units

RESULTS = Path(__file__).parent / "results"
SCORES = ("first-order", "contribution", "magnitude", "random")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what removing KV groups adds to the loss.")
    parser.add_argument("--speeches", type=Path, required=True, help="a folder of texts to calibrate and judge on")
    parser.add_argument("--heads", type=int, nargs="+", default=[27, 54, 90], help="query heads to remove")
    parser.add_argument("--scores", nargs="+", default=list(SCORES), help="which scores choose them")
    parser.add_argument("--threads", type=int, help="threads for torch (default: as many as torch chooses)")
    parser.add_argument("--out", type=Path, default=RESULTS / "pruning.json", help="the JSON file")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    model, corpus = load("demo"), read_corpus(options.speeches)
    sizes: dict[str, Any] = {"length": 256, "seed": 0}
    calibration = cut_rows(corpus.working, model.tokenizer, tokens=8_192, what="calibration", **sizes)
    held_out = cut_rows(corpus.held_out, model.tokenizer, tokens=8_192, what="held-out loss", **sizes)
    before = document_losses(model, held_out, seed=0)
    results: list[dict[str, Any]] = []
    for score in options.scores:
        scores = score_units(model, calibration, score=score, unit="group", seed=0)
        for heads in options.heads:
            for compensate in (False, True):
                started = time.monotonic()
                pruned = prune(model, calibration, heads=heads, scores=scores, compensate=compensate)
                added = document_losses(pruned, held_out, seed=0) - before
                low, high = (float(bound) for bound in bootstrap_interval(added, 0))
                told = {"score": score, "heads": heads, "compensated": compensate, "added": float(added.mean())}
                told |= {"low": low, "high": high, "seconds": round(time.monotonic() - started, 1)}
                results.append(told)
                print(json.dumps(told), flush=True)
                written = {"environment": environment_record(), "loss": float(before.mean()), "results": results}
                options.out.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    print(f"{len(before)} documents; written to {options.out}")


if __name__ == "__main__":
    main()
