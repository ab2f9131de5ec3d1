"""Short re-training of a reshaped model against the model that it was made from.

Symbols: D documents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from headwise.folders import claim_partial
from headwise.models.checkpoint import Checkpoint
from headwise.models.corpus import Corpus, Rows, cut_rows
from headwise.models.questions import check_length
from headwise.models.weights import copy_of
from headwise.progress import Progress, Silent
from headwise.surgery.training.checks import check_held_out, check_pair, check_ranks, check_trainable
from headwise.surgery.training.loop import Log, Task, Teacher, Training
from headwise.surgery.training.ranks import Ranks, joined, whole
from headwise.surgery.training.results import curve_of, difference, share_closed, spread
from headwise.surgery.training.rows import question_of
from headwise.surgery.training.running import running_on
from headwise.surgery.training.settings import Settings
from headwise.surgery.training.state import State

__all__ = ["Uptrained", "uptrain"]


@dataclass(frozen=True)
class Uptrained:
    """A trained model and how it came about.

    Attributes:
        checkpoint: the student with new weights; its history has one step more.
        record: settings, documents, curve, losses with intervals, seconds, and what the original gained if that was
            asked for; plain values that JSON can hold.
    """

    checkpoint: Checkpoint
    record: dict[str, Any]


def uptrain(
    student: Checkpoint,
    teacher: Checkpoint,
    documents: Corpus,
    tokens: int,
    *,
    control: bool = False,
    engine: str | None = None,
    partial: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    **settings: Any,
) -> Uptrained:
    """Train a reshaped model for a short time (Ainslie et al. 2023 call it uptraining) by distillation.

    AdamW, a cosine schedule with a warm-up, clipped gradients; every row is seen once, in an order drawn by the seed.
    The curve is measured on held-out documents, which are never trained on. Its last point is of weights that are
    rounded to the dtype of the student's files, as they will be written.

    Under ``torchrun`` all processes call this together, each with its own copies of both models, and split every batch.

    Args:
        student: the reshaped model; it stays as it is.
        teacher: what it was made from; it stays as it is.
        documents: from :func:`headwise.models.corpus.read_corpus`: ``working`` is trained on, ``held_out`` measured on.
        tokens: how many to train on, rounded up to whole batches.
        control: also train a copy of the teacher on the same rows with the same settings, by cross entropy, since its
            divergence from itself has no gradient: what the text alone brings.
        engine: ``ddp`` or ``fsdp`` under ``torchrun``, else ``none``; see :mod:`headwise.surgery.training.ranks`.
        partial: a folder for states; a call that was killed goes on from there, to the same numbers, if it is repeated.
            Remove it when the result is saved.
        overwrite: drop a half-finished training with other settings in ``partial``.
        progress: is told what goes on.
        **settings: fields of :class:`headwise.surgery.training.settings.Settings`: ``params``, ``loss``, ``rate``, ...

    Returns:
        Uptrained.

    Raises:
        UserError: settings that make no sense, a teacher with another vocabulary, too little text, a half-finished
            training with other settings, or a loss that is no number any more.
    """
    chosen, progress = Settings.of(tokens, settings), progress or Silent()
    check_pair(student, teacher, documents)
    for model in (student, teacher):
        check_length(model, chosen.length)
    if control:
        check_trainable(teacher)
    rows = cut_rows(
        documents.working, student.tokenizer, tokens=chosen.steps * chosen.step_tokens, length=chosen.length,
        seed=chosen.seed, what="training",
    )  # fmt: skip
    held_out = cut_rows(
        documents.held_out, student.tokenizer, tokens=chosen.held_out * chosen.length, length=chosen.length,
        seed=chosen.seed, what=f"{chosen.held_out} held-out rows",
    )  # fmt: skip
    check_held_out(student, held_out)
    with joined(engine, student.device) as ranks:
        check_ranks(chosen, ranks)
        folder = None if partial is None else Path(partial)
        if folder is not None and ranks.first:
            request = _request(student, teacher, (rows, held_out), chosen, ranks)
            claim_partial(folder, request, overwrite, kind="training")
        ranks.wait()
        task = Task(question_of(student, rows, chosen.seed), question_of(student, held_out, chosen.seed))
        for taught in (True, False)[: 1 + control]:
            progress.plan(task.cost(chosen, taught))
        progress.stage(f"training {student.name} against {teacher.name}")
        trained, log = _train(student, teacher, task, chosen, State(folder, "student", ranks), progress)
        logs = {"student": log}
        if control:
            progress.stage(f"training {teacher.name} on the same text")
            logs["control"] = _train(teacher, None, task, chosen, State(folder, "control", ranks), progress)[1]
    record = _record(student, teacher, (rows, held_out), documents, chosen, ranks, logs)
    trained.history = (*student.history, _history(record))
    return Uptrained(trained, record)


def _train(
    origin: Checkpoint,
    teacher: Checkpoint | None,
    task: Task,
    settings: Settings,
    state: State,
    progress: Progress,
) -> tuple[Checkpoint, Log]:
    """A trained copy of a model, and what happened."""
    copy = copy_of(origin)
    models = [copy] if teacher is None else [copy, teacher]
    with running_on(settings.attention, *models):
        asked = None if teacher is None else Teacher(teacher)
        training = Training(copy, asked, task, settings, state, progress)
        log = training.run()
    return _whole_copy(origin, copy, training, state.ranks), log


def _whole_copy(origin: Checkpoint, trained: Checkpoint, training: Training, ranks: Ranks) -> Checkpoint:
    """The trained model with all its weights on every rank, as loaded models are: without gradients."""
    if ranks.engine == "fsdp":
        weights = {name: whole(parameter.detach()) for name, parameter in training.parameters.items()}
        trained = copy_of(origin)
        with torch.no_grad():
            for name, weight in weights.items():
                trained.model.get_parameter(name).copy_(weight)
    trained.model.requires_grad_(False)
    trained.forget_hash()
    return trained


def _request(
    student: Checkpoint, teacher: Checkpoint, rows: Sequence[Rows], settings: Settings, ranks: Ranks
) -> dict[str, Any]:
    """All that decides the numbers; a half-finished training is gone on with only for the same."""
    digest = hashlib.sha256()
    for part in rows:
        digest.update(part.tokens.numpy().tobytes())
    return {
        "headwise": version("headwise"),
        "student": student.weights_sha256,
        "teacher": teacher.weights_sha256,
        "documents": digest.hexdigest(),
        "ranks": f"{ranks.size} {ranks.engine}",
        **{f"setting {name}": value for name, value in settings.as_dict().items()},
    }


def _record(
    student: Checkpoint,
    teacher: Checkpoint,
    rows: tuple[Rows, Rows],
    documents: Corpus,
    settings: Settings,
    ranks: Ranks,
    logs: dict[str, Log],
) -> dict[str, Any]:
    log, seed = logs["student"], settings.seed
    start, end = log.curve[0]["losses"], log.curve[-1]["losses"]
    tokens, closed = settings.steps * settings.step_tokens, share_closed(start, end, log.teacher, seed)
    record = {
        "operation": "uptrain",
        "headwise": version("headwise"),
        "settings": settings.as_dict(),
        "engine": ranks.engine,
        "ranks": ranks.size,
        "threads": torch.get_num_threads(),
        "student": {"name": student.name, "weights_sha256": student.weights_sha256},
        "teacher": {"name": teacher.name, "weights_sha256": teacher.weights_sha256, "losses": log.teacher},
        "tokens": tokens,
        "documents": list(rows[0].documents),
        "held_out": list(rows[1].documents),
        "identical_left_out": documents.identical_left_out,
        "paragraphs_left_out": documents.paragraphs_left_out,
        "loss": {
            "start": spread(start, seed),
            "end": spread(end, seed),
            "teacher": spread(log.teacher, seed),
            "gained": difference(start, end, seed),
        },
        "divergence": {
            "start": spread(log.curve[0]["divergences"], seed),
            "end": spread(log.curve[-1]["divergences"], seed),
        },
        "share_closed": closed,
        "curve": curve_of(log, seed),
        "steps": log.steps,
        "seconds": round(log.seconds, 1),
        "tokens_per_second": round(tokens / log.training_seconds, 1),
        "notes": [*([closed["reason"]] if closed["reason"] else []), *documents.notes],
    }
    return record | ({"control": _control(logs["control"], end, seed)} if "control" in logs else {})


def _control(log: Log, student_end: list[float], seed: int) -> dict[str, Any]:
    """What the original gains by the same rows, and how far the student ends from that."""
    start, end = log.curve[0]["losses"], log.curve[-1]["losses"]
    return {
        "loss": {"start": spread(start, seed), "end": spread(end, seed), "gained": difference(start, end, seed)},
        "student_above": difference(student_end, end, seed),
        "curve": curve_of(log, seed),
        "steps": log.steps,
        "seconds": round(log.seconds, 1),
    }


def _history(record: dict[str, Any]) -> dict[str, Any]:
    """The step of a model's history: the record without what is as long as the training."""
    told = {name: value for name, value in record.items() if name not in ("curve", "steps", "notes", "control")}
    told["teacher"] = {name: value for name, value in record["teacher"].items() if name != "losses"}
    if "control" in record:
        told["control"] = {name: record["control"][name] for name in ("loss", "student_above", "seconds")}
    return told
