"""One layer of grouped heads as latent attention: exact at full size, and what is best below it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.attention.reference import reference_attention
from headwise.cache import LatentCache
from headwise.models.head_weights import HeadWeights
from headwise.models.weights import Rotary
from headwise.nn import RotaryEmbedding
from headwise.surgery.gauge_maps import GaugeMaps, apply_maps
from headwise.surgery.mla.convert import latent_layer
from headwise.surgery.mla.factors import most_dims
from headwise.surgery.mla.statistics import measure_layer

WIDTH, HEADS, GROUPS, HEAD_DIM, VALUE_DIM, LENGTH = 23, 6, 2, 10, 7, 19
SCALE = 0.4
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def layer_weights(dims: int) -> tuple[HeadWeights, Rotary, RotaryEmbedding]:
    shapes = {"query": (HEADS, HEAD_DIM, WIDTH), "key": (GROUPS, HEAD_DIM, WIDTH)}
    shapes |= {"value": (GROUPS, VALUE_DIM, WIDTH), "output": (HEADS, WIDTH, VALUE_DIM)}
    weights = HeadWeights(**{name: torch.randn(shape, dtype=torch.float64) / 3 for name, shape in shapes.items()})
    return (
        weights,
        Rotary("half", dims),
        RotaryEmbedding(HEAD_DIM, 50.0, rotary_dim=dims, scaling=YARN if dims == 6 else None),
    )


def layer_output(weights: HeadWeights, rope: RotaryEmbedding, inputs: Tensor, positions: Tensor, **options) -> Tensor:
    query, key, value = (
        torch.einsum("hde,ble->bhld", getattr(weights, kind), inputs) for kind in ("query", "key", "value")
    )
    query, key = rope(query, positions), rope(key, positions)
    output = reference_attention(query, key, value, causal=True, scale=SCALE, **options).output
    return torch.einsum("hev,bhlv->ble", weights.output, output)


def converted(dims: int, rank: int, rope_dims: int, inputs: Tensor, **options: Any) -> Any:
    weights, rotary, rope = layer_weights(dims)
    statistics = measure_layer(weights, rope, inputs, {"scale": SCALE, **options})
    layer = latent_layer(weights, rotary, rope, statistics, rank=rank, rope_dims=rope_dims, scale=SCALE, **options)
    return weights, rope, layer


@pytest.mark.parametrize("form", ["expanded", "absorbed"])
@pytest.mark.parametrize("options", [{}, {"softcap": 3.0, "window": (4, 0)}], ids=["plain", "soft-cap and window"])
@pytest.mark.parametrize("dims", [HEAD_DIM, 6])
def test_grouped_attention_is_latent_attention_of_full_rank(dims, options, form):
    """At every position up to 8192, from statistics of other inputs, and over a cache."""
    weights, rotary, rope = layer_weights(dims)
    rank, rope_dims = most_dims(weights, rotary, GROUPS * dims), GROUPS * dims
    weights, rope, layer = converted(dims, rank, rope_dims, torch.randn(2, 5, WIDTH, dtype=torch.float64), **options)
    assert rank == GROUPS * (HEAD_DIM - dims + VALUE_DIM)
    assert layer.nope_head_dim == HEAD_DIM - dims
    inputs, positions = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64), torch.arange(8192 - LENGTH, 8192)
    expected = layer_output(weights, rope, inputs, positions, **options)
    got = layer(inputs, causal=True, positions=positions, form=form).output
    assert expected.abs().max() > 0.1
    assert (got - expected).abs().max() < 1e-9
    cache = LatentCache(2, LENGTH, rank, rope_dims, dtype=torch.float64)
    with torch.no_grad():
        steps = [layer(part, causal=True, cache=cache, form=form).output for part in inputs.split([11, 1, 1, 6], 1)]
    expected = layer_output(weights, rope, inputs, torch.arange(LENGTH), **options)
    assert (torch.cat(steps, 1) - expected).abs().max() < 1e-9


@pytest.mark.parametrize("dims", [HEAD_DIM, 6])
def test_full_rank_of_any_rotary_part_loses_only_rotation(dims):
    """At position 0 alone nothing turns: whatever part stays rotary, values and scores are whole."""
    weights, rotary, _ = layer_weights(dims)
    inputs = torch.randn(3, 1, WIDTH, dtype=torch.float64)
    for rope_dims in (2, 6, GROUPS * dims - 2):
        weights, rope, layer = converted(dims, most_dims(weights, rotary, rope_dims), rope_dims, inputs)
        several = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
        still = torch.zeros(LENGTH, dtype=torch.int64)
        expected = layer_output(weights, rope, several, still)
        assert (layer(several, causal=True, positions=still).output - expected).abs().max() < 1e-9
        if rope_dims == 2:
            turned = layer_output(weights, rope, several, torch.arange(LENGTH))
            assert (layer(several, causal=True).output - turned).abs().max() > 1e-3


def test_keys_that_heads_share_need_no_more_rotary_dims_than_one_head():
    """Up to a factor a pair, the KV heads have one key: directions across heads find that."""
    weights, rotary, rope = layer_weights(HEAD_DIM)
    weights = replace(weights, key=weights.key[:1].expand(GROUPS, -1, -1))
    turns = torch.polar(torch.rand(GROUPS, 5, dtype=torch.float64) + 0.5, torch.randn(GROUPS, 5, dtype=torch.float64))
    weights = apply_maps(weights, GaugeMaps(turns=turns), rotary)
    inputs = torch.randn(3, LENGTH, WIDTH, dtype=torch.float64)
    expected = layer_output(weights, rope, inputs, torch.arange(LENGTH))
    statistics = measure_layer(weights, rope, inputs, {"scale": SCALE})
    distances = []
    for rope_dims in (HEAD_DIM, HEAD_DIM - 2):
        layer = latent_layer(
            weights, rotary, rope, statistics, rank=GROUPS * VALUE_DIM, rope_dims=rope_dims, scale=SCALE
        )
        distances.append(float((layer(inputs, causal=True).output - expected).abs().max()))
    assert distances[0] < 1e-9
    assert distances[1] > 1e-3


def test_rotation_stays_where_it_is_seen():
    """At one distance only, the mean turn is all there is; pairs that look still, and heads whose values say nothing,
    are the first to do without rotation."""
    weights, rotary, rope = layer_weights(HEAD_DIM)
    inputs = torch.randn(1, 3, WIDTH, dtype=torch.float64)
    measured = measure_layer(weights, rope, inputs, {"scale": SCALE})
    angles = -7 * 50.0 ** (-torch.arange(5, dtype=torch.float64) / 5)
    turns = torch.polar(torch.ones(HEADS, 5, dtype=torch.float64), angles.expand(HEADS, -1))
    alone = replace(measured, mean_turns=turns)
    layer = latent_layer(weights, rotary, rope, alone, rank=GROUPS * (HEAD_DIM + VALUE_DIM), rope_dims=2, scale=SCALE)
    positions, mask = (
        torch.tensor([0, 0, 7]),
        torch.tensor([[True, False, False], [True, True, False], [True, True, False]]),
    )
    expected = layer_output(weights, rope, inputs, positions, mask=mask)
    assert (layer(inputs, positions=positions, mask=mask).output - expected)[:, 2].abs().max() < 1e-9
    still = replace(measured, mean_turns=torch.tensor([0, 0, 1j, 0, 0], dtype=torch.complex128).expand(HEADS, -1))
    layer = latent_layer(weights, rotary, rope, still, rank=5, rope_dims=GROUPS * 8, scale=SCALE)
    assert layer.rope.pairs == (0, 0, 1, 1, 3, 3, 4, 4)
    silent = replace(weights, value=weights.value * torch.tensor([0.0, 1.0])[:, None, None])
    layer = latent_layer(silent, rotary, rope, measured, rank=VALUE_DIM, rope_dims=HEAD_DIM, scale=SCALE)
    expected = layer_output(silent, rope, inputs, torch.arange(3))
    assert (layer(inputs, causal=True).output - expected).abs().max() < 1e-4 * expected.abs().max()


def test_mean_turns_are_those_that_heads_see():
    weights, _, rope = layer_weights(6)
    inputs = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    measured = measure_layer(weights, rope, inputs, {"scale": SCALE, "window": (2, 0)})
    total = torch.zeros(HEADS, 3, dtype=torch.complex128)
    for row in inputs:
        query, key = (
            rope(torch.einsum("hde,le->hld", part, row)[None], torch.arange(5))[0]
            for part in (weights.query, weights.key)
        )
        for head in range(HEADS):
            for at in range(5):
                seen = range(max(at - 2, 0), at + 1)
                scores = torch.stack([query[head, at] @ key[head // 3, other] for other in seen]) * SCALE
                for weight, other in zip(scores.softmax(0), seen, strict=True):
                    turn = rope.rotation(torch.tensor([other - at]), torch.float64)
                    total[head] += weight * torch.complex(turn.cosine, turn.sine)[0, 0, 0] / rope.magnitude / 10
    torch.testing.assert_close(measured.mean_turns, total)
    torch.testing.assert_close(measured.covariance, torch.einsum("ble,blf->ef", inputs, inputs) / 10)


def test_truncated_values_are_as_near_as_the_singular_values_allow():
    """Eckart and Young, under the covariance of the inputs and the output projections."""
    inputs = torch.randn(3, LENGTH, WIDTH, dtype=torch.float64) * torch.linspace(0.1, 2, WIDTH, dtype=torch.float64)
    rank = 9
    weights, _, layer = converted(HEAD_DIM, rank, GROUPS * HEAD_DIM, inputs)
    flat = inputs.flatten(0, 1)
    wanted, got, tall = 0.0, 0.0, []
    up = layer.kv_b_proj.weight.unflatten(0, (HEADS, VALUE_DIM))
    for head in range(HEADS):
        value = weights.value[head // 3]
        lost = value - up[head] @ layer.kv_a_proj_with_mqa.weight[:rank]
        got += float((flat @ lost.T @ weights.output[head].T).square().sum())
    for group in range(GROUPS):
        reading = torch.cat(list(weights.output[group * 3 : group * 3 + 3]))  # [3 E, Dv]
        tall.append(torch.linalg.qr(reading).R @ weights.value[group] @ flat.T)
    wanted = float(torch.linalg.svdvals(torch.cat(tall))[rank:].square().sum())
    assert wanted > 1
    assert got == pytest.approx(wanted, rel=1e-6)
