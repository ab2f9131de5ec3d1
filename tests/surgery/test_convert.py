"""Converting whole models: exact where the heads are the same in another basis, better than the mean elsewhere."""

from __future__ import annotations

import json

import pytest
import torch

from headwise.errors import UserError
from headwise.models.checkpoint import Checkpoint
from headwise.models.corpus import Rows, cut_rows, read_corpus
from headwise.models.interface import NAME
from headwise.models.weights import copy_of, heads_of, replace_heads
from headwise.surgery.convert import Recipe, convert
from headwise.surgery.gauge import degroup, scramble
from tests.fixtures import demo
from tests.models import tiny
from tests.surgery.decoders import SHARING, decoder, divergence, logits, rows

__all__ = ["demo"]
# Those whose three members of a group can be made by repeating two KV heads.
GROUPED = [name for name in SHARING if "half" not in name]
QUICK = Recipe(steps=15)


@pytest.mark.parametrize("name", GROUPED)
def test_a_scrambled_model_comes_back(name):
    """Two KV heads repeated to six, turned, mapped, and in another order: the groups have to be found."""
    model = decoder(name)
    original = logits(model)
    mixed = scramble(model, seed=3)
    assert [layout.num_kv_heads for layout in mixed.layouts] == [6, 6, 6]
    back = convert(mixed, 2, rows=rows())
    assert [layout.num_kv_heads for layout in back.layouts] == [2, 2, 2]
    assert back.model.config.num_key_value_heads == 2
    assert divergence(original, logits(back)) < 1e-6
    assert torch.equal(original.argmax(-1), logits(back).argmax(-1))
    averaged = convert(mixed, 2, recipe=Recipe("mean"))
    assert divergence(original, logits(averaged)) > 0.1


@pytest.mark.parametrize("name", GROUPED)
def test_a_scrambled_model_comes_back_in_float64_without_any_fit(name):
    model = decoder(name, torch.float64)
    mixed = scramble(model, seed=3)
    back = convert(mixed, 2, rows=rows(), recipe=Recipe(refit=False, steps=0))
    assert (logits(back) - logits(model)).abs().max() < 1e-9


@pytest.mark.parametrize("method", ["first", "mean", "aligned", "pca"])
def test_repeated_heads_are_merged_by_every_method(method):
    model = decoder("llama", torch.float64)
    back = convert(degroup(model), 2, rows=rows(), recipe=Recipe(method, steps=0))
    assert (logits(back) - logits(model)).abs().max() < 1e-9


@pytest.mark.parametrize("name", SHARING)
def test_each_stage_helps_on_rows_that_were_not_fitted(name):
    model = decoder(name)
    changed = convert(model, 1, rows=rows(48), recipe=QUICK)
    told = changed.history[-1]["layers"]
    assert all(layer["fitted"] <= layer["refitted"] for layer in told)
    merged, refitted, fitted = (sum(layer[stage] for layer in told) for stage in ("merged", "refitted", "fitted"))
    assert fitted <= refitted < merged
    means = convert(model, 1, recipe=Recipe("mean"))
    original = logits(model)
    assert divergence(original, logits(changed)) < 0.9 * divergence(original, logits(means))


def test_layers_answer_for_those_before_them():
    """The error that is told for a layer is what the finished model has there, against the original on its own way."""
    model = decoder("llama")
    changed = convert(model, 1, rows=rows(), recipe=Recipe(steps=0))
    tokens = rows().tokens[[7, 15, 23]]  # those that judge
    outputs = {}
    for which in (model, changed):
        for module, (layer,) in which.attention_layers.items():

            def note(_, __, given, which=which, layer=layer):
                outputs[which is changed, layer] = given[0]

            handle = module.register_forward_hook(note)
            with torch.no_grad():
                which.forward(tokens)
            handle.remove()
    for layer, told in enumerate(changed.history[-1]["layers"]):
        wanted, got = outputs[False, layer], outputs[True, layer]
        error = float((got - wanted).square().sum() / wanted.square().sum())
        assert told["refitted"] == pytest.approx(error, rel=1e-3)


def test_the_original_stays_and_the_history_says_what_was_done():
    model = decoder("qwen2")
    digest, before = model.weights_sha256, logits(model)
    changed = convert(model, 1, rows=rows(), recipe=QUICK)
    model.forget_hash()
    assert model.weights_sha256 == digest
    assert torch.equal(logits(model), before)
    assert model.history == ()
    entry = json.loads(json.dumps(changed.history[-1], allow_nan=False))
    assert (entry["operation"], entry["method"], entry["kv_heads"]) == ("convert", "pca", 1)
    assert entry["kv_heads_before"] == [2, 2, 2]
    assert entry["documents"] == list(rows().documents)
    assert (entry["tokens"], entry["length"]) == (24 * 17, 17)
    assert entry["layers"][0]["groups"] == [[0, 1]]
    again = convert(model, 1, rows=rows(), recipe=QUICK)
    assert again.weights_sha256 == changed.weights_sha256


def test_a_converted_model_decodes_as_it_prefills():
    changed = convert(decoder("gemma2"), 1, rows=rows(), recipe=Recipe(steps=0))
    tokens = tiny.tokens(2, 13)
    with torch.no_grad():
        whole = changed.model(input_ids=tokens).logits
        given = changed.model(input_ids=tokens[:, :5], use_cache=True)
        steps = [given.logits]
        for at in range(5, 13):
            cache = given.past_key_values
            given = changed.model(input_ids=tokens[:, at : at + 1], past_key_values=cache, use_cache=True)
            steps.append(given.logits)
    assert given.past_key_values.layers[0].keys.shape[1] == 1
    assert (torch.cat(steps, 1) - whole).abs().max() < 1e-4 * whole.abs().max()


