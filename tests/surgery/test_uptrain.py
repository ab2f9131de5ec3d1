"""Re-training: what is learnt, what moves, what is measured on, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headwise.errors import UserError
from headwise.models import Checkpoint, load
from headwise.models.corpus import Corpus, cut_rows, fingerprint, read_corpus
from headwise.models.questions import document_losses
from headwise.models.weights import copy_of, heads_of
from headwise.progress import Silent
from headwise.surgery import uptrain_loop
from headwise.surgery.export import export
from headwise.surgery.uptrain import Uptrained, uptrain
from headwise.surgery.uptrain_parameters import trained_names
from headwise.surgery.uptrain_results import share_closed
from headwise.surgery.uptrain_running import running_on
from headwise.surgery.uptrain_settings import Settings
from tests.study import tiny
from tests.surgery.uptrain_models import BATCH, FAST, LENGTH, built, open_pair, save

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


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3", "gpt2", "gpt-neox", "bert", "gemma2"])
def test_attention_is_what_holds_the_projections(name):
    """What ``heads_of`` reads lies in the chosen weights, and they hold nothing else but norms of queries and keys."""
    checkpoint = built(name)
    chosen = [checkpoint.model.get_parameter(key) for key in trained_names(checkpoint, "attention")]
    read = {
        tensor.untyped_storage().data_ptr()
        for layer in range(checkpoint.num_layers)
        for tensor in vars(heads_of(checkpoint, layer)).values()
        if tensor is not None
    }
    others = [weight for weight in chosen if weight.untyped_storage().data_ptr() not in read]
    assert read == {weight.untyped_storage().data_ptr() for weight in chosen} - {
        weight.untyped_storage().data_ptr() for weight in others
    }
    assert all(weight.shape == (checkpoint.layouts[0].head_dim,) for weight in others)
    assert len(others) == (2 * checkpoint.num_layers if name == "qwen3" else 0)


def test_tied_embeddings_are_trained_as_one():
    checkpoint = built("gemma2")
    names, model = trained_names(checkpoint, "all"), checkpoint.model
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert sum("embed" in name or "lm_head" in name for name in names) == 1


def test_the_same_seed_gives_the_same_model_and_another_one_another(pair, trained):
    again = uptrain(*pair, TOKENS, **FAST)
    assert again.checkpoint.weights_sha256 == trained.checkpoint.weights_sha256
    assert again.record["curve"] == trained.record["curve"]
    other = uptrain(*pair, BATCH * LENGTH, seed=5, **FAST)
    assert other.record["documents"] != trained.record["documents"][: len(other.record["documents"])]


def test_held_out_documents_are_never_trained_on(pair, trained):
    _, _, documents = pair
    record = trained.record
    assert set(record["documents"]) <= {fingerprint(text) for text in documents.working}
    assert set(record["held_out"]) <= {fingerprint(text) for text in documents.held_out}
    assert not set(record["documents"]) & set(record["held_out"])
    assert len(record["held_out"]) == FAST["held_out"] == len(record["curve"][0]["losses"])
    assert len(set(record["documents"])) == len(record["documents"]) > 1


def test_every_row_is_seen_once_and_in_order(pair, monkeypatch):
    seen = []
    ask = uptrain_loop.Training._ask

    def note(self, part):
        seen.append(part.inputs)
        return ask(self, part)

    monkeypatch.setattr(uptrain_loop.Training, "_ask", note)
    uptrain(*pair, 3 * BATCH * LENGTH, **FAST | {"points": 1, "at_once": 3})
    assert [len(part) for part in seen] == [3, 1] * 3
    rows = torch.cat(seen)
    assert len({tuple(row) for row in rows.tolist()}) == 3 * BATCH


def test_parts_of_a_batch_and_either_attention_give_the_same_curve(pair, trained):
    """Their rounding differs, by what the order of sums in float32 makes of it."""
    for options in ({"at_once": 4}, {"attention": "headwise"}):
        other = uptrain(*pair, TOKENS, **FAST | options)
        for point, wanted in zip(other.record["curve"], trained.record["curve"], strict=True):
            np.testing.assert_allclose(point["losses"], wanted["losses"], rtol=0, atol=6.6 * 200 * 2.0**-23)


@pytest.mark.parametrize(("name", "told"), [("llama", "sdpa"), ("gemma2", "headwise")])
def test_an_architecture_that_asks_for_more_stays_on_headwise(name, told):
    """PyTorch's own attention would leave out Gemma 2's soft-cap."""
    checkpoint = built(name)
    with running_on("auto", checkpoint):
        assert checkpoint.model.config._attn_implementation == told
    assert checkpoint.model.config._attn_implementation == "headwise"


def test_the_gradient_is_clipped(pair, trained, monkeypatch):
    """A step of AdamW does not depend on the size of the gradient, so one by plain descent is looked at."""

    def descent(parameters, lr, **_):
        return torch.optim.SGD(parameters, lr)

    monkeypatch.setattr(uptrain_loop.torch.optim, "AdamW", descent)
    norm = trained.record["steps"][0]["gradient"]
    moves = {}
    for clip in (norm / 3, norm * 3):
        result = uptrain(*pair, BATCH * LENGTH, **FAST | {"clip": clip, "points": 1})
        pairs = [(after, state(pair[0])[name]) for name, after in state(result.checkpoint).items()]
        moved = sum(float((after.double() - before.double()).square().sum()) for after, before in pairs) ** 0.5
        moves[clip] = moved / FAST["rate"]
    assert moves[norm / 3] == pytest.approx(norm / 3, rel=1e-3)  # weights of 0.2 hold moves of 1e-3 to five digits
    assert moves[norm * 3] == pytest.approx(norm, rel=1e-3)


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


def test_the_share_of_the_gap_is_one_of_means_and_paired():
    start, end, teacher = [5.0, 6.0, 9.0], [4.0, 4.5, 6.0], [3.0, 3.0, 3.0]
    share = share_closed(start, end, teacher, 0)
    assert share["value"] == pytest.approx(5.5 / 11)
    assert share["low"] == share["high"] == pytest.approx(0.5)  # the same half in every document


def test_there_is_no_share_of_a_gap_that_is_not_shown():
    """The teacher is better in the mean, and worse in some documents."""
    told = share_closed([5.0, 6.0, 9.0], [4.0, 4.5, 6.0], [5.1, 6.1, 3.0], 0)
    assert (told["value"], told["low"], told["high"]) == (None, None, None)
    assert told["reason"].startswith("no gap to close: the student's loss was not shown to be above the teacher's")
    assert share_closed([5.0], [4.0], [6.0], 0)["reason"].endswith("the difference was -1.000 nats")
    alone = share_closed([5.0], [4.0], [3.0], 0)
    assert alone == {"value": 0.5, "low": None, "high": None, "reason": None}


def test_a_loss_that_rose_is_said_and_what_to_do():
    told = share_closed([5.0, 6.0], [5.5, 6.25], [3.0, 3.0], 0)
    assert told["value"] is None
    assert told["reason"] == (
        "training made it worse: it rose by 0.375 (0.250 to 0.500) nats; train on more tokens, or with a lower --rate"
    )
    assert share_closed([5.0, 6.0], [5.5, 5.75], [3.0, 3.0], 0)["reason"].startswith(
        "training did not lower the held-out loss: it rose by 0.125"
    )


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


def test_short_trainings_have_lower_rates_unless_one_is_asked_for():
    assert Settings(tokens=2_048).peak == pytest.approx(1e-3 * 2_048 / 20_000)
    assert Settings(tokens=20_000).peak == Settings(tokens=1_000_000).peak == 1e-3
    assert Settings(tokens=2_048, rate=2e-3).peak == 2e-3
    assert Settings(tokens=20_000).as_dict()["rate"] == 1e-3


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


def test_a_student_like_its_teacher_or_of_few_bits_is_refused(pair):
    _, teacher, documents = pair
    assert "got the same weights, so there is nothing to learn" in refused((copy_of(teacher), teacher, documents))
    half = copy_of(pair[0])
    half.model.to(torch.bfloat16)
    assert "expected float32 weights" in refused((half, teacher, documents))


def test_held_out_documents_that_an_earlier_step_has_seen_are_refused(pair, trained):
    student, teacher, documents = pair
    seen = trained.record["held_out"][2]
    told = dataclasses.replace(student, history=({"operation": "convert", "documents": [seen]},))
    assert f"got 1 that convert used (first {seen})" in refused((told, teacher, documents))


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_state(pair, tmp_path, monkeypatch):
    real = uptrain_loop.learning_rate

    def explode(step, *others):
        return 1e30 if step == 3 else real(step, *others)

    monkeypatch.setattr(uptrain_loop, "learning_rate", explode)
    text = refused(pair, partial=tmp_path / "p", save_every=1, points=1)
    assert "in step 5 of 9, so training stopped; the last good state is in" in text
    assert "give a smaller rate than 0.003" in text
    kept = json.loads((tmp_path / "p" / "student.json").read_text())
    assert kept["step"] == 4
