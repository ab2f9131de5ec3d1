"""Re-training that would go wrong later on, or in silence, is refused before any work."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from headwise.errors import UserError
from headwise.models import Checkpoint
from headwise.models.corpus import Corpus, cut_rows
from headwise.models.weights import copy_of, heads_of, replace_heads
from headwise.surgery import uptrain as module
from headwise.surgery.mla.convert import convert_to_latent
from headwise.surgery.training.checks import check_ranks
from headwise.surgery.training.ranks import Ranks
from headwise.surgery.training.settings import Settings
from headwise.surgery.uptrain import uptrain
from tests.study import tiny
from tests.surgery.resized import one_kv_head
from tests.surgery.uptrain_models import BATCH, FAST, HELD_OUT, LENGTH, open_pair, save

Pair = tuple[Checkpoint, Checkpoint, Corpus]
TOKENS = 9 * BATCH * LENGTH


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    save(folder)
    return open_pair(folder)


@pytest.fixture
def untrained(monkeypatch) -> None:
    monkeypatch.setattr(module, "_train", lambda *_: pytest.fail("it was trained"))


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize("trained", ["student", "teacher"])
def test_what_is_trained_needs_float32(pair, trained):
    """The teacher as well, where it is trained on the same text to compare with."""
    models = dict(zip(("student", "teacher"), pair, strict=False))
    models[trained] = copy_of(models[trained])
    models[trained].name = trained
    models[trained].model.to(torch.bfloat16)
    with pytest.raises(UserError, match=rf"{trained}: expected float32 weights, .* got bfloat16; load it with"):
        uptrain(models["student"], models["teacher"], pair[2], BATCH * LENGTH, control=True, **FAST)


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize("trained", ["student", "teacher"])
def test_latent_attention_is_not_trained(pair, tmp_path, trained):
    models = dict(zip(("student", "teacher"), pair, strict=False))
    rows = cut_rows(pair[2].working, pair[1].tokenizer, tokens=500, length=50, seed=0, what="the test")
    models[trained] = convert_to_latent(pair[1], rank=19, rope=8, rows=rows)
    models[trained].name = trained
    options = FAST | {"control": True, "partial": tmp_path / "partial"}
    with pytest.raises(UserError, match=f"{trained}: expected heads with keys and values to train, got latent"):
        uptrain(models["student"], models["teacher"], pair[2], BATCH * LENGTH, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_teacher_that_is_only_asked_may_have_fewer_bits(pair):
    half = copy_of(pair[1])
    half.model.to(torch.bfloat16)
    assert uptrain(pair[0], half, pair[2], BATCH * LENGTH, **FAST).record["tokens"] == BATCH * LENGTH


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize("short", ["student", "teacher"])
def test_rows_beyond_the_positions_of_either_are_refused(pair, short):
    models = dict(zip(("student", "teacher"), pair, strict=False))
    models[short] = copy_of(models[short])
    models[short].name = short
    models[short].model.config.max_position_embeddings = LENGTH - 1
    with pytest.raises(UserError, match=f"{short}: expected rows of at most 40 tokens, .* got 41; ask for shorter"):
        uptrain(models["student"], models["teacher"], pair[2], BATCH * LENGTH, **FAST)


def refused(pair: Pair, tokens: int = TOKENS, **options: Any) -> str:
    with pytest.raises(UserError) as raised:
        uptrain(*pair, tokens, **FAST | options)
    return str(raised.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"rate": 0.0}, "uptrain: expected rate above 0, got 0.0"),
        ({"rate": float("nan")}, "uptrain: expected rate above 0, got nan"),
        ({"params": "heads"}, "uptrain: expected params to be attention or all, got 'heads'"),
        ({"loss": "mse"}, "uptrain: expected loss to be kl or ce, got 'mse'"),
        ({"foo": 3}, "uptrain: expected settings out of tokens, params, loss, rate, "),
        ({"batch": 0}, "uptrain: expected batch of at least 1, got 0"),
        ({"warmup": 1.0}, "uptrain: expected warmup to be a share of the steps from 0 to 1, got 1.0"),
        ({"engine": "ddp"}, "uptrain: expected what ddp needs, got one process; start it with torchrun"),
        ({"engine": "horovod"}, "uptrain: expected the engine none, ddp, fsdp, got 'horovod'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(pair, options, told):
    assert refused(pair, **options).startswith(told)


def test_less_than_a_batch_and_too_little_text_are_refused_with_how_much_is_needed(pair):
    assert refused(pair, 163) == (
        "uptrain: expected at least one batch, 4 rows of 41 tokens (164), got 163 tokens; ask for more, or for smaller "
        "batches"
    )
    assert refused(pair, 90 * BATCH * LENGTH).startswith(
        "documents: expected 14,760 tokens in rows of 41 for training, got"
    )
    assert refused(pair, held_out=600).startswith(
        "documents: expected 24,600 tokens in rows of 41 for 600 held-out rows, got"
    )


def test_a_teacher_with_another_vocabulary_is_refused(pair):
    student, teacher, documents = pair
    other = copy_of(teacher)
    other.tokenizer = tiny.tokenizer(wrapped=False)
    other.tokenizer.add_tokens(["zz"])
    assert refused((student, other, documents)) == (
        f"{student.name}: expected a teacher with the same vocabulary, got 216 tokens in {teacher.name} and 216 in the "
        "student, and 'zz' is not the same token in both; give the model that the student was made from"
    )
    cutting = copy_of(teacher)
    cutting.tokenizer = tiny.tokenizer(wrapped=True)
    assert "expected a teacher that cuts texts alike" in refused((student, cutting, documents))


def test_a_teacher_that_is_asked_otherwise_is_refused(pair):
    student, teacher, documents = pair
    masked = copy_of(teacher)
    masked.name, masked.objective = "masked", "masked"
    told = "expected a teacher that is trained alike, got 'next' tokens and 'masked' tokens in masked; give the model"
    assert told in refused((student, masked, documents))


def test_a_kv_head_that_stands_for_all_is_not_pulled_apart(pair):
    student = one_kv_head()
    teacher = copy_of(student)
    weights = heads_of(teacher, 0).clone()
    weights.key[1] = 0
    replace_heads(teacher, {0: weights})
    assert refused((student, teacher, pair[2])).startswith(
        "gpt2: expected KV heads that may differ, got a gpt2 that has one repeated for all query heads"
    )


def test_a_batch_that_ranks_cannot_split_is_refused():
    settings = Settings(tokens=4_096, batch=8)
    check_ranks(settings, Ranks(0, 4, "ddp"))
    with pytest.raises(UserError, match="expected a batch that 3 ranks can split evenly, got 8 rows; use 6 rows"):
        check_ranks(settings, Ranks(0, 3, "ddp"))


def test_a_student_like_its_teacher_or_of_few_bits_is_refused(pair):
    _, teacher, documents = pair
    assert "got the same weights, so there is nothing to learn" in refused((copy_of(teacher), teacher, documents))
    half = copy_of(pair[0])
    half.model.to(torch.bfloat16)
    assert "expected float32 weights" in refused((half, teacher, documents))


def test_held_out_documents_that_an_earlier_step_has_seen_are_refused(pair):
    student, teacher, documents = pair
    tokens = HELD_OUT * LENGTH
    held_out = cut_rows(documents.held_out, student.tokenizer, tokens=tokens, length=LENGTH, seed=0, what="the test")
    seen = held_out.documents[2]
    told = dataclasses.replace(student, history=({"operation": "convert", "documents": [seen]},))
    assert f"got 1 that convert used (first {seen})" in refused((told, teacher, documents))
