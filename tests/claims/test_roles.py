"""Claims of docs/claims/roles.md: what heads may become, what nothing makes them, and what a picture doesn't show."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch import Tensor, nn

from headwise.attention import attention, attention_weights, head_statistics
from headwise.layout import head_name, parse_head
from headwise.nn import GroupedQueryAttention, RotaryEmbedding
from headwise.study import Match, Offset

F64 = torch.float64
HEADS, DIM, LENGTH = 3, 5, 7
WIDTH = HEADS * DIM


def made() -> GroupedQueryAttention:
    return GroupedQueryAttention(WIDTH, HEADS, dtype=F64)


def hidden() -> Tensor:
    return torch.randn(2, LENGTH, WIDTH, dtype=F64)


def rows_of(head: int) -> slice:
    return slice(head * DIM, (head + 1) * DIM)


def test_heads_have_no_names_of_their_own() -> None:
    """In any order, with their blocks of W_O beside them, they are the same function: 6 orders of 3 heads."""
    layer, inputs = made(), hidden()
    for order in permutations(range(HEADS)):
        places = torch.cat([torch.arange(WIDTH)[rows_of(head)] for head in order])
        state = {name: weight[places] for name, weight in layer.state_dict().items()}
        state["o_proj.weight"] = layer.o_proj.weight.detach()[:, places]
        other = made()
        other.load_state_dict(state)
        result = other(inputs, causal=True, need_weights=True)
        own = layer(inputs, causal=True, need_weights=True)
        assert torch.allclose(result.output, own.output, atol=1e-12)
        assert torch.allclose(result.weights, own.weights[:, list(order)], atol=1e-12)


def test_heads_that_start_alike_stay_alike() -> None:
    """Nothing but their different beginning makes heads different: equal blocks get equal gradients, at every step."""
    layer, target = made(), torch.randn(2, LENGTH, WIDTH, dtype=F64)
    with torch.no_grad():
        for projection in (layer.q_proj, layer.k_proj, layer.v_proj):
            projection.weight[rows_of(1)] = projection.weight[rows_of(0)]
        layer.o_proj.weight[:, rows_of(1)] = layer.o_proj.weight[:, rows_of(0)]
    before, inputs = layer.q_proj.weight.detach().clone(), hidden()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    for _ in range(13):
        optimizer.zero_grad()
        (layer(inputs, causal=True).output - target).square().mean().backward()
        optimizer.step()
    weights = layer(inputs, causal=True, need_weights=True).weights
    assert (layer.q_proj.weight - before).abs().max() > 1e-2  # it did learn
    assert torch.allclose(weights[:, 0], weights[:, 1], rtol=0, atol=1e-9)
    assert (weights[:, 0] - weights[:, 2]).abs().max() > 1e-2


def test_a_head_may_repeat_another_and_add_nothing() -> None:
    """A copy of head 0 in place of head 1 is head 0 with twice its block of W_O: two heads compute it as well."""
    layer, inputs = made(), hidden()
    with torch.no_grad():
        for projection in (layer.q_proj, layer.k_proj, layer.v_proj):
            projection.weight[rows_of(1)] = projection.weight[rows_of(0)]
    two = GroupedQueryAttention(WIDTH, 2, head_dim=DIM, dtype=F64)
    kept = torch.cat([torch.arange(WIDTH)[rows_of(head)] for head in (0, 2)])
    state = {name: weight[kept] for name, weight in layer.state_dict().items() if name != "o_proj.weight"}
    output = layer.o_proj.weight.detach()
    state["o_proj.weight"] = torch.cat([output[:, rows_of(0)] + output[:, rows_of(1)], output[:, rows_of(2)]], 1)
    two.load_state_dict(state)
    assert torch.allclose(two(inputs).output, layer(inputs).output, atol=1e-12)


def test_a_perfect_pattern_may_have_no_effect() -> None:
    """All mass on the token before, and a block of zeros in W_O: ablating the head changes nothing."""
    places = torch.eye(LENGTH, dtype=F64)
    query = torch.cat([places[:1], places[:-1]]) * 900
    pattern = Offset(1, name="previous")
    reading = head_statistics(query[None, None], places[None, None], [pattern], causal=True, scale=1.0)
    assert reading.score("previous")[0, 0] > 1 - 1e-12
    heads = torch.randn(1, 2, LENGTH, DIM, dtype=F64)
    heads[0, 0] = attention(query[None, None], places[None, None], heads[:1, :1], causal=True, scale=1.0)[0, 0]
    output = nn.Linear(2 * DIM, 11, bias=False, dtype=F64)
    with torch.no_grad():
        output.weight[:, :DIM] = 0
    ablated = heads.clone()
    ablated[0, 0] = 0
    mixed, without = (output(each.transpose(1, 2).flatten(2)) for each in (heads, ablated))
    assert torch.equal(mixed, without)


def test_a_blurred_pattern_may_carry_all_the_effect() -> None:
    """Uniform weights, which no picture would point at, over one value that differs: the mean tells of it."""
    value = torch.zeros(1, 1, LENGTH, 1, dtype=F64)
    flat = torch.zeros(1, 1, LENGTH, DIM, dtype=F64)
    assert attention_weights(flat, flat).std() == pytest.approx(0, abs=1e-15)
    assert attention(flat, flat, value).eq(0).all()
    value[0, 0, 3] = LENGTH * 100
    assert torch.allclose(attention(flat, flat, value), torch.full_like(value, 100.0), atol=1e-9)


@pytest.mark.parametrize("kinds", [5, 13])
def test_two_heads_one_after_the_other_complete_a_pattern(kinds: int) -> None:
    """A B ... A -> B, built: the first layer notes the token before, the second asks for its own token there."""
    order = torch.randperm(kinds) + 1
    tokens = torch.cat([torch.zeros(1, dtype=torch.long), order, order])[None]  # a first token, then twice the same
    length = tokens.shape[1]
    what, where = nn.functional.one_hot(tokens, kinds + 1).double()[:, None], torch.eye(length, dtype=F64)[None, None]
    back = torch.cat([where[:, :, :1], where[:, :, :-1]], 2) * 900
    noted = attention(back, where, what, causal=True, scale=1.0)
    noted[:, :, 0] = 0  # nothing stands before the first
    options = {"causal": True, "scale": 900.0}
    told = attention(what, noted, what, **options)[0, 0]
    second = slice(kinds + 1, 2 * kinds)  # in the second copy, where a next token is known
    assert torch.equal(told[second].argmax(-1), tokens[0, kinds + 2 :])
    reading = head_statistics(what, noted, [Match(1, tokens, name="induction")], **options)
    assert reading.score("induction")[0, 0] > 1 - 1e-12
    assert reading.informative[0, 0, 0].sum() == kinds  # it is asked for at every token of the second copy
    # Without the first layer the second finds nothing to match: its weights are flat.
    alone = attention_weights(what, torch.zeros_like(noted), **options)[0, 0]
    assert torch.allclose(alone[-1], torch.full((length,), 1 / length, dtype=F64), atol=1e-12)


def test_layer_and_head_of_clark_stand_in_one_name() -> None:
    """8-10 is the tenth head of the eighth layer, L7.H9 counted from 0; it can't lie in layer 6."""
    published = {"dobj": "8-10", "det": "8-11", "pobj": "9-6", "poss": "7-6", "prt": "6-7", "coreference": "5-4"}
    named = {}
    for relation, name in published.items():
        layer, head = (int(number) - 1 for number in name.split("-"))
        named[relation] = head_name(layer, head)
        assert parse_head(named[relation]) == (layer, head)
    assert named["dobj"] == "L7.H9"
    assert parse_head(named["dobj"])[0] + 1 == 8 != 6
    assert max(parse_head(each)[1] for each in named.values()) < 12  # BERT-base has 12 heads


