"""Single steps: which rows they take, at which rate, and how far they go."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from headwise.errors import UserError
from headwise.models import Checkpoint
from headwise.models.corpus import Corpus, cut_rows
from headwise.models.questions import by_document, document_losses
from headwise.models.weights import copy_of
from headwise.progress import Silent
from headwise.surgery.training import loop as uptrain_loop
from headwise.surgery.training.loop import Task, Training
from headwise.surgery.training.parameters import trained_names
from headwise.surgery.training.ranks import Ranks
from headwise.surgery.training.rows import question_of
from headwise.surgery.training.schedule import learning_rate
from headwise.surgery.training.settings import Settings
from headwise.surgery.training.state import State
from headwise.surgery.uptrain import uptrain
from tests.surgery.uptrain_models import BATCH, FAST, HELD_OUT, LENGTH, open_pair, save

Pair = tuple[Checkpoint, Checkpoint, Corpus]


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Pair:
    folder = tmp_path_factory.mktemp("steps")
    save(folder)
    return open_pair(folder)


def state(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    return checkpoint.model.state_dict()


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


def test_the_gradient_is_clipped(pair, monkeypatch):
    """A step of AdamW does not depend on the size of the gradient, so one by plain descent is looked at."""

    def descent(parameters, lr, **_):
        return torch.optim.SGD(parameters, lr)

    monkeypatch.setattr(uptrain_loop.torch.optim, "AdamW", descent)
    norm = uptrain(*pair, BATCH * LENGTH, **FAST | {"points": 1}).record["steps"][0]["gradient"]
    moves = {}
    for clip in (norm / 3, norm * 3):
        result = uptrain(*pair, BATCH * LENGTH, **FAST | {"clip": clip, "points": 1})
        pairs = [(after, state(pair[0])[name]) for name, after in state(result.checkpoint).items()]
        moved = sum(float((after.double() - before.double()).square().sum()) for after, before in pairs) ** 0.5
        moves[clip] = moved / FAST["rate"]
    assert moves[norm / 3] == pytest.approx(norm / 3, rel=1e-3)  # weights of 0.2 hold moves of 1e-3 to five digits
    assert moves[norm * 3] == pytest.approx(norm, rel=1e-3)


def test_short_trainings_have_lower_rates_unless_one_is_asked_for():
    assert Settings(tokens=2_048).peak == pytest.approx(2e-4 * 2_048 / 4_000)
    assert Settings(tokens=4_000).peak == Settings(tokens=1_000_000).peak == 2e-4
    assert Settings(tokens=2_048, rate=2e-3).peak == 2e-3
    begun = Settings(tokens=513, batch=2)  # a token more, and a second batch is trained on
    assert (begun.steps, begun.peak) == (2, pytest.approx(2e-4 * 1_024 / 4_000))
    assert Settings(tokens=20_000).as_dict()["rate"] == 2e-4


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_state(pair, tmp_path, monkeypatch):
    real = uptrain_loop.learning_rate

    def explode(step, *others):
        return 1e30 if step == 3 else real(step, *others)

    monkeypatch.setattr(uptrain_loop, "learning_rate", explode)
    with pytest.raises(UserError) as raised:
        uptrain(*pair, 9 * BATCH * LENGTH, partial=tmp_path / "p", **FAST | {"save_every": 1, "points": 1})
    text = str(raised.value)
    assert "in step 5 of 9, so training stopped; the last good state is in" in text
    assert "give a smaller rate than 0.003" in text
    kept = json.loads((tmp_path / "p" / "student.json").read_text())
    assert kept["step"] == 4


def test_the_curve_is_measured_at_the_start_evenly_between_and_at_the_end():
    assert Settings(tokens=7 * 2_048, points=3).measured_steps == (0, 2, 5, 7)
    assert Settings(tokens=2_048, points=4).measured_steps == (0, 1)


def test_ranks_take_equally_many_rows_and_leave_none():
    assert [Ranks(rank, 3, "ddp").share(7) for rank in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 6, 6]]


def test_settings_reach_the_optimiser(pair):
    student, _, documents = pair
    rows = cut_rows(documents.working, student.tokenizer, tokens=BATCH * LENGTH, length=LENGTH, seed=0, what="the test")
    question = question_of(student, rows, 0)
    settings = Settings.of(BATCH * LENGTH, FAST | {"weight_decay": 0.3, "betas": (0.7, 0.8), "rate": 2e-3})
    training = Training(
        copy_of(student), None, Task(question, question), settings, State(None, "student", Ranks()), Silent()
    )
    (group,) = training.optimizer.param_groups
    assert (group["weight_decay"], group["betas"], group["lr"]) == (0.3, (0.7, 0.8), 2e-3)


def test_rates_are_those_of_the_schedule(pair):
    options = FAST | {"warmup": 0.5, "points": 1}
    steps = uptrain(*pair, 5 * BATCH * LENGTH, **options).record["steps"]
    assert [step["rate"] for step in steps] == [learning_rate(step, 5, FAST["rate"], 0.5) for step in range(5)]
    assert steps[0]["rate"] == pytest.approx(FAST["rate"] / 3)


def by_hand(pair: Pair, batch: int, temperature: float) -> tuple[float, float, float]:
    """Cross entropy, divergence and the norm of its gradient for a batch, all rows and logits at once."""
    student, teacher, documents = copy_of(pair[0]), pair[1], pair[2]
    rows = cut_rows(
        documents.working, student.tokenizer, tokens=2 * BATCH * LENGTH, length=LENGTH, seed=0, what="the test"
    )
    tokens, model = rows.tokens[batch * BATCH : (batch + 1) * BATCH], student.model
    names = trained_names(student, "attention")
    for name in names:
        model.get_parameter(name).requires_grad_(True)
    logits = student.forward(tokens).logits[:, :-1].flatten(0, 1)
    with torch.no_grad():
        target = (teacher.forward(tokens).logits[:, :-1].flatten(0, 1) / temperature).softmax(-1)
    entropy = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
    own = (logits / temperature).log_softmax(-1)
    divergence = nn.functional.kl_div(own, target, reduction="batchmean") * temperature**2
    divergence.backward()
    norm = sum(float(model.get_parameter(name).grad.double().square().sum()) for name in names) ** 0.5
    return float(entropy), float(divergence), norm


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_a_step_tells_the_means_over_its_batch_and_the_norm_of_their_gradient(pair, temperature):
    """In two parts, at a rate that moves nothing; of the first step's gradient nothing is left in the second."""
    options = FAST | {"points": 1, "temperature": temperature, "at_once": 3, "rate": 1e-9}
    steps = uptrain(*pair, 2 * BATCH * LENGTH, **options).record["steps"]
    for batch, step in enumerate(steps):
        told = tuple(step[name] for name in ("cross_entropy", "divergence", "gradient"))
        assert told == pytest.approx(by_hand(pair, batch, temperature), rel=1e-4)


def test_the_curve_begins_with_the_divergence_of_every_held_out_document(pair):
    """Row by row in one pass each, at temperature 1 whatever is trained at."""
    student, teacher, documents = pair
    record = uptrain(*pair, BATCH * LENGTH, **FAST | {"points": 1, "temperature": 2.5}).record
    held_out = cut_rows(
        documents.held_out, student.tokenizer, tokens=HELD_OUT * LENGTH, length=LENGTH, seed=0, what="the test"
    )
    with torch.no_grad():
        own, target = (
            each.forward(held_out.tokens).logits[:, :-1].double().log_softmax(-1) for each in (student, teacher)
        )
    rows = (target.exp() * (target - own)).sum(-1).mean(1).numpy()
    wanted = by_document(rows[:, None], held_out.units)[:, 0]
    np.testing.assert_allclose(record["curve"][0]["divergences"], wanted, rtol=1e-3)
    np.testing.assert_allclose(record["teacher"]["losses"], document_losses(teacher, held_out), rtol=1e-5)
