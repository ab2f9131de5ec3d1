"""What kept heads take over from removed ones: planted duplicates wholly, and never from the wrong inputs."""

from __future__ import annotations

import pytest
import torch

from headwise.errors import UserError
from headwise.models.corpus import Rows
from headwise.models.weights import heads_of, replace_heads
from headwise.surgery.prune import prune
from headwise.surgery.ridge import Sums, fit_ridge
from tests.models import tiny
from tests.surgery.pruning import SUPPORTED, checkpoint, logits, rows


def plant_copies(model, layer=1):
    """The last group of a layer attends to the same as the first; its output projections stay its own."""
    weights = heads_of(model, layer).clone()
    size = weights.group_size
    for kind, width in (("query", size), ("key", 1), ("value", 1)):
        for tensor in (getattr(weights, kind), getattr(weights, f"{kind}_bias")):
            if tensor is not None:
                tensor[-width:] = tensor[:width]
    replace_heads(model, {layer: weights})
    return list(range(weights.num_heads - size))


@pytest.mark.parametrize("name", SUPPORTED)
def test_a_planted_copy_is_recovered_wholly_and_only_by_compensation(name):
    model = checkpoint(name)
    keep = {1: plant_copies(model)}
    tokens = tiny.tokens(2, 13, seed=9)
    before = logits(model, tokens)
    pruned = prune(model, rows(), keep=keep)
    recovered = pruned.history[-1]["recovered"]["1"]
    assert recovered["share"] == pytest.approx(1, abs=1e-6)
    assert recovered["ridge"] < 1e-3
    assert (logits(pruned, tokens) - before).abs().max() <= 1e-3 * before.abs().max()
    bare = prune(model, keep=keep, compensate=False)
    assert (logits(bare, tokens) - before).abs().max() > 0.03 * before.abs().max()


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_a_head_that_always_says_the_same_goes_into_the_bias(name):
    model = checkpoint(name)
    weights = heads_of(model, 2).clone()
    weights.value[3] = 0
    weights.value_bias[3] = torch.arange(7.0) / 3
    replace_heads(model, {2: weights})
    said = weights.output[3] @ weights.value_bias[3]
    pruned = prune(model, rows(), keep={2: [0, 1, 2, 4]})
    assert pruned.history[-1]["recovered"]["2"]["share"] == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(heads_of(pruned, 2).output_bias, weights.output_bias + said, rtol=1e-3, atol=1e-3)


def test_each_layer_is_fitted_on_what_the_pruned_ones_before_it_give():
    """Both layers at once is one after the other; fitted on the intact model's inputs the second is different."""
    model, text = checkpoint("llama", torch.float64), rows()
    together = heads_of(prune(model, text, keep={0: [0, 1, 2], 2: [3, 4, 5]}), 2).output
    in_turn = heads_of(prune(prune(model, text, keep={0: [0, 1, 2]}), text, keep={2: [3, 4, 5]}), 2).output
    alone = heads_of(prune(model, text, keep={2: [3, 4, 5]}), 2).output
    torch.testing.assert_close(together, in_turn, rtol=1e-9, atol=1e-9)
    assert (together - alone).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_what_is_recovered_is_what_kept_heads_predict_of_documents_left_out(name):
    """By an explicit fit to all other documents, on the layer's own outputs."""
    model, text = checkpoint(name), rows(4, 2, 23)
    keep = [0, 1, 2]
    calls = {}
    with torch.no_grad(), model.observe(lambda call: calls.update({call.layer: call.output.double()})):
        model.body(text.tokens)
    output = heads_of(model, 1).output.double()
    attended = calls[1].transpose(1, 2)  # [N, L, H, Dv]
    inputs = attended[:, :, keep].flatten(2)
    missing = torch.einsum("nlhd,hed->nle", attended[:, :, 3:], output[3:])
    entry = prune(model, text, keep={1: keep}).history[-1]["recovered"]["1"]
    errors = 0.0
    for document in range(4):
        left_out = torch.tensor([unit == document for unit in text.units])
        x, y = inputs[~left_out].flatten(0, 1), missing[~left_out].flatten(0, 1)
        middle_x, middle_y = (x.mean(0), y.mean(0)) if name == "bert" else (0, 0)
        gram = (x - middle_x).T @ (x - middle_x)
        ridge = entry["ridge"] * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
        weight = torch.linalg.solve(gram + ridge, (x - middle_x).T @ (y - middle_y))
        errors += float((missing[left_out] - middle_y - (inputs[left_out] - middle_x) @ weight).square().sum())
    assert entry["share"] == pytest.approx(1 - errors / float(missing.square().sum()), abs=1e-4)


