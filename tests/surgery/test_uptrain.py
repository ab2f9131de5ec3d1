"""Re-training: what is learnt, what moves, what is measured on, and what is told of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from headwise.models import Checkpoint, load
from headwise.models.corpus import Corpus, cut_rows, fingerprint, read_corpus
from headwise.models.questions import document_losses
from headwise.models.weights import copy_of
from headwise.progress import Silent
from headwise.surgery.export import export
from headwise.surgery.training.results import share_closed
from headwise.surgery.uptrain import Uptrained, uptrain
from tests.study import tiny
from tests.surgery.uptrain_models import BATCH, FAST, LENGTH, open_pair, save

Pair = tuple[Checkpoint, Checkpoint, Corpus]
TOKENS = 9 * BATCH * LENGTH


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("uptrain")
    save(place)
    return place


@pytest.fixture(scope="module")
def pair(folder) -> Pair:
    return open_pair(folder)


@pytest.fixture(scope="module")
def trained(pair) -> Uptrained:
    return uptrain(*pair, TOKENS, control=True, **FAST)


def state(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    return checkpoint.model.state_dict()


def test_the_divergence_falls_and_the_loss_goes_towards_the_teachers(trained):
    record = trained.record
    means = [point["divergence"]["value"] for point in record["curve"]]
    assert means == sorted(means, reverse=True)
    assert record["divergence"]["end"]["value"] < 0.95 * record["divergence"]["start"]["value"]
    loss = record["loss"]
    assert loss["teacher"]["value"] < loss["start"]["value"]
    assert loss["end"]["value"] < loss["start"]["value"]
    assert loss["gained"]["value"] == pytest.approx(loss["start"]["value"] - loss["end"]["value"])
    assert record["share_closed"] == share_closed(
        *(_losses(trained, which) for which in ("start", "end", "teacher")), 0
    )


def _losses(trained: Uptrained, which: str) -> list[float]:
    record = trained.record
    if which == "teacher":
        return record["teacher"]["losses"]
    return record["curve"][0 if which == "start" else -1]["losses"]


def test_only_attention_moves(pair, trained):
    before, after = state(pair[0]), state(trained.checkpoint)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    wanted = {f"model.layers.{i}.self_attn.{part}_proj.weight" for i in range(3) for part in "qkvo"}
    assert moved == wanted


def test_student_and_teacher_stay_as_they_are_and_the_result_is_like_a_loaded_model(folder, pair, trained):
    student, teacher, _ = open_pair(folder)
    for before, now in ((student, pair[0]), (teacher, pair[1])):
        assert all(torch.equal(tensor, state(now)[name]) for name, tensor in state(before).items())
    for checkpoint in (*pair[:2], trained.checkpoint):
        assert checkpoint.model.config._attn_implementation == "headwise"
        assert not any(parameter.requires_grad for parameter in checkpoint.model.parameters())
    assert trained.checkpoint.weights_sha256 != pair[0].weights_sha256


def test_all_weights_move_if_asked_for(pair):
    result = uptrain(*pair, BATCH * LENGTH, **FAST | {"params": "all", "points": 1})
    after = state(result.checkpoint)
    assert not any(torch.equal(tensor, after[name]) for name, tensor in state(pair[0]).items())


def test_the_same_seed_gives_the_same_model_and_another_one_another(pair, trained):
    again = uptrain(*pair, TOKENS, **FAST)
    assert again.checkpoint.weights_sha256 == trained.checkpoint.weights_sha256
    assert again.record["curve"] == trained.record["curve"]
    other = uptrain(*pair, BATCH * LENGTH, seed=5, **FAST)
    assert other.record["documents"] != trained.record["documents"][: len(other.record["documents"])]
    assert other.record["curve"][0]["losses"] != trained.record["curve"][0]["losses"]  # on other rows


def test_held_out_documents_are_never_trained_on(pair, trained):
    _, _, documents = pair
    record = trained.record
    assert set(record["documents"]) <= {fingerprint(text) for text in documents.working}
    assert set(record["held_out"]) <= {fingerprint(text) for text in documents.held_out}
    assert not set(record["documents"]) & set(record["held_out"])
    assert len(record["held_out"]) == FAST["held_out"] == len(record["curve"][0]["losses"])
    assert len(set(record["documents"])) == len(record["documents"]) > 1


def test_parts_of_a_batch_and_either_attention_give_the_same_curve(pair, trained):
    """Their rounding differs, by what the order of sums in float32 makes of it."""
    for options in ({"at_once": 4}, {"attention": "headwise"}):
        other = uptrain(*pair, TOKENS, **FAST | options)
        for point, wanted in zip(other.record["curve"], trained.record["curve"], strict=True):
            np.testing.assert_allclose(point["losses"], wanted["losses"], rtol=0, atol=6.6 * 200 * 2.0**-23)


def test_the_original_gains_by_the_text_alone(trained):
    control = trained.record["control"]
    assert control["loss"]["start"]["value"] == pytest.approx(trained.record["loss"]["teacher"]["value"], abs=1e-5)
    assert control["loss"]["end"]["value"] < control["loss"]["start"]["value"]
    assert all(point["divergences"] == [] for point in control["curve"])
    above = trained.record["loss"]["end"]["value"] - control["loss"]["end"]["value"]
    assert control["student_above"]["value"] == pytest.approx(above)


def test_the_history_tells_what_was_done_and_json_holds_it(trained):
    json.dumps(trained.record, allow_nan=False)
    step = trained.checkpoint.history[-1]
    json.dumps(step, allow_nan=False)
    assert step["operation"] == "uptrain"
    assert step["tokens"] == TOKENS
    assert step["settings"]["params"] == "attention"
    assert step["seconds"] > 0
    assert step["held_out"] == trained.record["held_out"]
    assert "curve" not in step


def test_the_text_alone_can_be_learnt(pair):
    record = uptrain(*pair, TOKENS, **FAST | {"loss": "ce", "points": 1}).record
    assert record["loss"]["end"]["value"] < record["loss"]["start"]["value"]
    assert record["divergence"]["start"]["value"] > 0


def test_a_masked_model_is_trained_on_its_masks(tmp_path):
    teacher = load(tiny.save_bert(tmp_path / "bert"))
    student = copy_of(teacher)
    with torch.no_grad():
        student.model.bert.encoder.layer[0].attention.output.dense.weight.zero_()
    documents = read_corpus(tiny.write_texts(tmp_path / "texts", count=47, length=131))
    record = uptrain(student, teacher, documents, TOKENS, **FAST | {"points": 1}).record
    assert record["divergence"]["end"]["value"] < record["divergence"]["start"]["value"]


def test_bfloat16_is_near_and_leaves_weights_in_float32(pair, trained):
    result = uptrain(*pair, TOKENS, **FAST | {"precision": "bfloat16", "points": 1})
    assert {tensor.dtype for tensor in state(result.checkpoint).values()} == {torch.float32}
    assert result.record["curve"][0]["losses"] == trained.record["curve"][0]["losses"]  # measured as ever
    ends = [record["divergence"]["end"]["value"] for record in (result.record, trained.record)]
    assert ends[0] != ends[1]
    assert ends[0] == pytest.approx(ends[1], rel=2**-8)


def test_what_is_measured_last_is_what_will_be_written(pair, tmp_path):
    student = copy_of(pair[0])
    student.stored_dtype = torch.bfloat16
    result = uptrain(student, *pair[1:], BATCH * LENGTH, **FAST | {"points": 1})
    assert all(torch.equal(one, one.bfloat16().float()) for one in state(result.checkpoint).values())
    export(result.checkpoint, tmp_path / "out", dtype=torch.bfloat16)
    held_out = cut_rows(
        pair[2].held_out, student.tokenizer, tokens=FAST["held_out"] * LENGTH, length=LENGTH, seed=0, what="the test"
    )
    np.testing.assert_array_equal(held_out.documents, result.record["held_out"])
    losses = document_losses(load(tmp_path / "out"), held_out)
    np.testing.assert_allclose(losses, result.record["curve"][-1]["losses"], rtol=0, atol=6.6 * 200 * 2.0**-23)


def test_every_measured_point_is_a_stage(pair):
    stages: list[str] = []

    class Listening(Silent):
        def stage(self, text: str) -> None:
            stages.append(text)

    curve = uptrain(*pair, 4 * BATCH * LENGTH, progress=Listening(), **FAST | {"points": 2}).record["curve"]
    means = [f"{np.mean(point['losses']):.3f}" for point in curve]
    told = [
        f"{pair[0].name}: {step} of 4 steps, held-out loss {mean}" for step, mean in zip((0, 2, 4), means, strict=True)
    ]
    assert stages[1:] == told
