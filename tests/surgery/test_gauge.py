"""Exact rewrites: the same logits, in prefill and cached decoding, near and far; and that these tests can fail."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from headwise.attention.reference import reference_attention
from headwise.errors import UserError
from headwise.models.checkpoint import Checkpoint
from headwise.models.head_weights import HeadWeights
from headwise.models.interface import NAME, register
from headwise.models.weights import Rotary, copy_of, heads_of, replace_heads, rotary_of
from headwise.nn import RotaryEmbedding
from headwise.surgery.gauge import degroup, fold_value_bias, permute, rotate, scramble
from headwise.surgery.gauge_maps import GaugeMaps, apply_maps, draw_maps, random_orthogonal, value_bias_folded
from tests.models import tiny

register()
GROUPED = ["llama", "mistral, window 5", "qwen2", "qwen3", "gemma2", "phi3"]
SUPPORTED = [*GROUPED, "gpt2", "gpt-neox", "bert"]
ROTATED = [name for name in SUPPORTED if name != "qwen3"]
LENGTH, PREFILL, LIMIT = 13, 7, 64
EXACT = 1e-9  # of logits around 10, in float64


def made(name: str, dtype: torch.dtype = torch.float64) -> Checkpoint:
    model = tiny.build((tiny.DECODERS | tiny.ENCODERS)[name]).to(dtype)
    model.set_attn_implementation(NAME)
    objective: Any = "next" if name in tiny.DECODERS else "masked"
    return Checkpoint(model, None, name=name, source=name, objective=objective)


@torch.no_grad()
def logits(checkpoint: Checkpoint, tokens: Tensor, limit: int) -> dict[str, Tensor]:
    """In prefill, at the end of the context, and for a decoder step by step over a cache there."""
    far = torch.arange(limit - tokens.shape[1], limit)[None]
    result = {
        "near": checkpoint.forward(tokens).logits,
        "far": checkpoint.forward(tokens, position_ids=far).logits,
    }
    if not checkpoint.causal:
        mask = torch.ones_like(tokens)
        mask[0, -4:] = 0
        return result | {"padded": checkpoint.forward(tokens, attention_mask=mask).logits}
    cache, parts, start = DynamicCache(config=checkpoint.model.config), [], 0
    for step in [PREFILL] + [1] * (tokens.shape[1] - PREFILL):
        chosen = slice(start, start + step)
        given = {"past_key_values": cache, "use_cache": True, "position_ids": far[:, chosen]}
        parts.append(checkpoint.forward(tokens[:, chosen], **given).logits)
        start += step
    return result | {"cached": torch.cat(parts, 1)}


def moved(before: Checkpoint, after: Checkpoint, tokens: Tensor | None = None, limit: int = LIMIT) -> dict[str, float]:
    """The largest difference of logits in each way of computing them."""
    tokens = tiny.tokens(2, LENGTH) if tokens is None else tokens
    first, second = (logits(one, tokens, limit) for one in (before, after))
    return {name: float((first[name] - second[name]).abs().max()) for name in first}


def assert_same_function(before: Checkpoint, after: Checkpoint, bound: float = EXACT) -> None:
    distances = moved(before, after)
    assert max(distances.values()) < bound, distances
    assert len(after.history) == len(before.history) + 1
    assert after.history[-1]["headwise"]


def changed(before: Checkpoint, after: Checkpoint, kind: str) -> bool:
    """Whether these weights of layer 1 are others."""
    return not torch.equal(getattr(heads_of(before, 1), kind), getattr(heads_of(after, 1), kind))


@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize("name", ROTATED)
def test_other_bases_are_the_same_function(name, general):
    model = made(name)
    digest = model.weights_sha256
    turned = rotate(model, seed=3, general=general)
    assert_same_function(model, turned)
    assert all(changed(model, turned, kind) for kind in ("query", "key", "value", "output"))
    model.forget_hash()
    assert model.weights_sha256 == digest


@pytest.mark.parametrize("name", SUPPORTED)
def test_another_order_of_heads_is_the_same_function(name):
    model = made(name)
    turned = permute(model, seed=5)
    assert_same_function(model, turned)
    assert changed(model, turned, "query")
    if name in GROUPED:
        assert changed(model, permute(model, {1: [3, 5, 4, 0, 1, 2]}), "key")  # groups change places
        assert not changed(model, permute(model, [1, 0, 2, 5, 4, 3]), "key")  # heads within groups only
        assert not changed(model, permute(model, {0: [1, 0, 2, 3, 4, 5]}), "query")


@pytest.mark.parametrize("name", GROUPED)
def test_repeated_kv_heads_are_the_same_function(name):
    model = made(name)
    turned = degroup(model)
    assert_same_function(model, turned)
    assert [layout.num_kv_heads for layout in turned.layouts] == [6, 6, 6]


@pytest.mark.parametrize("name", ["gpt2", "gpt-neox", "bert"])
def test_the_value_bias_is_the_same_in_the_output_bias(name):
    model = made(name)
    folded = fold_value_bias(model)
    assert_same_function(model, folded)
    for layer in range(model.num_layers):
        assert not heads_of(folded, layer).value_bias.any()
        assert heads_of(model, layer).value_bias.any()
    assert folded.model.state_dict().keys() == model.model.state_dict().keys()


def test_the_value_bias_of_a_group_counts_for_all_its_query_heads():
    torch.manual_seed(0)
    config = copy.deepcopy(made("llama").model.config)
    config.attention_bias = True
    model = tiny.build(lambda: type(made("llama").model)(config)).double()
    model.set_attn_implementation(NAME)
    biased = Checkpoint(model, None, name="biased", source="biased", objective="next")
    assert heads_of(biased, 0).value_bias.any()
    assert_same_function(biased, fold_value_bias(biased))


@pytest.mark.parametrize("name", [name for name in ROTATED if name not in ("gpt2", "gpt-neox")])
def test_scrambled_heads_are_the_same_function(name):
    model = made(name)
    turned = scramble(model, seed=1)
    assert max(moved(model, turned).values()) < EXACT
    assert [step["operation"] for step in turned.history] == ["degroup", "rotate", "permute"]
    if name in GROUPED:  # heads of both original groups stand among the first half
        places = permute(degroup(model), seed=1)
        originals = heads_of(degroup(model), 1).key
        owners = [int((originals - key).abs().sum((1, 2)).argmin()) // 3 for key in heads_of(places, 1).key]
        assert len(set(owners[:3])) == 2


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_both_ways_of_pairing_dimensions(style):
    """Three dimensions of nine are not turned by position, and are free."""
    torch.manual_seed(0)
    shapes = {"query": (6, 9, 11), "key": (2, 9, 11), "value": (2, 5, 11), "output": (6, 11, 5)}
    shapes |= {"query_bias": (6, 9), "key_bias": (2, 9), "value_bias": (2, 5), "output_bias": (11,)}
    weights = HeadWeights(**{name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()})
    rotary = Rotary(style, 6)
    rope = RotaryEmbedding(9, 100.0, rotary_dim=6, interleaved=style == "interleaved")
    maps = draw_maps(weights, rotary, torch.Generator().manual_seed(0), general=True)
    positions, inputs = torch.arange(500, 507), torch.randn(1, 7, 11, dtype=torch.float64)
    expected = layer_output(weights, rope, inputs, positions)
    torch.testing.assert_close(layer_output(apply_maps(weights, maps, rotary), rope, inputs, positions), expected)
    other = Rotary("half" if style == "interleaved" else "interleaved", 6)
    wrong = layer_output(apply_maps(weights, maps, other), rope, inputs, positions)
    assert (wrong - expected).abs().max() > 1e-2
    torch.testing.assert_close(layer_output(value_bias_folded(weights), rope, inputs, positions), expected)


def layer_output(weights: HeadWeights, rope: RotaryEmbedding, inputs: Tensor, positions: Tensor) -> Tensor:
    def heads(kind: str) -> Tensor:
        rows = torch.einsum("hde,ble->bhld", getattr(weights, kind), inputs)
        return rows + getattr(weights, f"{kind}_bias")[None, :, None]

    query, key = rope(heads("query"), positions), rope(heads("key"), positions)
    output = reference_attention(query, key, heads("value"), causal=True).output
    return torch.einsum("hev,bhlv->ble", weights.output, output) + weights.output_bias


def test_wrong_maps_move_the_logits():
    """What these tests hold to 1e-9 fails by far where the maps are nearly right."""
    model, turned = made("llama"), copy_of(made("llama"))
    weights, rotary = heads_of(model, 1), rotary_of(model, 1)
    generator = torch.Generator().manual_seed(0)
    right = draw_maps(weights, rotary, generator, general=True)
    phases = right.turns / right.turns.abs()
    conjugated = apply_maps(weights, GaugeMaps(turns=phases.conj()), rotary)
    mixed = random_orthogonal(1, weights.key.shape[1], generator)[0]  # a rotation, but not of pairs
    other_output = apply_maps(weights, GaugeMaps(values=right.values), rotary).output
    wrongs = {
        "not conjugated": replace(apply_maps(weights, GaugeMaps(turns=phases), rotary), query=conjugated.query),
        "across pairs": replace(weights, query=mixed @ weights.query, key=mixed @ weights.key),
        "stretched once": replace(weights, key=apply_maps(weights, GaugeMaps(turns=right.turns), rotary).key),
        "values not undone": replace(weights, output=other_output),
    }
    for name, wrong in wrongs.items():
        replace_heads(turned, {1: wrong})
        distances = moved(model, turned)
        assert min(distances.values()) > 1e4 * EXACT, name


def test_norms_forbid_all_but_turns_at_equal_gains():
    model = made("qwen3")
    refusal = (
        "qwen3, layer 0: rotate expected gains that are equal in each rotary pair, since qwen3 normalises queries and "
        "keys, which ties their bases down; pass keys=False to change those of values only, or permute"
    )
    with pytest.raises(UserError) as raised:
        rotate(model)
    assert str(raised.value) == refusal
    with pytest.raises(UserError, match="equal in each rotary pair"):
        scramble(model)
    turned = rotate(model, keys=False, general=True)
    assert_same_function(model, turned)
    assert changed(model, turned, "value")
    assert not changed(model, turned, "key")
    for module in model.attention_layers:
        for norm in (module.q_norm, module.k_norm):
            norm.weight[5:] = norm.weight[:5]
    turned = rotate(model)
    assert_same_function(model, turned, bound=1e-4)  # these norms round to float32 whatever the model's dtype
    assert changed(model, turned, "key")
    with pytest.raises(UserError, match="expected turns of modulus 1, since qwen3 normalises"):
        rotate(model, general=True)


def test_what_cannot_be_done_is_refused():
    model = made("llama")
    with pytest.raises(UserError, match=r"llama, layer 0: permute expected the 3 query heads of a KV head to stay"):
        permute(model, [0, 1, 3, 2, 4, 5])
    with pytest.raises(UserError, match="permute expected each of the query heads 0 to 5 once, got"):
        permute(model, [0, 1, 2, 3, 4, 4])
    with pytest.raises(UserError, match="expected layers 0 to 2, got 3"):
        permute(model, {3: [0, 1, 2, 3, 4, 5]})
    refusal = "llama, layer 0: degroup expected a multiple of its 2 KV heads that divides its 6 query heads, got 4; "
    for count in (1, 3, 4, 12, 0):
        with pytest.raises(UserError, match=refusal.replace("got 4", f"got {count}") + "use one of 2, 6"):
            degroup(model, count)
    with pytest.raises(UserError, match="gpt2, layer 0: degroup expected a multiple of its 5 KV heads"):
        degroup(made("gpt2"), 10)
    with pytest.raises(UserError, match="llama, layer 0: fold_value_bias expected a value bias, got none"):
        fold_value_bias(model)
    with pytest.raises(UserError, match="qwen2, layer 0: fold_value_bias expected an output bias to take the value"):
        fold_value_bias(made("qwen2"))
    for maps in (GaugeMaps(turns=torch.zeros(2, 5)), GaugeMaps(values=torch.zeros(2, 10, 10))):
        with pytest.raises(UserError, match=r"llama, layer 1: rotate \w+: expected .* that can be undone"):
            rotate(model, {1: maps})
    with pytest.raises(UserError, match=r"rotate values: expected maps \[2, 10, 10\], got \[3, 10, 10\]"):
        rotate(model, {1: GaugeMaps(values=torch.zeros(3, 10, 10))})
    with pytest.raises(UserError, match="expected one of bert, gemma2"):
        rotate(made("gpt-oss", torch.float32))


def test_the_demo_model_in_single_precision(demo):
    """At the start and at the end of its context."""
    tokens = torch.randint(1, 49152, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    limit = demo.model.config.max_position_embeddings
    expected = logits(demo, tokens, limit)
    for rewrite in (permute, rotate, degroup):
        got = logits(rewrite(demo), tokens, limit)
        assert all((got[name] - expected[name]).abs().max() < 1e-4 for name in expected), rewrite
