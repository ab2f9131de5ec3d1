"""Projections by heads: read from every packing, written back, with other numbers of heads."""

from __future__ import annotations

import copy

import pytest
import torch

from headwise.errors import UserError
from headwise.models.checkpoint import Checkpoint
from headwise.models.head_weights import HeadWeights
from headwise.models.interface import NAME, register
from headwise.models.weights import LAYERS_KEY, copy_of, heads_of, replace_heads, resize_layers, rotary_of
from tests.models import tiny

register()
MODELS = tiny.DECODERS | tiny.ENCODERS
SUPPORTED = ["llama", "mistral, window 5", "qwen2", "qwen3", "gemma2", "phi3", "gpt2", "gpt-neox", "bert"]
SHARING = [name for name in SUPPORTED if name not in ("gpt2", "gpt-neox", "bert")]


def checkpoint(name: str) -> Checkpoint:
    model = tiny.build(MODELS[name])
    model.set_attn_implementation(NAME)
    return Checkpoint(model, None, name=name, source=name, objective="next")


def states(checkpoint: Checkpoint) -> torch.Tensor:
    with torch.no_grad():
        return checkpoint.forward(tiny.tokens(2, 13)).logits


@pytest.mark.parametrize("name", SUPPORTED)
def test_what_is_read_is_what_the_layer_computes(name):
    """The layer's own queries, keys and values, and its output, from the weights by heads alone."""
    model = checkpoint(name)
    for layer in range(model.num_layers):
        weights = heads_of(model, layer).to(torch.float64)
        module = next(m for m, served in model.attention_layers.items() if layer in served)
        seen = {}

        def note(_, arguments, options, seen=seen):
            seen["input"] = arguments[0] if arguments else options["hidden_states"]

        calls = []
        handle = module.register_forward_pre_hook(note, with_kwargs=True)
        with torch.no_grad(), model.observe(calls.append):
            model.forward(tiny.tokens(1, 1))  # one token: at position 0 nothing is turned, and values pass through
        handle.remove()
        call = next(call for call in calls if call.layer == layer)
        hidden = seen["input"][0, 0].double()
        for kind, got in (("query", call.query), ("key", call.key), ("value", call.value)):
            wanted = getattr(weights, kind) @ hidden
            if getattr(weights, f"{kind}_bias") is not None:
                wanted = wanted + getattr(weights, f"{kind}_bias")
            if kind != "value" and rotary_of(model, layer).norms:
                wanted = wanted / wanted.pow(2).mean(-1, keepdim=True).sqrt()
                norm = getattr(module, f"{kind[0]}_norm")
                wanted = wanted * norm.weight.double()
            torch.testing.assert_close(got[0, :, 0].double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SUPPORTED)
def test_writing_back_what_was_read_changes_nothing(name):
    model = checkpoint(name)
    before, config = states(model), model.model.config.to_dict()
    replace_heads(model, {layer: heads_of(model, layer).clone() for layer in range(model.num_layers)})
    assert torch.equal(states(model), before)
    assert model.model.config.to_dict() == config


@pytest.mark.parametrize("name", SUPPORTED)
def test_the_original_stays_as_it_was(name):
    model = checkpoint(name)
    before, digest = states(model), model.weights_sha256
    other = copy_of(model)
    weights = heads_of(other, 1)
    replace_heads(other, {1: weights.mapped(lambda tensor: tensor + 1)})
    assert other.weights_sha256 != digest
    assert torch.equal(states(model), before)
    assert model.weights_sha256 == digest
    assert not torch.equal(states(other), before)


@pytest.mark.parametrize("implementation", [NAME, "sdpa", "eager"])
@pytest.mark.parametrize("name", SUPPORTED)
def test_removed_heads_are_like_heads_whose_output_is_zero(name, implementation):
    """Each layer its own number of heads; under GQA whole groups."""
    model = checkpoint(name)
    kept_groups = {0: [1], 2: [0, 1]} if name in SHARING else {0: [4, 1], 2: [3, 0, 1]}
    gone, changed = [], {}
    for layer, groups in kept_groups.items():
        weights = heads_of(model, layer)
        size = weights.group_size
        heads = [group * size + place for group in groups for place in range(size)]
        gone += [(layer, head) for head in range(weights.num_heads) if head not in heads]
        changed[layer] = weights.select(heads, groups)
    with model.ablate(gone):
        wanted = states(model)
    other = copy_of(model)
    replace_heads(other, changed)
    assert getattr(other.model.config, LAYERS_KEY) == [[one.num_heads, one.num_kv_heads] for one in other.layouts]
    if name == "gemma2" and implementation == "sdpa":
        implementation = "eager"  # transformers' sdpa leaves its soft-cap out
    other.model.set_attn_implementation(implementation)
    assert (states(other) - wanted).abs().max() <= 1e-4 * wanted.abs().max()


