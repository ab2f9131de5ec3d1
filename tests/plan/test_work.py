"""Pairs are counted one by one here and compared; FLOPs against the formulas with other numbers for every axis."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.plan.errors import PlanError
from headwise.plan.layers import Attention, Layer, Projection
from headwise.plan.pairs import Pairs, decode_pairs, mixed_pair_work, prefill_pairs
from headwise.plan.states import Chunk, Encoder, Fixed, Grows, Window
from headwise.plan.work import attention_parameters, decode_work, prefill_work
from tests.plan.made import cross, grouped, latent, model, recurrent


def sees(extent, causal: bool, query: int, key: int) -> bool:
    """The rule itself, one pair at a time."""
    if causal and key > query:
        return False
    if isinstance(extent, Window):
        size = extent.size
        before, after = (size - 1, 0) if causal else ((size - 1) // 2, size // 2)
        return -before <= key - query <= after
    if isinstance(extent, Chunk):
        return query // extent.size == key // extent.size
    return True


extents = st.one_of(st.just(Grows()), st.integers(1, 40).map(Window), st.integers(1, 40).map(Chunk))


@given(extent=extents, causal=st.booleans(), tokens=st.integers(0, 37))
def test_prefill_pairs_are_those_that_the_rule_lets_through(extent, causal, tokens):
    pairs = prefill_pairs(extent, causal, tokens)
    rule = [sees(extent, causal, query, key) for query in range(tokens) for key in range(tokens)]
    assert pairs.visible == sum(rule)
    assert pairs.dense == tokens * tokens
    assert pairs.visible <= pairs.bound <= pairs.dense


@given(extent=extents, context=st.integers(1, 90))
def test_decode_pairs_are_the_last_row_of_prefill(extent, context):
    row = [sees(extent, True, context - 1, key) for key in range(context)]
    assert decode_pairs(extent, context).visible == sum(row)


def test_bounds_leave_out_the_causal_half():
    assert prefill_pairs(Grows(), True, 13) == Pairs(91, 169, 169)
    assert prefill_pairs(Window(5), True, 13) == Pairs(55, 65, 169)
    assert prefill_pairs(Window(17), True, 13) == Pairs(91, 169, 169)
    assert prefill_pairs(Chunk(5), True, 13) == Pairs(15 + 15 + 6, 25 + 25 + 9, 169)
    assert prefill_pairs(Encoder(), False, 13, 7) == Pairs(91, 91, 91)
    assert prefill_pairs(Fixed(3), True, 13) == decode_pairs(Fixed(3), 13) == Pairs()


def test_the_first_token_of_a_chunk_sees_itself_alone_but_the_cache_holds_more():
    assert decode_pairs(Chunk(5), 11) == Pairs(1, 5, 5)
    assert decode_pairs(Chunk(5), 10) == Pairs(5, 5, 5)


def test_a_mix_of_local_and_global_heads_costs_what_the_formula_says():
    local, whole, tokens, window, dim = 5, 3, 101, 17, 7
    work = mixed_pair_work(local, whole, tokens, window, dim)
    assert work.bound == local * tokens * window * dim + whole * tokens**2 * dim
    counted = sum(min(at + 1, window) for at in range(tokens))
    assert work.visible == (local * counted + whole * tokens * (tokens + 1) // 2) * dim


H, G, D, DV, E, T, B = 6, 2, 11, 13, 17, 19, 3


def test_flops_of_a_grouped_layer():
    made = model(grouped(0, H, G, D, E, Window(5), value_dim=DV), grouped(1, H, G, D, E, value_dim=DV))
    weights = E * (H * D + G * D + G * DV) + H * DV * E
    prefill = prefill_work(made, T, B)
    visible = T * (T + 1) // 2 + sum(min(at + 1, 5) for at in range(T))
    assert prefill.projections == 2 * 2 * weights * T * B
    assert prefill.scores == Pairs(visible, T * T + 5 * T, 2 * T * T) * (2 * B * H * D)
    assert prefill.values == Pairs(visible, T * T + 5 * T, 2 * T * T) * (2 * B * H * DV)
    assert prefill.softmax == Pairs(visible, T * T + 5 * T, 2 * T * T) * (B * H)
    assert prefill.largest_map == Pairs(T * (T + 1) // 2, T * T, T * T) * (B * H)
    decode = decode_work(made, T, B)
    assert decode.projections == 2 * 2 * weights * B
    assert decode.scores == Pairs(T + 5, T + 5, T + 5) * (2 * B * H * D)
    assert decode.total.visible == decode.projections + decode.scores.visible + decode.values.visible


def test_the_largest_map_is_that_of_the_layer_that_sees_most():
    extents = (Window(5), Grows(), Chunk(3))
    made = model(*(grouped(index, H, G, D, E, extent) for index, extent in enumerate(extents)))
    assert prefill_work(made, T, B).largest_map == prefill_pairs(Grows(), True, T) * (B * H)
    assert decode_work(made, T, B).largest_map == Pairs(T, T, T) * (B * H)


def test_the_last_step_and_the_prefill_before_it_are_the_whole():
    """A prefill of T tokens costs what T steps cost, of the pairs that are seen and of the matrices."""
    made = model(grouped(0, H, G, D, E), grouped(1, H, G, D, E, Window(5)), grouped(2, H, G, D, E, Chunk(7)))
    steps = [decode_work(made, at) for at in range(1, T + 1)]
    whole = prefill_work(made, T)
    assert sum(step.projections for step in steps) == whole.projections
    assert sum(step.scores.visible for step in steps) == whole.scores.visible


def test_latent_attention_in_both_forms():
    rank, rope, plain = 23, 5, 7
    made = model(latent(0, H, rank, rope, plain, DV, E))
    query, down, up, out = E * H * (plain + rope), E * (rank + rope), rank * H * (plain + DV), H * DV * E
    expanded, absorbed = decode_work(made, T, B), decode_work(made, T, B, absorbed=True)
    assert expanded.projections == 2 * B * (query + down + out + T * up)
    assert absorbed.projections == 2 * B * (query + down + out + up)
    assert expanded.scores.visible == 2 * B * H * T * (plain + rope)
    assert absorbed.scores.visible == 2 * B * H * T * (rank + rope)
    assert absorbed.values.visible == 2 * B * H * T * rank
    assert prefill_work(made, T, absorbed=True).projections == prefill_work(made, T).projections


def test_layers_without_attention_and_shared_keys_and_values():
    made = model(grouped(0, H, G, D, E), recurrent(1), grouped(2, H, G, D, E, owner=0))
    alone = model(grouped(0, H, G, D, E))
    assert decode_work(made, T).scores == decode_work(alone, T).scores * 2
    both = decode_work(alone, T).projections + 2 * (E * H * D + H * D * E)
    assert decode_work(made, T).projections == both


def test_cross_attention_makes_keys_once():
    made, length = model(cross(0, H, D, E)), 29
    prefill, decode = prefill_work(made, T, B, length), decode_work(made, T, B, length)
    square = E * H * D
    assert prefill.projections == 2 * B * (4 * square * T + 2 * square * T + 2 * square * length)
    assert decode.projections == 2 * B * 6 * square
    assert prefill.scores.visible == 2 * B * H * D * (T * (T + 1) // 2 + T * length)
    assert decode.scores.visible == 2 * B * H * D * (T + length)
    assert prefill_work(model(cross(0, H, D, E, length)), T, B) == prefill
    message = "--encoder-length: expected how many tokens the encoder of made reads, the config doesn't say"
    with pytest.raises(PlanError, match=f"^{re.escape(message)}$"):
        prefill_work(made, T)


def test_an_encoder_is_done_before_decoding():
    length = 29
    inner = grouped(0, H, G, D, E, Encoder(length), causal=False)
    weights = E * (H + 2 * G) * D + H * D * E
    prefill = prefill_work(model(inner, grouped(1, H, G, D, E)), T)
    assert prefill.projections == 2 * weights * (length + T)
    assert prefill.scores.visible == 2 * H * D * (length**2 + T * (T + 1) // 2)
    assert decode_work(model(inner), T).total == Pairs()
    alone = grouped(0, H, G, D, E, causal=False)
    assert prefill_work(model(alone), T).scores.visible == 2 * H * D * T * T
    assert decode_work(model(alone), T).total == Pairs()


def test_an_attention_to_chosen_keys_keeps_all_of_them():
    layer = latent(0, H, 23, 5, 7, DV, E)
    chosen = replace(layer.attentions[0], extent=Window(4))
    ranks = Attention("indexer", 2, 1, 3, 0, Grows(), True, (Projection("indexer query", E, 6),))
    made = model(Layer(0, "latent", layer.states, (chosen, ranks)))
    decode = decode_work(made, T)
    up = 23 * H * (7 + DV)
    assert decode.projections - decode_work(made, T, absorbed=True).projections == 2 * up * (T - 1)
    assert decode.scores.visible == 2 * (H * 12 * 4 + 2 * 3 * T)
    assert decode.values.visible == 2 * (H * DV * 4 + 2 * T)
    assert decode.softmax == Pairs(4, 4, T) * H  # none over the ranks


def test_parameters_by_name_with_biases_and_packed():
    plain = attention_parameters(model(grouped(0, H, G, D, E, value_dim=DV), grouped(1, H, G, D, E, value_dim=DV)))
    assert plain.by_name == {
        "query": 2 * E * H * D,
        "key": 2 * E * G * D,
        "value": 2 * E * G * DV,
        "output": 2 * H * DV * E,
    }
    assert plain.biases == 0
    assert plain.equations == ("2 x (17 x 66 + 17 x 22 + 17 x 26 + 78 x 17)",)
    packed = attention_parameters(model(grouped(0, H, G, D, E, bias=True, packed=True)))
    assert packed.total == (E + 1) * (H + 2 * G) * D + (H * D + 1) * E
    assert packed.biases == (H + 2 * G) * D + E
    assert packed.equations == ("1 x (17 x 110 + 110 + 66 x 17 + 17)",)


def test_a_matrix_that_layers_share_is_counted_once_and_computed_every_time():
    first = grouped(0, H, G, D, E, bias=True)
    again = replace(
        first.attentions[0], projections=tuple(replace(each, shared=True) for each in first.attentions[0].projections)
    )
    second = replace(first, index=1, attentions=(again,))
    parameters = attention_parameters(model(first, second))
    assert parameters == replace(attention_parameters(model(first)), equations=parameters.equations)
    assert parameters.equations[1] == "1 x 0, shared"
    assert decode_work(model(first, second), T).projections == 2 * decode_work(model(first), T).projections


@pytest.mark.parametrize("tokens", [0, 1, 1 << 40])
def test_counts_are_exact_at_any_size_and_at_once(tokens):
    assert prefill_pairs(Grows(), True, tokens).visible == tokens * (tokens + 1) // 2
    assert prefill_pairs(Window(4096), True, tokens).visible <= tokens * 4096
    assert decode_pairs(Grows(), tokens).visible == tokens
