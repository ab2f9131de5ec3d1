"""What can't be trained is refused before any work."""

from __future__ import annotations

import torch

from headwise.errors import UserError
from headwise.models.checkpoint import Checkpoint
from headwise.models.corpus import Corpus, Rows
from headwise.models.history import documents_of
from headwise.models.questions import check_objective
from headwise.surgery.bigcode import repeats_one_kv_head
from headwise.surgery.mla.model import LatentCheckpoint
from headwise.surgery.training.ranks import Ranks
from headwise.surgery.training.settings import Settings

__all__ = ["check_held_out", "check_pair", "check_ranks", "check_trainable"]

_PROBE = 2_000  # characters of a text that both tokenizers must cut alike


def check_pair(student: Checkpoint, teacher: Checkpoint, documents: Corpus) -> None:
    """Refuse two models that can't be student and teacher.

    Raises:
        UserError: they differ in what they are asked, in their vocabularies or how they cut a text, the student's
            weights are the teacher's or of too few bits, or training would break what they were made to be.
    """
    check_objective(student)
    if student.objective != teacher.objective:
        raise UserError(
            f"{student.name}: expected a teacher that is trained alike, got {student.objective!r} tokens and "
            f"{teacher.objective!r} tokens in {teacher.name}; give the model that the student was made from"
        )
    _check_vocabulary(student, teacher, documents)
    check_trainable(student)
    if student.weights_sha256 == teacher.weights_sha256:
        raise UserError(
            f"{student.name}: expected a student that differs from its teacher, got the same weights, so there is "
            "nothing to learn; reshape one of them first, or check that the folders aren't mixed up"
        )
    if repeats_one_kv_head(student):
        raise UserError(
            f"{student.name}: expected KV heads that may differ, got a gpt2 that has one repeated for all query heads, "
            "which training would pull apart; train a model whose architecture can share KV heads"
        )


def check_trainable(checkpoint: Checkpoint) -> None:
    """Refuse a model that can't be copied and trained.

    Raises:
        UserError: its attention is latent, or its weights have too few bits.
    """
    if isinstance(checkpoint, LatentCheckpoint):
        raise UserError(
            f"{checkpoint.name}: expected heads with keys and values to train, got latent attention; train the model "
            "that it was converted from, or convert to fewer KV heads instead"
        )
    kinds = {parameter.dtype for parameter in checkpoint.model.parameters()}
    if not kinds <= {torch.float32, torch.float64}:
        names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise UserError(
            f"{checkpoint.name}: expected float32 weights, since the steps are smaller than what fewer bits can hold, "
            f"got {names}; load it with dtype=torch.float32"
        )


def _check_vocabulary(student: Checkpoint, teacher: Checkpoint, documents: Corpus) -> None:
    sizes = [model.model.config.vocab_size for model in (student, teacher)]
    words = [model.tokenizer.get_vocab() for model in (student, teacher)]
    if sizes[0] != sizes[1] or words[0] != words[1]:
        differing = sorted(word for word, _ in words[0].items() ^ words[1].items())
        example = f", and {differing[0]!r} is not the same token in both" if differing else ""
        raise UserError(
            f"{student.name}: expected a teacher with the same vocabulary, got {sizes[1]:,} tokens in {teacher.name} "
            f"and {sizes[0]:,} in the student{example}; give the model that the student was made from"
        )
    text = documents.held_out[0].text[:_PROBE]
    if student.tokenizer(text)["input_ids"] != teacher.tokenizer(text)["input_ids"]:
        raise UserError(
            f"{student.name}: expected a teacher that cuts texts alike, got other tokens from the tokenizer of "
            f"{teacher.name} for the same text; give the model that the student was made from"
        )


def check_held_out(student: Checkpoint, held_out: Rows) -> None:
    """Refuse to measure on documents that an earlier step has used.

    Raises:
        UserError: the student's history names one of them.
    """
    for step in student.history:
        if shared := documents_of(step) & set(held_out.documents):
            raise UserError(
                f"{student.name}: expected held-out documents that no earlier step has seen, got {len(shared)} that "
                f"{step.get('operation', 'an earlier step')} used (first {min(shared)}); give the same documents as "
                "there, or others altogether"
            )


def check_ranks(settings: Settings, ranks: Ranks) -> None:
    """Refuse batches that can't be split.

    Raises:
        UserError: the ranks don't divide the rows of a batch.
    """
    if settings.batch % ranks.size:
        raise UserError(
            f"uptrain: expected a batch that {ranks.size} ranks can split evenly, got {settings.batch} rows; "
            f"use {ranks.size * max(1, settings.batch // ranks.size)} rows"
        )