def test_gpt2_gets_one_kv_head_for_all_written_down_for_each():
    model = decoder("gpt2")
    changed = convert(model, 1, rows=rows())
    for layer in range(model.num_layers):
        weights = heads_of(changed, layer)
        assert torch.equal(weights.key, weights.key[:1].expand_as(weights.key))
        assert torch.equal(weights.value_bias, weights.value_bias[:1].expand_as(weights.value_bias))
    original = logits(model)
    means = convert(model, 1, recipe=Recipe("mean"))
    assert divergence(original, logits(changed)) < divergence(original, logits(means))


def test_norms_allow_selection_only():
    model = decoder("qwen3")
    with pytest.raises(UserError, match="qwen3: expected keys without norms for the method pca, got qwen3"):
        convert(model, 1, rows=rows())
    same = degroup(model)
    back = convert(same, 2, recipe=Recipe("first"))
    assert (logits(back) - logits(model)).abs().max() < 1e-5 * logits(model).abs().max()


@pytest.mark.parametrize(
    ("name", "kv_heads", "recipe", "message"),
    [
        ("llama", 4, Recipe(), r"expected a number of KV heads that divides the 2 of layer 0 \(1\), got 4"),
        ("llama", 0, Recipe(), r"divides the 2 of layer 0 \(1\), got 0"),
        ("llama", 1, Recipe("median"), "expected method to be one of pca, aligned, mean, first, got 'median'"),
        ("llama", 1, Recipe(grouping="random"), "expected grouping to be chosen or adjacent, got 'random'"),
        ("llama", 1, Recipe(steps=-1), "expected steps from 0"),
        ("llama", 2, Recipe(), "expected fewer KV heads than it has, got 2, which every layer has already"),
        ("gpt-neox", 1, Recipe(), "expected an architecture that can share KV heads, got gpt_neox"),
        ("gpt2", 5, Recipe(), "expected fewer KV heads than it has, got 5"),
        ("gpt-oss", 1, Recipe(), "expected one of bert, gemma2"),
    ],
)
def test_what_cannot_be_converted_is_refused(name, kv_heads, recipe, message):
    with pytest.raises(UserError, match=message):
        convert(decoder(name), kv_heads, rows=rows(), recipe=recipe)


def test_encoders_are_refused():
    model = tiny.build(tiny.ENCODERS["bert"])
    model.set_attn_implementation(NAME)
    with pytest.raises(UserError, match="expected a decoder, got an encoder"):
        convert(Checkpoint(model, None, name="bert", source="", objective="masked"), 1, rows=rows())


def test_rows_that_are_too_few_to_judge_by_are_refused():
    with pytest.raises(UserError, match=r"expected 3 rows of calibration or more, .* got 2 of 150 tokens"):
        convert(decoder("llama"), 1, rows=rows(2, 150))


def test_rows_beyond_the_positions_are_refused():
    with pytest.raises(UserError, match="expected rows of at most 64 tokens"):
        convert(decoder("llama"), 1, rows=rows(5, 65))


def test_rows_that_judge_are_not_fitted():
    """Other tokens in the documents that judge change nothing but what is told."""
    model, given = decoder("llama"), rows()
    other = Rows(given.tokens.clone(), given.units, given.documents)
    other.tokens[[7, 15, 23]] = tiny.tokens(3, 17, seed=8)
    changed = [convert(model, 1, rows=one, recipe=Recipe(steps=0)) for one in (given, other)]
    assert changed[0].weights_sha256 == changed[1].weights_sha256
    assert changed[0].history[-1]["layers"] != changed[1].history[-1]["layers"]


@pytest.mark.parametrize("given", [None, rows(9, 11)])
def test_too_little_text_is_refused_with_what_is_needed(given):
    got = 0 if given is None else 99
    message = rf"expected at least 240 tokens of calibration, 4 for each of the 60 inputs .* got {got}; give more text"
    with pytest.raises(UserError, match=message):
        convert(decoder("llama"), 1, rows=given)


def test_layers_of_different_numbers_are_converted_each_from_its_own():
    model = decoder("llama")
    replace_heads(model, {1: heads_of(model, 1).select([0, 1, 2], [0])})
    changed = convert(copy_of(model), 1, rows=rows(), recipe=Recipe(steps=0))
    assert [(layout.num_heads, layout.num_kv_heads) for layout in changed.layouts] == [(6, 1), (3, 1), (6, 1)]
    assert changed.history[-1]["layers"][1]["groups"] == [[0]]


@pytest.mark.slow
def test_the_demo_model_comes_back_from_a_scramble(demo):
    """3 KV heads to 9 in other bases and another order, and back: the grouping is found in all 30 layers."""
    corpus = read_corpus(None)
    calibration = cut_rows(corpus.working, demo.tokenizer, tokens=4_096, length=256, seed=0, what="calibration")
    held_out = cut_rows(corpus.held_out, demo.tokenizer, tokens=1_024, length=256, seed=0, what="the test").tokens
    mixed = scramble(demo, seed=0)
    back = convert(mixed, 3, rows=calibration)
    averaged = convert(mixed, 3, recipe=Recipe("mean"))
    with torch.no_grad():
        original, returned, mean = (model.forward(held_out).logits for model in (demo, back, averaged))
    assert divergence(original, returned) <= 1e-6
    assert torch.equal(original.argmax(-1), returned.argmax(-1))
    assert divergence(original, mean) > 1