@pytest.mark.parametrize("name", SHARING)
def test_repeated_kv_heads_are_the_same_function_and_the_config_says_it(name):
    model = checkpoint(name)
    before = states(model)
    other = copy_of(model)
    for layer in range(model.num_layers):
        weights = heads_of(other, layer)
        kv_heads = [head // weights.group_size for head in range(weights.num_heads)]
        replace_heads(other, {layer: weights.select(range(weights.num_heads), kv_heads)})
    assert other.model.config.num_key_value_heads == other.model.config.num_attention_heads == 6
    assert not hasattr(other.model.config, LAYERS_KEY)
    assert (states(other) - before).abs().max() <= 1e-4 * before.abs().max()


def test_a_config_that_cannot_say_it_lists_the_layers():
    """LlamaConfig wants the width to be a multiple of the heads, whatever their own width is; Mistral's does not."""
    for name, listed in (("llama", True), ("mistral, window 5", False)):
        model = checkpoint(name)
        changed = {}
        for layer in range(model.num_layers):
            weights = heads_of(model, layer)
            changed[layer] = weights.select([0, 1, 3, 4], [0, 1])
        replace_heads(model, changed)
        assert hasattr(model.model.config, LAYERS_KEY) == listed
        assert (model.model.config.num_attention_heads, model.model.config.head_dim) == ((6 if listed else 4), 10)
        assert [layout.num_heads for layout in model.layouts] == [4, 4, 4]


@pytest.mark.parametrize("name", SUPPORTED)
def test_a_fresh_model_is_given_the_same_layers(name):
    model = checkpoint(name)
    groups = model.layouts[1].num_kv_heads - 1
    weights = heads_of(model, 1)
    size = weights.group_size
    replace_heads(model, {1: weights.select(range(groups * size), range(groups))})
    fresh = type(model.model)(copy.deepcopy(model.model.config))
    resize_layers(fresh, getattr(model.model.config, LAYERS_KEY))
    fresh.load_state_dict(model.model.state_dict())
    fresh.set_attn_implementation(NAME)
    twin = Checkpoint(fresh.eval(), None, name=name, source=name, objective="next")
    assert twin.layouts == model.layouts
    assert torch.equal(states(twin), states(model))


@pytest.mark.parametrize("name", ["gpt2", "gpt-neox", "bert"])
def test_a_packing_that_has_a_key_for_every_query_refuses_to_share(name):
    model = checkpoint(name)
    weights = heads_of(model, 0)
    before = states(model)
    with pytest.raises(UserError, match=f"{name}: expected as many KV heads as query heads, since .* got 5 and 1"):
        replace_heads(model, {1: weights.select(range(5), [2] * 5), 0: weights.select(range(5), [0])})
    assert torch.equal(states(model), before)


def test_architectures_that_cannot_be_reshaped_are_named():
    model = checkpoint("gpt-oss")
    with pytest.raises(UserError, match=r"expected one of bert, gemma2, .*, whose projections headwise can read"):
        heads_of(model, 0)
    with pytest.raises(UserError, match="albert"):
        heads_of(checkpoint("albert"), 0)


def test_weights_of_another_size_are_refused():
    model = checkpoint("llama")
    weights = heads_of(model, 0)
    narrow = HeadWeights(weights.query[:, :7], weights.key[:, :7], weights.value[:, :7], weights.output[..., :7])
    with pytest.raises(ValueError, match=r"layer 0: expected heads of \[10, 42\], got \[7, 42\]"):
        replace_heads(model, {0: narrow})
    with pytest.raises(ValueError, match="a multiple of them in queries"):
        weights.select([0, 1, 2], [0, 1])
    with pytest.raises(IndexError, match="expected layer 0 to 2, got 3"):
        heads_of(model, 3)


def test_rotary_styles_are_told():
    assert [rotary_of(checkpoint(name), 0).style for name in ("llama", "gpt2", "bert")] == ["half", "none", "none"]
    assert rotary_of(checkpoint("gpt-neox"), 0).dims == 2  # a quarter of 8
    assert rotary_of(checkpoint("qwen3"), 0).norms
    assert not rotary_of(checkpoint("qwen2"), 0).norms
