"""The main results in plain sentences, made from the numbers and from nothing else.

Heads stand in them as `L18.H6`; the page turns those into links. Where nothing was found or measured, that is said.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from headwise.layout import head_name
from headwise.report.words import SCORES, count_word, heads_of, label, task_phrase

if TYPE_CHECKING:
    import pandas as pd

    from headwise.report.folder import Study

__all__ = ["alerts", "joint_leaders", "lead_score", "number", "score_results", "sentences", "telling_task", "tested"]


def number(value: float | None, digits: int = 2) -> str:
    """A number for a sentence: two decimals, or two significant digits below 0.1; a true minus sign."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    if size >= 100:
        text = f"{value:.0f}"
    elif size >= 10:
        text = f"{value:.1f}"
    elif size == 0 or size >= 0.1:
        text = f"{value:.{digits}f}"
    elif size >= 0.0005:
        text = f"{value:.{1 - math.floor(math.log10(size))}f}"
    else:
        text = f"{value:.0e}"
    return text.replace("-", "−")


def tested(study: Study) -> pd.DataFrame:
    """The rows that decide findings: one per tested score and head."""
    scores = study.scores
    return scores[scores["primary"].astype(bool) & scores["q_value"].notna()]


def score_results(study: Study) -> list[dict[str, Any]]:
    """One entry per tested score, known scores first: how many heads survive, and the head furthest above its null."""
    results = []
    rows = tested(study)
    order = [score for score in SCORES if (rows["score"] == score).any()]
    order += sorted(set(rows["score"]) - set(SCORES))
    for score in order:
        of_score = rows[rows["score"] == score]
        findings = of_score[of_score["finding"].astype(bool)]
        pool = findings if len(findings) else of_score
        best = pool.loc[(pool["value"] - pool["null"]).idxmax()]
        results.append(
            {
                "score": score,
                "probe": str(best["probe"]),
                "heads": len(of_score),
                "findings": len(findings),
                "strong": int((findings["value"] > 0.5).sum()),
                "best": head_name(int(best["layer"]), int(best["head"])),
                "value": float(best["value"]),
                "null": float(best["null"]),
                "q": float(best["q_value"]),
            }
        )
    return results


def joint_leaders(study: Study) -> pd.DataFrame:
    """The joint ablations of leading heads, largest sets first."""
    effects = study.effects
    rows = effects[(effects["role"] == "leader") & (effects["kind"] == "joint")]
    return rows.assign(size=rows["heads"].map(len)).sort_values("size", ascending=False, kind="stable")


def lead_score(study: Study) -> str:
    """The score that the page opens with: whose findings matter most, else the one with the clearest finding.

    Resting on the first token is the commonest finding and the least telling, so it leads only when it stands alone.
    """
    results = score_results(study)
    if not results:
        return str(study.scores["score"].iloc[0])
    found = [result for result in results if result["findings"]] or results
    joint = joint_leaders(study)
    joint = joint[(joint["mode"] == "zero") & joint["score"].isin([result["score"] for result in found])]
    sure = joint[joint["excess_low"] > 0]
    if len(sure):
        return str(sure.loc[(sure["delta"] - sure["control_delta"]).idxmax(), "score"])
    telling = [result for result in found if result["score"] != "first"] or found
    return str(max(telling, key=lambda result: result["value"] - result["null"])["score"])


def sentences(study: Study) -> list[str]:
    """A few sentences: what was found, the strongest head, what breaks, and which leaders break no more than random."""
    results = score_results(study)
    found = [result for result in results if result["findings"]]
    if not results:
        return [
            f"The {study.num_heads} heads were described, but no score was tested against chance.",
            *_effects(study),
        ]
    told = _found(study, found, results) if found else _nothing(study, results)
    return [*told, *_effects(study), *_no_effect(study)]


def _nothing(study: Study, results: list[dict[str, Any]]) -> list[str]:
    things = f"any of the {count_word(len(results))} things" if len(results) > 1 else "the one thing"
    closest = min(results, key=lambda result: result["q"])
    return [
        f"None of the {study.num_heads} heads does {things} tested here more than chance explains.",
        f"The closest is {closest['best']} on “{label(closest['score']).lower()}”: {number(closest['value'])} where "
        f"chance gives {number(closest['null'])} (q = {number(closest['q'])}).",
    ]


def _found(study: Study, found: list[dict[str, Any]], results: list[dict[str, Any]]) -> list[str]:
    rows = tested(study)
    some = len(rows[rows["finding"].astype(bool)].drop_duplicates(["layer", "head"]))
    counts = _listed([f"{result['findings']} {_kind(result)}" for result in found])
    text = f"{some} of {study.num_heads} heads do something beyond chance: {counts}"
    overlap = sum(result["findings"] for result in found) > some
    text += ". Some heads do more than one of these." if overlap else "."
    none = [heads_of(result["score"]) for result in results if not result["findings"]]
    if none:
        text += f" No {_listed(none, 'or')} survive the correction."
    lead = next((result for result in found if result["score"] == lead_score(study)), found[0])
    kind = heads_of(lead["score"]).removesuffix("s")
    clearest = (
        f"The clearest {kind} is {lead['best']}: {number(lead['value'])} of its attention, where chance gives "
        f"{number(lead['null'])}"
    )
    return [text, f"{clearest}{_strong(lead)}."]