def made_sums(count, seed, weight, bias=0.0, noise=0.0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 5, generator=generator, dtype=torch.float64) + 2
    y = x @ weight + bias + noise * torch.randn(count, 3, generator=generator, dtype=torch.float64)
    return x, y


@pytest.mark.parametrize("bias", [0.0, 3.0])
def test_a_map_that_is_there_is_found(bias):
    weight = torch.arange(15, dtype=torch.float64).view(5, 3) / 7
    folds = [Sums.of(*made_sums(29, seed, weight, bias)) for seed in range(4)]
    fit = fit_ridge(folds, intercept=bool(bias))
    torch.testing.assert_close(fit.weight, weight, rtol=1e-6, atol=1e-6)
    assert fit.recovered == pytest.approx(1, abs=1e-9)
    assert (fit.bias is None) == (not bias)
    if bias:
        torch.testing.assert_close(fit.bias, torch.full((3,), bias, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_more_noise_than_signal_makes_the_ridge_strong_and_recovers_nothing():
    weight = torch.zeros(5, 3, dtype=torch.float64)
    fit = fit_ridge([Sums.of(*made_sums(11, seed, weight, noise=1.0)) for seed in range(4)], intercept=False)
    assert fit.strength == 10
    assert abs(fit.recovered) < 0.05


def test_inputs_that_are_all_zero_predict_nothing():
    x, y = torch.zeros(7, 5), torch.ones(7, 3)
    fit = fit_ridge([Sums.of(x, y)] * 2, intercept=False)
    assert torch.equal(fit.weight, torch.zeros(5, 3, dtype=torch.float64))
    assert fit.recovered == 0


def test_too_little_calibration_is_refused_with_how_much_is_needed():
    text = rows(3, 1, 7)
    model = checkpoint("llama")
    with pytest.raises(UserError, match=r"at least 45 tokens of calibration for 30 dimensions .* in a layer, got 21"):
        prune(model, text, keep={1: [0, 1, 2]})
    # With scores still to come the heads that stay are not known, and all of a layer are asked for.
    with pytest.raises(UserError, match="for 60 dimensions"):
        prune(model, text, heads=3)
    # Without the document of two rows there are seven tokens to fit to, for thirty unknowns.
    uneven = Rows(text.tokens, (0, 0, 1), ("a", "b"))
    with pytest.raises(UserError, match=r"at least 90 tokens of calibration for 30 dimensions .*, got 21"):
        prune(model, uneven, keep={1: [0, 1, 2]})
    just_enough = rows(2, 1, 30)
    assert prune(model, just_enough, keep={1: [0, 1, 2]}).history[-1]["compensated"]
    one = Rows(text.tokens, (0, 0, 0), ("a",))
    with pytest.raises(UserError, match="calibration rows of at least 2 documents"):
        prune(model, one, keep={1: [0, 1, 2]})


def test_other_layers_keep_their_weights():
    model = checkpoint("qwen2")
    pruned = prune(model, rows(), keep={1: [0, 1, 2]})
    old, new = model.model.state_dict(), pruned.model.state_dict()
    changed = {name for name in old if old[name].shape != new[name].shape or not torch.equal(old[name], new[name])}
    assert {name.split(".")[2] for name in changed} == {"1"}
    assert all("self_attn" in name for name in changed)


def test_query_heads_and_keys_of_those_that_stay_are_untouched():
    model = checkpoint("gpt-neox")
    pruned = prune(model, rows(), keep={1: [0, 2, 3]})
    old, new = heads_of(model, 1).select([0, 2, 3], [0, 2, 3]), heads_of(pruned, 1)
    for kind in ("query", "key", "value", "query_bias", "key_bias", "value_bias"):
        assert torch.equal(getattr(old, kind), getattr(new, kind))
    assert not torch.equal(old.output, new.output)