def test_positions_can_come_in_at_the_input_or_in_every_head() -> None:
    """Without any a layer doesn't know the order of its keys; each of three ways tells it, two of them inside."""
    layer, inputs, order = made(), hidden(), torch.tensor([3, 0, 2, 1, 4, 5, 6])

    def order_matters(module: GroupedQueryAttention, given: Tensor, added: Tensor | float = 0.0) -> bool:
        plain, shuffled = (module(each + added).output[:, -1] for each in (given, given[:, order]))
        return bool((plain - shuffled).abs().max() > 1e-9)

    turned = GroupedQueryAttention(WIDTH + 3, HEADS, rope=RotaryEmbedding(6), dtype=F64)
    assert not order_matters(layer, inputs)
    assert order_matters(layer, inputs, torch.randn(1, LENGTH, WIDTH, dtype=F64))
    assert order_matters(turned, torch.randn(2, LENGTH, WIDTH + 3, dtype=F64))
    query, key, value = torch.randn(3, 1, HEADS, LENGTH, DIM, dtype=F64).unbind(0)
    slopes = torch.tensor([0.0, 0.5, 2.0], dtype=F64)  # a number for each head
    moved = attention(query, key, value, alibi_slopes=slopes) - attention(
        query, key[:, :, order], value[:, :, order], alibi_slopes=slopes
    )
    assert (moved[0, :, -1].abs().amax(-1) > 1e-6).tolist() == [False, True, True]


def test_the_towers_of_clip_do_not_attend_to_each_other() -> None:
    from transformers import CLIPConfig, CLIPModel

    size = {"hidden_size": 12, "intermediate_size": 7, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = size | {"vocab_size": 11, "max_position_embeddings": 7, "eos_token_id": 10, "bos_token_id": 1}
    image = size | {"image_size": 6, "patch_size": 3}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=image, projection_dim=5)).eval()
    ids = torch.tensor([[1, 3, 4, 10]])
    with torch.no_grad():
        one, other = (model(input_ids=ids, pixel_values=torch.randn(1, 3, 6, 6)) for _ in range(2))
    assert torch.equal(one.text_embeds, other.text_embeds)
    assert (one.image_embeds - other.image_embeds).abs().max() > 1e-3
