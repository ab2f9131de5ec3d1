"""Merging a group of KV heads: against scores and outputs computed from data, and against other ways to the optimum."""

from __future__ import annotations

import pytest
import torch

from headwise.models.head_weights import HeadWeights
from headwise.models.weights import Rotary
from headwise.nn import RotaryEmbedding
from headwise.surgery.sharing.grouping import adjacent, choose_groups
from headwise.surgery.sharing.merge import covariance, groups_of, merge_groups
from headwise.surgery.sharing.methods import METHODS, factor_cost, pair_cost, pca
from headwise.surgery.sharing.pairs import join_pairs, split_pairs

WIDTH, HEAD, MEMBERS, READERS, TOKENS = 23, 10, 3, 2, 211
ROTARIES = [
    Rotary("half", 10),
    Rotary("interleaved", 10),
    Rotary("half", 6),
    Rotary("interleaved", 4),
    Rotary("none", 0),
]


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights(kv_heads: int = MEMBERS, seed: int = 0, biased: bool = True) -> HeadWeights:
    heads = kv_heads * READERS
    biases = (
        draw(heads, HEAD, seed=5),
        draw(kv_heads, HEAD, seed=6),
        draw(kv_heads, HEAD, seed=7),
        draw(WIDTH, seed=8),
    )
    return HeadWeights(
        draw(heads, HEAD, WIDTH, seed=seed + 1), draw(kv_heads, HEAD, WIDTH, seed=seed + 2),
        draw(kv_heads, HEAD, WIDTH, seed=seed + 3), draw(heads, WIDTH, HEAD, seed=seed + 4),
        *(biases if biased else ()),
    )  # fmt: skip


def inputs() -> torch.Tensor:
    """Far from white, and not centred."""
    return draw(TOKENS, WIDTH, seed=9) @ draw(WIDTH, WIDTH, seed=10) + draw(WIDTH, seed=11)


def given(layer: HeadWeights, x: torch.Tensor, kind: str) -> torch.Tensor:
    """``[heads, tokens, D]``"""
    projected = torch.einsum("hde,te->htd", getattr(layer, kind), x)
    bias = getattr(layer, f"{kind}_bias")
    return projected if bias is None else projected + bias[:, None]


