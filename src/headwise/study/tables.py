"""From measurements to tables: scores with nulls, intervals and q-values; effects with controls.

Symbols: D documents, H query heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headwise.intervals import bootstrap_interval
from headwise.layout import head_name
from headwise.models import Checkpoint
from headwise.study.effects import Condition
from headwise.study.measure import Measurements, mean_over_documents
from headwise.study.nulls import FLIPS, benjamini_hochberg, paired_p_values, population_p_values
from headwise.study.scores import DESCRIPTIVE, SCORES, Score
from headwise.study.settings import Settings

if TYPE_CHECKING:
    import pandas as pd

KINDS = ("text", "repeated")


def score_table(measured: Measurements, checkpoint: Checkpoint, settings: Settings) -> pd.DataFrame:
    """One row for every score, kind of sample, layer and head.

    A head is a finding on a score if its q-value (Benjamini-Hochberg over all heads and all scores of the study) is at
    most ``settings.level``, its interval lies above every null, and its value does so by ``settings.margin`` at least.
    """
    import pandas as pd

    frames = []
    for kind in KINDS:
        arrays = getattr(measured, kind)
        frames += [
            _scored(score, kind, arrays, measured, checkpoint, settings) for score in SCORES if score.name in arrays
        ]
        frames += [_described(name, kind, arrays, checkpoint, settings) for name in DESCRIPTIVE]
    table = pd.concat(frames, ignore_index=True)
    decides = table["primary"].to_numpy()
    q_values = np.full(len(table), np.nan)
    q_values[decides] = benjamini_hochberg(table["p_value"].to_numpy()[decides])
    table["q_value"] = q_values
    table["finding"] = decides & (q_values <= settings.level) & _beyond(table, settings)
    return table


def _beyond(table: pd.DataFrame, settings: Settings) -> pd.Series:
    """Whether a head lies above every null, whatever the number of tests."""
    return (table["low"] > table["null"]) & (table["value"] >= table["null"] + settings.margin)


def too_few_to_count(table: pd.DataFrame, random_heads: int, settings: Settings) -> str | None:
    """A note where heads are as far above chance as the draws can tell and are no findings, since they are few.

    p = (c + 1) / (n + 1) has a least value, and after the correction a few heads that have it may not be enough. That
    is a limit of the draws, not of the heads, so a reader must know it.

    Args:
        table: of :func:`score_table`.
        random_heads: how many heads with random weights there were, n.
        settings: the level and the margin.

    Returns:
        The note; None if there are no such heads.
    """
    decided = table[table["primary"] & table["p_value"].notna()]
    least = max(1 / (random_heads + 1), 1 / (FLIPS + 1))
    clear = _beyond(decided, settings) & (decided["p_value"] <= least * (1 + 1e-9)) & ~decided["finding"]
    if not clear.any():
        return None
    needed, at_best = (math.ceil(len(decided) * p / settings.level) for p in (least, 1 / (FLIPS + 1)))
    heads = len(decided[["layer", "head"]].drop_duplicates())
    note = (
        f"{clear.sum()} scores are as far above chance as {random_heads:,} random heads can tell, and are no findings: "
        f"after the correction for {len(decided):,} tests {needed} of them are needed"
    )
    more = math.ceil(FLIPS / heads)
    return note if needed == at_best else f"{note}; with --null-draws {more} it takes {at_best}"


def _scored(
    score: Score, kind: str, arrays: dict[str, np.ndarray], measured: Measurements, checkpoint: Checkpoint,
    settings: Settings,
) -> pd.DataFrame:  # fmt: skip
    values, uniform = arrays[score.name], arrays[f"{score.name} (uniform)"]
    random = measured.random[kind, score.name]
    mean = mean_over_documents(values)
    p_values = [paired_p_values(values, uniform, settings.seed), population_p_values(mean, random)]
    columns = {
        "null_uniform": mean_over_documents(uniform),
        "null_random": np.full_like(mean, np.nanmean(random)),
        "null_random_high": np.full_like(mean, np.nanquantile(random, 0.95)),
        "null_shuffled": np.full_like(mean, np.nan),
    }
    if score.content:
        shuffled = arrays[f"{score.name} (shuffled)"]
        pairs = min(len(values), len(shuffled))  # on repeated tokens pairs are arbitrary, and the control has fewer
        p_values.append(paired_p_values(values[:pairs], shuffled[:pairs], settings.seed))
        columns["null_shuffled"] = mean_over_documents(shuffled)
    # A finding must beat every null, so the largest p counts (intersection-union test).
    columns["p_value"] = np.maximum.reduce(p_values)
    columns["null"] = np.fmax.reduce([columns[f"null_{name}"] for name in ("uniform", "random", "shuffled")])
    return _frame(score.name, kind, score.primary == kind, values, columns, checkpoint, settings)


def _described(
    name: str, kind: str, arrays: dict[str, np.ndarray], checkpoint: Checkpoint, settings: Settings
) -> pd.DataFrame:
    empty = ("null_uniform", "null_random", "null_random_high", "null_shuffled", "p_value", "null")
    shape = arrays[name].shape[1:]
    columns = {column: np.full(shape, np.nan) for column in empty}
    return _frame(name, kind, False, arrays[name], columns, checkpoint, settings)


def _frame(
    name: str, kind: str, primary: bool, values: np.ndarray, columns: dict[str, np.ndarray], checkpoint: Checkpoint,
    settings: Settings,
) -> pd.DataFrame:  # fmt: skip
    import pandas as pd

    low, high = bootstrap_interval(values, settings.seed)
    layers, heads = (np.array(axis) for axis in zip(*checkpoint.heads, strict=True))
    table = {"value": mean_over_documents(values), "low": low, "high": high, **columns}
    picked = {column: array[layers, heads].astype(np.float64) for column, array in table.items()}
    return pd.DataFrame({"score": name, "probe": kind, "layer": layers, "head": heads, "primary": primary, **picked})


def document_table(measured: Measurements, checkpoint: Checkpoint) -> pd.DataFrame:
    """Raw values: one row per document, score, kind of sample and head."""
    import pandas as pd

    layers, heads = (np.array(axis) for axis in zip(*checkpoint.heads, strict=True))
    frames = []
    for kind in KINDS:
        for name in (*(score.name for score in SCORES), *DESCRIPTIVE):
            values = getattr(measured, kind).get(name)
            if values is None:
                continue
            documents = np.arange(len(values))
            frames.append(
                pd.DataFrame(
                    {
                        "document": np.repeat(documents, len(layers)),
                        "layer": np.tile(layers, len(documents)),
                        "head": np.tile(heads, len(documents)),
                        "score": name,
                        "probe": kind,
                        "value": values[:, layers, heads].reshape(-1).astype(np.float64),
                    }
                )
            )
    return pd.concat(frames, ignore_index=True)


def importance_table(values: dict[str, np.ndarray], checkpoint: Checkpoint, seed: int) -> pd.DataFrame:
    """First-order importance with its interval: one row per task and head."""
    import pandas as pd

    layers, heads = (np.array(axis) for axis in zip(*checkpoint.heads, strict=True))
    frames = []
    for task, array in values.items():
        low, high = bootstrap_interval(array, seed)
        picked = {"value": mean_over_documents(array), "low": low, "high": high}
        columns = {name: table[layers, heads].astype(np.float64) for name, table in picked.items()}
        frames.append(pd.DataFrame({"layer": layers, "head": heads, "task": task, **columns}))
    empty = pd.DataFrame(columns=["layer", "head", "task", "value", "low", "high"])
    return pd.concat(frames, ignore_index=True) if frames else empty


EFFECT_COLUMNS = (
    *("condition", "heads", "leaders", "score", "role", "kind", "mode", "task"),
    *("baseline", "loss", "delta", "low", "high", "control_delta", "excess_low", "excess_high"),
)


def effect_table(
    conditions: Sequence[Condition], losses: dict[str, np.ndarray], seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Paired effects, one row per condition, and the raw losses per document.

    ``delta`` is the mean over documents of loss with the heads ablated minus loss of the intact model, in nats;
    ``control_delta`` the same for the random heads of the same layers; ``excess_low`` to ``excess_high`` the interval
    of their paired difference.
    """
    import pandas as pd

    rows, raw = [], []
    for number, condition in enumerate(conditions):
        intact, loss = losses[f"{condition.task}-intact"], losses[condition.key]
        rows.append(_effect_row(number, condition, conditions, losses, seed))
        raw.append(
            pd.DataFrame({"condition": number, "document": np.arange(len(loss)), "loss": loss, "baseline": intact})
        )
    raw_columns = ["condition", "document", "loss", "baseline"]
    return (
        pd.DataFrame(rows, columns=list(EFFECT_COLUMNS)),
        pd.concat(raw, ignore_index=True) if raw else pd.DataFrame(columns=raw_columns),
    )


