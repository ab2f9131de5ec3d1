"""Effects: paired losses, controls of the same layers, and importance as a derivative."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.errors import UserError
from headwise.models.importance import importance
from headwise.models.losses import row_losses
from headwise.study.effects import plan_conditions
from headwise.study.samples import repeated_samples
from headwise.study.settings import Settings
from headwise.study.tables import effect_table
from headwise.study.tasks import TaskRunner, make_task


def _task(checkpoint, count=5):
    samples = repeated_samples(checkpoint.tokenizer, checkpoint.model.config, count, 3, seed=2)
    return make_task("repeated", samples, checkpoint, seed=0)


def test_the_loss_of_a_causal_model_is_that_of_transformers(llama):
    task = _task(llama)
    for question in task.questions:
        with torch.no_grad():
            losses = row_losses(llama, question)
            for row, loss in zip(question.inputs, losses, strict=True):
                labels = torch.full_like(row, -100)
                labels[51:] = row[51:]
                assert loss.item() == pytest.approx(llama.model(row[None], labels=labels[None]).loss.item(), abs=1e-5)


def test_the_loss_of_a_masked_model_asks_for_the_masked_tokens_only(bert):
    task = _task(bert)
    for question in task.questions:
        asked = question.labels != -100
        assert (asked.sum(1) >= 1).all()
        assert asked.float().mean() < 0.2
        assert (question.inputs[asked] == bert.tokenizer.mask_token_id).all()
        with torch.no_grad():
            losses = row_losses(bert, question)
            for row in range(len(losses)):
                stock = bert.model(question.inputs[row : row + 1], labels=question.labels[row : row + 1]).loss
                assert losses[row].item() == pytest.approx(stock.item(), abs=1e-5)


def test_a_model_without_a_language_head_has_no_task(llama):
    import dataclasses

    with pytest.raises(UserError, match="no language head"):
        _task(dataclasses.replace(llama, objective=None))


@pytest.mark.parametrize("mode", ["zero", "mean"])
def test_losses_with_reused_layers_equal_whole_runs(llama, mode):
    task = _task(llama)
    means = torch.randn(3, 6, 10)
    runner = TaskRunner(llama, task, means)
    for heads in ([(2, 1)], [(1, 0), (2, 5)], [(0, 3)], []):
        whole = torch.empty(task.documents, dtype=torch.float64)
        for question in task.questions:
            with torch.inference_mode(), llama.ablate(heads, mode, means):
                whole[list(question.units)] = row_losses(llama, question).double()
        assert torch.equal(runner.losses(heads, mode), whole)


def test_importance_is_the_derivative_of_the_loss_by_the_gate(bert):
    task = _task(bert, count=3)
    values = importance(bert, task.questions, batch=2)
    assert values.shape == (3, 2, 3)
    step = 1e-2
    for layer, head in bert.heads:
        moved = []
        for gate in (1 + step, 1 - step):
            gates = torch.ones(2, 3, 3)
            gates[layer, :, head] = gate
            with torch.no_grad(), bert.gate(gates):
                moved.append(torch.cat([row_losses(bert, question) for question in task.questions]).numpy())
        slope = np.abs(moved[0] - moved[1]) / (2 * step)
        np.testing.assert_allclose(values[:, layer, head], slope, atol=2e-3)


def test_controls_are_random_heads_of_the_same_layers_and_never_leaders(llama):
    leaders = {"induction": [(1, 0), (1, 3), (2, 5)], "first": [(0, 2)]}
    conditions = plan_conditions(leaders, llama, Settings(controls=2))
    sets = [c for c in conditions if c.role == "leader" and c.score == "induction" and c.task == "repeated"]
    assert [c.heads for c in sets if c.mode == "zero"] == [
        ((1, 0),), ((1, 3),), ((2, 5),), ((1, 0), (1, 3)), ((1, 0), (1, 3), (2, 5)),
    ]  # fmt: skip
    for control in (c for c in conditions if c.role == "control"):
        assert [layer for layer, _ in control.heads] == sorted(layer for layer, _ in control.leaders)
        assert not set(control.heads) & set(leaders[control.score])
        assert len(set(control.heads)) == len(control.heads)
    whole = [c for c in conditions if c.role == "control" and len(c.leaders) == 3 and c.task == "text"]
    assert len(whole) == 2 * 2  # two draws, zeroed and mean-ablated
    assert {c.task for c in conditions if c.score == "first"} == {"text"}


def test_a_layer_with_too_few_other_heads_gets_no_control(llama):
    leaders = {"first": [(1, head) for head in range(6)]}
    conditions = plan_conditions(leaders, llama, Settings(singles=6))
    assert not [c for c in conditions if c.role == "control"]


def test_the_table_pairs_documents_and_subtracts_the_mean_control(llama):
    conditions = plan_conditions({"first": [(0, 2), (1, 1), (2, 2)]}, llama, Settings(controls=2))
    generator = np.random.default_rng(0)
    intact = generator.normal(3, 1, size=7)
    losses = {"text-intact": intact}
    for condition in conditions:
        losses[condition.key] = intact + (0.9 if condition.role == "leader" else 0.2) + generator.normal(0, 0.01, 7)
    table, raw = effect_table(conditions, losses, seed=0)
    leader = table[(table.role == "leader") & (table.heads.map(len) == 3) & (table["mode"] == "zero")].iloc[0]
    assert leader.heads == ["L0.H2", "L1.H1", "L2.H2"]
    assert leader.delta == pytest.approx(0.9, abs=0.02)
    assert leader.control_delta == pytest.approx(0.2, abs=0.02)
    # Documents differ by one nat, effects by 0.01: only pairing gives intervals this narrow.
    assert 0.85 < leader.low < leader.delta < leader.high < 0.95
    assert 0.65 < leader.excess_low < 0.7 < leader.excess_high < 0.75
    assert table[table.role == "control"].control_delta.isna().all()
    assert len(raw) == 7 * len(table)
    assert leader.loss - leader.baseline == pytest.approx(leader.delta)
