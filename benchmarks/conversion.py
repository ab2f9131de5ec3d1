"""What is lost when KV heads are shared, by method: loss on held-out documents, without any training of the whole.

Two models: the demo model (3 KV heads to 1), calibrated on speeches and judged on held-out speeches, on Python's help
topics, and on copying random tokens; and a small model with a KV head for each of its 8 query heads, trained here from
scratch with three seeds and converted to 4, 2 and 1. Beside them the demo model with latent attention of several sizes.

What counts is the loss added, as a share of what mean pooling adds, with an interval over documents. Every recipe is
finished before the next one starts, and results are kept as they come.

    python benchmarks/conversion.py --speeches FOLDER --threads 2
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conversion_model import train_model

from headwise.bench import environment_record
from headwise.intervals import bootstrap_interval
from headwise.models import Checkpoint, load
from headwise.models.copies import mixed_with_copies
from headwise.models.corpus import Corpus, Rows, cut_rows, read_corpus
from headwise.models.losses import row_losses
from headwise.models.questions import document_losses
from headwise.study.samples import repeated_samples
from headwise.study.tasks import make_task
from headwise.surgery.convert import Recipe, convert
from headwise.surgery.mla.convert import convert_to_latent

RESULTS = Path(__file__).parent / "results"
RECIPES = {
    "mean": Recipe("mean"),
    "first": Recipe("first"),
    "aligned": Recipe("aligned", refit=False),
    "pca": Recipe("pca", refit=False, steps=0),
    "pca, output refitted": Recipe("pca", steps=0),
    "pca, output refitted, layers fitted (default)": Recipe("pca"),
    "as the default, calibrated on text alone": Recipe("pca"),
    "mean, output refitted, layers fitted": Recipe("mean", refit=True, steps=100),
}
TEXT_ALONE = "as the default, calibrated on text alone"
COPY_SHARE = 0.2  # the command's default
PARTS = ("demo", "scratch", "latent")
DEFAULT = "pca, output refitted, layers fitted (default)"
CALIBRATION, HELD_OUT, LENGTH = 32_768, 8_192, 512
COPIES = 32
LATENTS = ((256, 64), (192, 64), (128, 64), (96, 32))


class Judge:
    """Losses of models on the same held-out rows.

    Args:
        original: the model before.
        corpora: rows by name.
        copies: samples of random tokens repeated twice; 0 for none.
    """

    def __init__(self, original: Checkpoint, corpora: dict[str, Rows], copies: int) -> None:
        self._corpora = corpora
        self._copies = copies
        self.original = self.losses(original)

    def losses(self, model: Checkpoint) -> dict[str, np.ndarray]:
        """Loss per document (or sample), by corpus."""
        losses = {name: document_losses(model, rows, seed=0) for name, rows in self._corpora.items()}
        if self._copies:
            samples = repeated_samples(model.tokenizer, model.model.config, self._copies, 8, seed=0)
            task = make_task("repeated", samples, model, seed=0)
            with torch.no_grad():
                losses["second copy"] = torch.cat([row_losses(model, one) for one in task.questions]).double().numpy()
        return losses

    def added(self, model: Checkpoint) -> dict[str, np.ndarray]:
        """Loss that the change added, per document, by corpus."""
        return {name: losses - self.original[name] for name, losses in self.losses(model).items()}


def ratio(added: np.ndarray, baseline: np.ndarray) -> dict[str, float]:
    """The loss added as a share of what a baseline adds, with a paired interval over documents."""
    generator = np.random.default_rng(0)
    draws = generator.integers(len(added), size=(2_000, len(added)))
    shares = added[draws].mean(1) / baseline[draws].mean(1)
    low, high = np.quantile(shares, (0.025, 0.975))
    return {"ratio": float(added.mean() / baseline.mean()), "low": float(low), "high": float(high)}


def summary(added: dict[str, np.ndarray], baseline: dict[str, np.ndarray] | None) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name, values in added.items():
        low, high = (float(bound) for bound in bootstrap_interval(values, 0))
        told[name] = {"added": float(values.mean()), "low": low, "high": high, "documents": len(values)}
        if baseline is not None:
            told[name] |= {"of_mean": ratio(values, baseline[name])}
    return told


def _held_out(model: Checkpoint, corpora: dict[str, Corpus]) -> dict[str, Rows]:
    options: dict[str, Any] = {"tokens": HELD_OUT, "length": LENGTH, "seed": 0}
    return {
        name: cut_rows(corpus.held_out, model.tokenizer, what=f"held-out {name}", **options)
        for name, corpus in corpora.items()
    }


def _calibration(model: Checkpoint, corpus: Corpus, copies: float = COPY_SHARE) -> Rows:
    rows = cut_rows(corpus.working, model.tokenizer, tokens=CALIBRATION, length=LENGTH, seed=0, what="calibration")
    return mixed_with_copies(rows, model.tokenizer, model.model.config, share=copies, seed=0)


def demo(speeches: Path, recipes: Sequence[str], keep: Any) -> None:
    """The demo model from 3 KV heads to 1."""
    model = load("demo")
    corpora = {"speeches": read_corpus(speeches), "help topics": read_corpus(None)}
    judge = Judge(model, _held_out(model, corpora), COPIES)
    keep("original", {name: {"loss": float(losses.mean())} for name, losses in judge.original.items()})
    baseline: dict[str, np.ndarray] | None = None
    for name in recipes:
        started = time.monotonic()
        calibration = _calibration(model, corpora["speeches"], 0.0 if name == TEXT_ALONE else COPY_SHARE)
        converted = convert(model, 1, rows=calibration, recipe=RECIPES[name])
        seconds = time.monotonic() - started
        added = judge.added(converted)
        baseline = added if name == "mean" else baseline
        keep(name, summary(added, baseline) | {"seconds": round(seconds, 1)})


def latent(speeches: Path, keep: Any) -> None:
    """The demo model with latent attention of several sizes."""
    model, corpora = load("demo"), {"speeches": read_corpus(speeches), "help topics": read_corpus(None)}
    judge = Judge(model, _held_out(model, corpora), COPIES)
    calibration = _calibration(model, corpora["speeches"])
    for rank, rope in LATENTS:
        started = time.monotonic()
        converted = convert_to_latent(model, rank=rank, rope=rope, rows=calibration)
        told: dict[str, Any] = summary(judge.added(converted), None)
        told["bytes_per_token"] = converted.cache_bytes_per_token
        keep(f"{rank}+{rope}", told | {"seconds": round(time.monotonic() - started, 1)})


def scratch(speeches: Path, seeds: Sequence[int], keep: Any) -> None:
    """A model with 8 KV heads, trained here, converted to 4, 2 and 1."""
    corpus = read_corpus(speeches)
    for seed in seeds:
        started = time.monotonic()
        model = train_model(corpus.working, seed)
        trained = time.monotonic() - started
        options: dict[str, Any] = {"length": 256, "seed": seed}
        held_out = cut_rows(corpus.held_out, model.tokenizer, tokens=16_384, what="held-out loss", **options)
        calibration = cut_rows(corpus.working, model.tokenizer, tokens=CALIBRATION, what="calibration", **options)
        judge = Judge(model, {"speeches": held_out}, 0)
        keep(
            f"seed {seed}", {"loss": float(judge.original["speeches"].mean()), "seconds_of_training": round(trained, 1)}
        )
        for kv_heads in (4, 2, 1):
            mean = judge.added(convert(model, kv_heads, recipe=RECIPES["mean"]))
            for name in ("pca, output refitted", DEFAULT):
                added = judge.added(convert(model, kv_heads, rows=calibration, recipe=RECIPES[name]))
                told = summary(added, mean)["speeches"] | {"added_by_mean": float(mean["speeches"].mean())}
                keep(f"seed {seed}, {kv_heads} KV heads, {name}", told)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what sharing KV heads adds to the loss.")
    parser.add_argument("--speeches", type=Path, required=True, help="a folder of texts to calibrate and judge on")
    parser.add_argument("--part", choices=PARTS, action="append", help="(default: all)")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES), help="of the demo part")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the scratch part")
    parser.add_argument("--threads", type=int, help="threads for torch (default: as many as torch chooses)")
    parser.add_argument("--out", type=Path, default=RESULTS / "conversion.json", help="the JSON file")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    parts: dict[str, Any] = json.loads(options.out.read_text())["results"] if options.out.exists() else {}

    def keeper(part: str) -> Any:
        def keep(name: str, told: dict[str, Any]) -> None:
            parts.setdefault(part, {})[name] = told
            parts[part]["environment"] = environment_record()  # a part may be measured anew elsewhere
            written = {"results": parts}
            options.out.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
            print(f"{part}: {name}: {json.dumps(told)}", flush=True)

        return keep

    for part in options.part or PARTS:
        if part == "demo":
            demo(options.speeches, options.recipes, keeper(part))
        elif part == "latent":
            latent(options.speeches, keeper(part))
        else:
            scratch(options.speeches, options.seeds, keeper(part))
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