def _effect_row(
    number: int, condition: Condition, conditions: Sequence[Condition], losses: dict[str, np.ndarray], seed: int
) -> dict[str, object]:
    intact = losses[f"{condition.task}-intact"]
    difference = losses[condition.key] - intact
    low, high = _interval(difference, seed)
    row: dict[str, object] = {
        "condition": number,
        "heads": [head_name(*head) for head in condition.heads],
        # A control's own set, and the set of leaders that it is the control of.
        "leaders": [head_name(*head) for head in condition.leaders],
        "score": condition.score,
        "role": condition.role,
        "kind": condition.kind,
        "mode": condition.mode,
        "task": condition.task,
        "baseline": float(intact.mean()),
        "loss": float(losses[condition.key].mean()),
        "delta": float(difference.mean()),
        "low": low,
        "high": high,
        "control_delta": np.nan,
        "excess_low": np.nan,
        "excess_high": np.nan,
    }
    controls = [other for other in conditions if condition.role == "leader" and _is_control(other, condition)]
    if controls:
        control = np.mean([losses[other.key] - intact for other in controls], axis=0)
        row["control_delta"] = float(control.mean())
        row["excess_low"], row["excess_high"] = _interval(difference - control, seed)
    return row


def _is_control(other: Condition, condition: Condition) -> bool:
    return other.role == "control" and (other.score, other.mode, other.task, other.leaders) == (
        condition.score,
        condition.mode,
        condition.task,
        condition.heads,
    )


def _interval(values: np.ndarray, seed: int) -> tuple[float, float]:
    low, high = bootstrap_interval(values, seed)
    return float(low), float(high)
