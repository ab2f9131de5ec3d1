"""Turns a study into the plain data that the page's scripts read: one array per measure, one entry per head.

Heads are numbered once, layer by layer, and every array follows that order; what wasn't measured is null.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from headwise.report import summary
from headwise.report.words import SCORES, page_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd

    from headwise.report.folder import Study

__all__ = ["page_data", "to_script_json"]

# Name on the page -> column of scores.parquet.
_SERIES = {
    "value": "value",
    "low": "low",
    "high": "high",
    "null": "null",
    "uniform": "null_uniform",
    "random": "null_random",
    "randomHigh": "null_random_high",
    "shuffled": "null_shuffled",
    "p": "p_value",
    "q": "q_value",
    "finding": "finding",
}


def page_data(study: Study) -> dict[str, Any]:
    """Everything the page shows, as JSON-ready data without NaN."""
    index = _HeadIndex(study)
    return _clean(
        {
            "manifest": study.manifest,
            "words": page_words(),
            "sentences": summary.sentences(study),
            "alerts": summary.alerts(study),
            "results": summary.score_results(study),
            "lead": summary.lead_score(study),
            "heads": {"layer": index.layer, "head": index.head},
            "scores": _scores(study, index),
            "importance": _importance(study, index),
            "single": _single(study, index),
            "effects": _effects(study),
            "examples": study.examples,
        }
    )


class _HeadIndex:
    """Numbers the heads of all layers in one row, also where layers differ in how many they have."""

    def __init__(self, study: Study) -> None:
        counts = [int(layer["num_heads"]) for layer in study.layers]
        self.starts = np.concatenate([[0], np.cumsum(counts)]).astype(int)
        self.layer = [layer for layer, count in enumerate(counts) for _ in range(count)]
        self.head = [head for count in counts for head in range(count)]

    def aligned(self, rows: pd.DataFrame, column: str) -> list[Any]:
        """One value per head in the order of the index; None where `rows` has none."""
        values: list[Any] = [None] * len(self.layer)
        positions = self.starts[rows["layer"].to_numpy(int)] + rows["head"].to_numpy(int)
        for position, value in zip(positions, rows[column].tolist(), strict=True):
            values[position] = value
        return values


def _known_first(names: Iterable[str], known: Iterable[str]) -> list[str]:
    present = set(names)
    first = [name for name in known if name in present]
    return first + sorted(present - set(first))


def _scores(study: Study, index: _HeadIndex) -> list[dict[str, Any]]:
    """One entry per (score, probe); a score's deciding probe comes first."""
    entries = []
    for score in _known_first(study.scores["score"].unique(), SCORES):
        of_score = study.scores[study.scores["score"] == score]
        groups = [(bool(rows["primary"].any()), str(probe), rows) for probe, rows in of_score.groupby("probe")]
        for primary, probe, rows in sorted(groups, key=lambda group: (not group[0], group[1])):
            # Beside the deciding probe a score can have nulls without a test; a description has neither.
            has = {"tested": bool(rows["q_value"].notna().any()), "hasNull": bool(rows["null"].notna().any())}
            entry = {"score": score, "probe": probe, "primary": primary} | has
            entries.append(entry | {name: index.aligned(rows, column) for name, column in _SERIES.items()})
    return entries


def _importance(study: Study, index: _HeadIndex) -> list[dict[str, Any]]:
    return [
        {"task": str(task)} | {name: index.aligned(rows, name) for name in ("value", "low", "high")}
        for task, rows in study.importance.groupby("task", sort=False)
    ]


def _single(study: Study, index: _HeadIndex) -> list[dict[str, Any]]:
    """Effects of removing one head, leaders and controls alike, in the same shape as a score."""
    singles = study.effects[study.effects["kind"] == "single"]
    if singles.empty:
        return []
    # A head can be measured twice, as a leader and as another's control; the leader's row carries its own controls.
    singles = singles.sort_values("role", ascending=True, kind="stable")
    names = [_parse(heads[0]) for heads in singles["heads"]]
    singles = singles.assign(layer=[layer for layer, _ in names], head=[head for _, head in names])
    columns = {"value": "delta", "low": "low", "high": "high", "control": "control_delta", "baseline": "baseline"}
    return [
        {"mode": str(mode), "task": str(task)} | {name: index.aligned(rows, column) for name, column in columns.items()}
        for (mode, task), rows in singles.groupby(["mode", "task"], sort=False)
    ]


def _parse(name: str) -> tuple[int, int]:
    """`L18.H6` as (18, 6)."""
    layer, head = name[1:].split(".H")
    return int(layer), int(head)


def _effects(study: Study) -> list[dict[str, Any]]:
    sets = {name: study.effects[name].map(list) for name in ("heads", "leaders")}
    rows = study.effects.assign(**sets).to_dict("records")
    return [{key: value for key, value in row.items() if key != "condition"} for row in rows]


def _clean(value: Any) -> Any:
    """Plain data: numpy scalars become Python's, NaN and infinities null, floats five significant digits."""
    if isinstance(value, dict):
        return {str(key): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_clean(item) for item in value]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value if value is None else str(value)


def to_script_json(data: Any) -> str:
    """JSON that can stand inside a script element: no text in it can close the element or start a comment.

    `<`, `>` and `&` are escaped; so is everything that isn't ASCII, which covers U+2028, U+2029 and halves of
    surrogate pairs, which a tokenizer can leave at the edge of a token and UTF-8 can't hold.
    """
    text = json.dumps(data, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