def scores(layer: HeadWeights, x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """``[H, tokens, tokens]``, turned by position."""
    query, key = given(layer, x, "query"), given(layer, x, "key")
    if rotary.dims:
        rope = RotaryEmbedding(HEAD, rotary_dim=rotary.dims, interleaved=rotary.style == "interleaved")
        turn = rope.rotation(torch.arange(len(x)), torch.float64)
        query, key = (rope.rotate(part[None], turn)[0] for part in (query, key))
    return query @ key.repeat_interleave(layer.group_size, 0).mT


@pytest.mark.parametrize("rotary", ROTARIES)
def test_pairs_are_joined_as_they_were_split(rotary):
    projection = draw(3, HEAD, WIDTH)
    pairs, rest = split_pairs(projection, rotary)
    assert pairs.shape == (3, rotary.dims // 2, WIDTH)
    assert rest.shape == (3, HEAD - rotary.dims, WIDTH)
    assert torch.equal(join_pairs(pairs, rest, rotary), projection)


@pytest.mark.parametrize("rotary", ROTARIES)
def test_the_covariance_is_that_of_inputs_and_a_one(rotary):
    x = inputs()
    longer = torch.cat([x, x.new_ones(TOKENS, 1)], 1)
    torch.testing.assert_close(covariance(x.view(TOKENS, 1, WIDTH)), longer.T @ longer / TOKENS)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rotary", ROTARIES)
def test_heads_that_are_the_same_are_merged_without_loss(rotary, method):
    one = weights(1)
    same = one.select([0, 1, 0, 1, 0, 1], [0, 0, 0])
    x = inputs()
    merged = merge_groups(same, covariance(x), rotary, [[0, 1, 2]], METHODS[method])
    assert (merged.num_heads, merged.num_kv_heads) == (6, 1)
    torch.testing.assert_close(scores(merged, x, rotary), scores(same, x, rotary), rtol=1e-8, atol=1e-6)
    wanted = same.output[4] @ given(same, x, "value")[2].T
    torch.testing.assert_close(merged.output[4] @ given(merged, x, "value")[0].T, wanted, rtol=1e-8, atol=1e-6)


@pytest.mark.parametrize("method", ["pca", "aligned"])
@pytest.mark.parametrize("rotary", ROTARIES)
def test_heads_that_differ_by_a_rotation_are_merged_without_loss(rotary, method):
    """A phase for each rotary pair, an orthogonal map elsewhere; the mean falls apart on the same heads."""
    one = weights(1)
    same = one.select([0, 1, 0, 1, 0, 1], [0, 0, 0])
    turned = same.clone()
    for member in range(1, MEMBERS):
        phases = torch.polar(torch.ones(rotary.dims // 2, dtype=torch.float64), draw(rotary.dims // 2, seed=member))
        rest, of_values = (
            torch.linalg.qr(draw(size, size, seed=20 + member))[0] for size in (HEAD - rotary.dims, HEAD)
        )
        readers = slice(member * READERS, (member + 1) * READERS)
        for kind, heads in (("key", slice(member, member + 1)), ("query", readers)):
            whole = torch.cat([getattr(turned, kind)[heads], getattr(turned, f"{kind}_bias")[heads][..., None]], -1)
            pairs, plain = split_pairs(whole, rotary)
            whole = join_pairs(pairs * phases[:, None], rest @ plain, rotary)
            getattr(turned, kind)[heads] = whole[..., :-1]
            getattr(turned, f"{kind}_bias")[heads] = whole[..., -1]
        turned.value[member] = of_values @ turned.value[member]
        turned.value_bias[member] = of_values @ turned.value_bias[member]
        turned.output[readers] = turned.output[readers] @ of_values.T
    x = inputs()
    wanted = scores(same, x, rotary)
    torch.testing.assert_close(scores(turned, x, rotary), wanted)  # the rotations are a gauge
    merged = merge_groups(turned, covariance(x), rotary, [[0, 1, 2]], METHODS[method])
    torch.testing.assert_close(scores(merged, x, rotary), wanted, rtol=1e-7, atol=1e-5)
    value = torch.einsum("hed,td->hte", merged.output, given(merged, x, "value")[0])
    old = torch.einsum("hed,htd->hte", same.output, given(same, x, "value").repeat_interleave(READERS, 0))
    torch.testing.assert_close(value, old, rtol=1e-7, atol=1e-5)
    averaged = merge_groups(turned, covariance(x), rotary, [[0, 1, 2]], METHODS["mean"])
    assert (scores(averaged, x, rotary) - wanted).square().sum() > 0.1 * wanted.square().sum()


def test_pca_of_values_is_the_best_factor_of_that_rank():
    """By Eckart and Young: what is lost is the tail of the singular values of the outputs, laid side by side."""
    layer, x = weights(), inputs()
    group = groups_of(layer, covariance(x), Rotary("none", 0), [[0, 1, 2]])[0]
    merged = pca(group, covariance(x))[2]
    longer = torch.cat([x, x.new_ones(TOKENS, 1)], 1)
    values = torch.einsum("gdf,tf->gtd", group.values.heads, longer)
    read = torch.einsum("gdr,tr->gtd", merged.maps, longer @ merged.new.T)
    lost = sum(
        (layer.output[head] @ (values[head // READERS] - read[head // READERS]).T).square().sum() for head in range(6)
    )
    roots = [torch.linalg.cholesky(group.values.readers[member]) for member in range(MEMBERS)]
    side_by_side = torch.cat([values[member] @ roots[member] for member in range(MEMBERS)], 1)
    tail = torch.linalg.svdvals(side_by_side)[HEAD:].square().sum()
    torch.testing.assert_close(lost, tail, rtol=1e-8, atol=0)
    torch.testing.assert_close(torch.tensor(factor_cost(group.values, covariance(x))), (tail / TOKENS).float())


def test_pca_of_pairs_loses_the_tail_of_the_weighted_keys():
    layer, x = weights(), inputs()
    group = groups_of(layer, covariance(x), Rotary("half", HEAD), [[0, 1, 2]])[0]
    merged = pca(group, covariance(x))[0]
    longer = torch.cat([x, x.new_ones(TOKENS, 1)], 1).to(torch.complex128)
    keys = torch.einsum("gpf,tf->gpt", group.turned.heads, longer)
    shared = merged.new @ longer.T  # [P, tokens]
    lost = (group.turned.readers[..., None] * (keys - merged.maps[..., None] * shared).abs().square()).sum((0, 2))
    for pair in range(HEAD // 2):
        weighted = group.turned.readers[:, pair].sqrt()[:, None] * keys[:, pair]
        tail = torch.linalg.svdvals(weighted)[1:].square().sum()
        torch.testing.assert_close(lost[pair], tail, rtol=1e-8, atol=0)
    assert pair_cost(group.turned, covariance(x)) == pytest.approx(float(lost.sum()) / TOKENS)


def test_the_readers_are_the_energy_of_queries_and_the_rows_of_the_output():
    layer, x = weights(), inputs()
    group = groups_of(layer, covariance(x), Rotary("half", 6), [[2, 0]])[0]
    query = given(layer, x, "query")[4:6]  # those that read KV head 2
    energy = (query[..., :3].square() + query[..., 3:6].square()).mean(1).sum(0)
    torch.testing.assert_close(group.turned.readers[0], energy)
    torch.testing.assert_close(group.plain.readers[0], sum(q.T @ q / TOKENS for q in query[..., 6:]))
    torch.testing.assert_close(
        group.values.readers[1], sum(layer.output[head].T @ layer.output[head] for head in (0, 1))
    )


def test_aligned_heads_keep_their_norm():
    layer, x = weights(biased=False), inputs()
    merged = merge_groups(layer, covariance(x), Rotary("half", HEAD), [[0, 1, 2]], METHODS["aligned"])
    for kind in ("key", "value"):
        old, new = given(layer, x, kind), given(merged, x, kind)
        torch.testing.assert_close(new.square().mean(), old.square().mean())


@pytest.mark.parametrize("biased", [False, True])
def test_a_layer_without_biases_gets_none(biased):
    merged = merge_groups(weights(biased=biased), covariance(inputs()), Rotary("half", 6), [[1, 0, 2]], pca)
    assert [(bias is not None) for bias in (merged.query_bias, merged.key_bias, merged.value_bias)] == [biased] * 3


def test_dead_heads_are_no_obstacle():
    layer = weights()
    layer.query[:2] = layer.query_bias[:2] = 0
    layer.output[4:] = 0
    merged = merge_groups(layer, covariance(inputs()), Rotary("half", 6), [[0, 1, 2]], pca)
    assert all(tensor.isfinite().all() for tensor in vars(merged).values())
    assert not merged.output[4:].any()


@pytest.mark.parametrize(("kv_heads", "groups"), [(9, 3), (6, 2), (10, 2), (16, 4)])
def test_groups_that_belong_together_are_found(kv_heads, groups):
    """Copies of ``groups`` heads in any order; 16 heads are too many for every partition to be tried."""
    order = torch.randperm(kv_heads, generator=torch.Generator().manual_seed(3)).tolist()
    kinds = [place % groups for place in order]
    source = weights(groups)
    heads = [kind * READERS + place for kind in kinds for place in range(READERS)]
    layer = source.select(heads, kinds)
    found = choose_groups(layer, covariance(inputs()), Rotary("half", 6), groups)
    assert sorted(sorted(group) for group in found) == sorted(
        [place for place, kind in enumerate(kinds) if kind == wanted] for wanted in range(groups)
    )


def test_chosen_groups_are_never_worse_than_adjacent_ones():
    layer, moments, rotary = weights(8), covariance(inputs()), Rotary("half", 6)

    def cost(groups: list[list[int]]) -> float:
        return sum(
            pair_cost(group.turned, moments) + factor_cost(group.plain, moments) + factor_cost(group.values, moments)
            for group in groups_of(layer, moments, rotary, groups)
        )

    chosen = choose_groups(layer, moments, rotary, 4)
    assert sorted(head for group in chosen for head in group) == list(range(8))
    assert cost(chosen) < cost(adjacent(8, 4))
    assert choose_groups(layer, moments, rotary, 8) == adjacent(8, 8)
    assert choose_groups(layer, moments, rotary, 1) == [list(range(8))]