def _strong(result: dict[str, Any]) -> str:
    """Beyond chance isn't yet much: how many of the findings are strong."""
    if result["findings"] < 2:
        return ""
    if result["strong"] == result["findings"]:
        return f". All {result['findings']} put more than half of it there"
    few = count_word(result["strong"]).replace("no", "none")
    return f". Beyond chance isn't yet much: {few} of the {result['findings']} put more than half there"


def _kind(result: dict[str, Any]) -> str:
    plural = heads_of(result["score"])
    return plural.removesuffix("s") if result["findings"] == 1 else plural


def _listed(items: list[str], word: str = "and") -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {word} {items[-1]}"


def _effects(study: Study) -> list[str]:
    """The joint ablation of the leading score's heads, zeroed, then replaced by the mean."""
    score = lead_score(study)
    joint = joint_leaders(study)
    of_score = joint[joint["score"] == score]
    if of_score.empty:
        return ["What breaks without these heads was not measured." if joint.empty else _unmeasured(score)]
    task = telling_task(of_score)
    chosen = {mode: rows.iloc[0] for mode, rows in of_score[of_score["task"] == task].groupby("mode", sort=False)}
    texts = []
    if "zero" in chosen:
        texts.append(_zeroed(chosen["zero"], score))
    if "mean" in chosen:
        texts.append(_mean(chosen["mean"], alone="zero" not in chosen, score=score))
    return texts or [_unmeasured(score)]


def _no_effect(study: Study) -> list[str]:
    """The other scores whose leaders, all together, matter no more than random heads: a finding isn't an effect."""
    joint = joint_leaders(study)
    joint = joint[(joint["score"] != lead_score(study)) & joint["excess_low"].notna()]
    quiet = []
    for score, rows in joint.groupby("score", sort=False):
        largest = rows[rows["size"] == rows["size"].max()]
        if not (largest["excess_low"] > 0).any():
            quiet.append(f"the {count_word(int(largest['size'].iloc[0]))} leading {heads_of(str(score))}")
    if not quiet:
        return []
    return [f"Without {_listed(quiet, 'or')} the loss rises no more than without random heads of the same layers."]


def _unmeasured(score: str) -> str:
    return f"What breaks without the {heads_of(score)} was not measured."


def telling_task(rows: pd.DataFrame) -> str:
    """The task on which these heads stand out most from their controls."""
    excess = rows["delta"] - rows["control_delta"]
    return str(rows["task"].iloc[0] if excess.isna().all() else rows.loc[excess.idxmax(), "task"])


def _subject(row: pd.Series, score: str) -> str:
    size = len(row["heads"])
    if size == 1:
        return f"the leading {heads_of(score).removesuffix('s')}"
    return f"the {count_word(size)} leading {heads_of(score)}"


def _zeroed(row: pd.Series, score: str) -> str:
    start = f"Zeroing {_subject(row, score)} {_moves(row['baseline'], row['loss'])} on {task_phrase(row['task'])}"
    return f"{start} {_from_to(row)} nats; {_controls(row)}."


def _mean(row: pd.Series, *, alone: bool, score: str) -> str:
    who = _subject(row, score) if alone else ("the same head" if len(row["heads"]) == 1 else "the same heads")
    where = f" on {task_phrase(row['task'])}" if alone else ""
    own = "its mean" if len(row["heads"]) == 1 else "their mean"
    return (
        f"Replacing {who} by {own} output instead {_moves(row['baseline'], row['loss'])}{where} "
        f"{_from_to(row)} nats; {_controls(row)}."
    )


def _moves(before: float, after: float) -> str:
    return "lifts the loss" if after >= before else "lowers the loss"


def _from_to(row: pd.Series) -> str:
    return f"from {number(row['baseline'])} to {number(row['loss'])}"


def _controls(row: pd.Series) -> str:
    """The controls' loss, and whether the leaders exceed it beyond the interval."""
    size = len(row["heads"])
    if not math.isfinite(row["control_delta"]):
        return "no random heads of the same layers were measured beside them"
    who = "a random head of the same layer" if size == 1 else f"{count_word(size)} random heads of the same layers"
    loss = number(row["baseline"] + row["control_delta"])
    if row["excess_low"] > 0:
        return f"with {who} it is {loss}"
    return f"with {who} it is {loss}, so these heads can't be told from random ones"


def alerts(study: Study) -> list[str]:
    """What a reader must know before the results: failed checks, then the study's own notes."""
    checks = study.manifest.get("checks") or []
    failed = [check for check in checks if not check.get("passed")]
    texts = []
    if failed:
        names = "; ".join(f"{check.get('name')}: {check.get('detail')}" for check in failed)
        texts.append(f"{len(failed)} of {len(checks)} checks failed. {names}")
    return texts + [str(note) for note in study.manifest.get("notes") or []]
