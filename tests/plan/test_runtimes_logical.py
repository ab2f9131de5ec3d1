"""The logical minimum, counted by hand, and what every policy shares."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.plan.allocation import allocate
from headwise.plan.errors import PlanError
from headwise.plan.request import Request
from headwise.plan.runtimes import RUNTIMES, runtime_named
from headwise.plan.states import Chunk, Window
from headwise.plan.storages import BF16, F16, F32, storage_named
from tests.plan.loads import attention, cross, delta_net, indexer, latent, mamba2, model

LOGICAL = runtime_named("logical")
# 3 heads of 5 elements for keys and 7 for values, two bytes each.
TOKEN = 3 * (5 + 7) * 2


def entries(extent, request: Request) -> int:
    allocation = allocate(model(attention(0, 3, 5, extent, value_dim=7)), request, LOGICAL)
    assert allocation.total == allocation.groups[0].each.entries * TOKEN
    return allocation.groups[0].each.entries


def test_full_attention_holds_every_token_of_every_sequence():
    assert entries(None, Request(101, 13)) == 1313
    assert entries(None, Request(101, 13, speculative=4)) == 1365
    assert entries(None, Request(101, 13, shared_prefix=89)) == 89 + 13 * 12


def test_a_window_holds_the_latest_tokens_and_drafts_keep_older_ones_in_sight():
    assert entries(Window(11), Request(7, 13)) == 91
    assert entries(Window(11), Request(101, 13)) == 143
    assert entries(Window(11), Request(101, 13, speculative=4)) == 195
    assert entries(Window(11), Request(7, 13, speculative=2)) == 117


def test_a_prefix_is_shared_as_far_as_the_window_still_sees_it():
    # Tokens 90 to 100 are seen; the prefix ends with token 96.
    assert entries(Window(11), Request(101, 13, shared_prefix=97)) == 7 + 13 * 4
    assert entries(Window(11), Request(101, 13, shared_prefix=90)) == 143


def test_a_chunk_is_counted_at_its_fullest_moment():
    assert entries(Chunk(11), Request(7)) == 7
    assert entries(Chunk(11), Request(11)) == 11
    # The fullest moment lies behind it.
    assert entries(Chunk(11), Request(13)) == 11
    # The second chunk holds tokens of the prefix once, so the third is fuller as soon as it has no more of them.
    assert entries(Chunk(11), Request(22, 2, shared_prefix=20)) == 9 + 2 * 2
    assert entries(Chunk(11), Request(29, 2, shared_prefix=20)) == 14
    # The prefix goes on behind that moment, where it can't be shared yet.
    assert entries(Chunk(11), Request(13, 2, shared_prefix=13)) == 11


@settings(max_examples=60)
@given(size=st.integers(1, 9), context=st.integers(1, 40), batch=st.integers(1, 3), data=st.data())
def test_a_chunk_against_every_moment_on_the_way(size, context, batch, data):
    prefix, drafts = data.draw(st.integers(0, context)), data.draw(st.integers(0, 3))
    held = []
    for length in range(1, context + 1):
        kept = set(range((length - 1) // size * size, length + drafts))
        # Tokens of the prefix are one and the same for all sequences.
        held.append(len({(0 if token < prefix else each, token) for each in range(batch) for token in kept}))
    assert entries(Chunk(size), Request(context, batch, speculative=drafts, shared_prefix=prefix)) == max(held)


def test_the_equation_says_where_the_fullest_moment_lies_behind():
    def equation(*asked, **more) -> str:
        return allocate(model(attention(0, 3, 5, Chunk(11))), Request(*asked, **more), LOGICAL).groups[0].each.equation

    entry = "x (3 x 5 x 2 B + 3 x 5 x 2 B)"
    assert equation(11) == equation(22) == f"11 tokens {entry}"
    assert equation(13) == f"11 tokens at the fullest {entry}"
    assert equation(13, 2) == f"2 x 11 tokens at the fullest {entry}"
    assert equation(22, 2, shared_prefix=20) == f"(9 shared + 2 x 2) tokens {entry}"


@pytest.mark.parametrize("name", RUNTIMES)
def test_states_of_fixed_size_are_not_there_before_the_first_token(name):
    parts = [attention(0, 4, 32), *mamba2(1, 8, 16, 2, 32)]
    parts += [cross(2, 4, 32, 17)] if name not in ("llamacpp", "sglang") else []
    none = allocate(model(*parts), Request(0), runtime_named(name))
    assert none.total == 0
    for group in none.groups:
        fixed = group.states[0].kind != "self"
        assert group.each.equation.startswith("0 ")
        assert (" before the first token x " in group.each.equation) is fixed, group.each.equation
    assert allocate(model(*parts), Request(1), runtime_named(name)).fixed_bytes > 0


def test_states_of_fixed_size_are_one_set_a_sequence():
    # 2 key and 6 value heads of 8: 3 columns of (2 + 2 + 6) x 8, and 6 matrices of 8 x 8.
    each = 3 * 80 * 2 + 6 * 64 * 2
    net = model(delta_net(0, 2, 6, 8))
    assert allocate(net, Request(1000, 5, speculative=3, shared_prefix=900), LOGICAL).total == 5 * each
    assert allocate(net, Request(1000, 5, state_storage=F32), LOGICAL).total == 10 * each
    # What the config fixes holds for its state only, and the request wins over it.
    fixed = model(delta_net(0, 2, 6, 8, dtype="float32"))
    assert allocate(fixed, Request(1), LOGICAL).total == 3 * 80 * 2 + 6 * 64 * 4
    assert allocate(fixed, Request(1, state_storage=BF16), LOGICAL).total == each
    # The KV dtype isn't theirs.
    assert allocate(net, Request(1, storage=storage_named("fp8")), LOGICAL).total == each


def test_cross_attention_holds_the_encoders_tokens_once_a_sequence():
    def total(length: int | None, request: Request) -> int:
        return allocate(model(cross(0, 3, 5, length)), request, LOGICAL).total

    assert total(17, Request(101, 2)) == 2 * 17 * 3 * 10 * 2
    assert allocate(model(cross(0, 3, 5, 17)), Request(101, 2), LOGICAL).fixed_bytes == 2 * 17 * 3 * 10 * 2
    assert total(17, Request(101, 2, encoder_length=19)) == 2 * 19 * 3 * 10 * 2
    with pytest.raises(PlanError) as refused:
        total(None, Request(101))
    assert str(refused.value) == (
        "--encoder-length: expected how many tokens the encoder of gemma2 gives to cross attention, the config doesn't "
        "say"
    )


def test_latents_and_indexer_keys_follow_the_kv_dtype():
    sparse = model((latent(0), indexer(0)))
    assert allocate(sparse, Request(7, 2), LOGICAL).total == 14 * (576 + 128) * 2
    assert allocate(sparse, Request(7, 2, storage=storage_named("fp8")), LOGICAL).total == 14 * (576 + 128)


def test_keys_and_values_may_be_stored_apart():
    mixed = Request(7, storage=storage_named("q8_0"), value_storage=storage_named("q4_0"))
    allocation = allocate(model(attention(0, 3, 64)), mixed, LOGICAL)
    assert (allocation.key_bytes, allocation.value_bytes) == (7 * 6 * 34, 7 * 6 * 18)


def test_blocks_have_to_fill_a_token():
    with pytest.raises(PlanError) as refused:
        allocate(model(attention(0, 3, 5)), Request(7, storage=storage_named("q8_0")), LOGICAL)
    assert str(refused.value) == (
        "q8_0: expected a number of elements per token that blocks of 32 divide, got 3 heads of 5; use another "
        "--kv-dtype"
    )


def test_a_state_of_another_layer_takes_nothing():
    allocation = allocate(model(attention(0, 3, 5), attention(1, 3, 5, owner=0)), Request(7), LOGICAL)
    assert allocation.total == 7 * 3 * 10 * 2
    assert [group.label for group in allocation.groups] == [
        "1 layer, full, key 3 × 5, value 3 × 5",
        "1 layer, full, key 3 × 5, value 3 × 5, held by another layer",
    ]
    assert LOGICAL.entry_bytes(allocation.per_state[1][0], Request(7), model()) == 0


def test_equal_layers_are_one_line_and_the_equation_has_its_numbers():
    mixed = model(attention(0, 3, 5), attention(1, 3, 5, Window(11)), attention(2, 3, 5), *[mamba2(3, 4, 2, 1, 3)])
    allocation = allocate(mixed, Request(101, 2, shared_prefix=100), LOGICAL)
    assert [(group.label, group.each.equation) for group in allocation.groups] == [
        ("2 layers, full, key 3 × 5, value 3 × 5", "(100 shared + 2 x 1) tokens x (3 x 5 x 2 B + 3 x 5 x 2 B)"),
        ("1 layer, window 11, key 3 × 5, value 3 × 5", "(10 shared + 2 x 1) tokens x (3 x 5 x 2 B + 3 x 5 x 2 B)"),
        (
            "1 layer, convolution, fixed 3, columns 0 4 × 2, columns 1 1 × 3, columns 2 1 × 3",
            "2 x 3 slots x (4 x 2 x 2 B + 1 x 3 x 2 B + 1 x 3 x 2 B)",
        ),
        ("1 layer, recurrent, fixed 1, state 4 × 6", "2 x 1 slot x (4 x 6 x 2 B)"),
    ]
    assert [state.layer for state, _ in allocation.per_state] == [0, 1, 2, 3, 3]
    assert allocation.fixed_bytes == 2 * (3 * 14 + 24) * 2
    assert allocation.total == 60 * (2 * 102 + 12) + allocation.fixed_bytes


@pytest.mark.parametrize(("tp", "heads"), [(1, 12), (2, 6), (4, 3), (12, 1), (24, 1)])
def test_ranks_deal_out_heads_and_copy_them_below_one(tp, heads):
    allocation = allocate(model(attention(0, 12, 5)), Request(7, tp=tp), LOGICAL)
    assert allocation.total == 7 * heads * 10 * 2
    assert allocation.total_over_ranks == tp * allocation.total


def test_ranks_all_hold_the_latent():
    allocation = allocate(model(latent(0)), Request(7, tp=8), LOGICAL)
    assert (allocation.total, allocation.total_over_ranks) == (7 * 576 * 2, 8 * 7 * 576 * 2)


@pytest.mark.parametrize("tp", [5, 8, 18])
def test_heads_that_cannot_be_dealt_out_are_refused(tp):
    with pytest.raises(PlanError) as refused:
        allocate(model(attention(0, 12, 5)), Request(7, tp=tp), LOGICAL)
    assert str(refused.value) == (
        "--tp: expected a number of ranks that divides the 12 heads of key in layer 0, or is a multiple of them, got "
        f"{tp}"
    )


def test_growth_is_told_apart_from_the_first_tokens():
    mixed = model(attention(0, 3, 5), attention(1, 3, 5, Window(11)), *[mamba2(2, 4, 2, 1, 3)])
    request = Request(101)
    assert [LOGICAL.grows(state, request, mixed) for state in mixed.states] == [True, False, False, False]
    assert [LOGICAL.entry_bytes(state, request, mixed) for state in mixed.states[:2]] == [60, 60]


def test_every_runtime_is_found_by_its_name():
    for name in RUNTIMES:
        assert runtime_named(name).name == name


@pytest.mark.parametrize("wrong", ["vLLM", "", None, "x" * 100])
def test_an_unknown_runtime_is_refused(wrong):
    with pytest.raises(PlanError) as refused:
        runtime_named(wrong)
    assert str(refused.value).startswith(
        "--runtime: expected one of logical, transformers, vllm, llamacpp, sglang, got "
    )
    assert len(str(refused.value)) < 150


def test_an_unknown_option_is_refused():
    with pytest.raises(PlanError) as refused:
        runtime_named("vllm", page_size=16)
    assert str(refused.value) == (
        "vllm: expected an option of it, one of block_size, max_num_batched_tokens, hybrid, flashmla_fp8, got page_size"
    )
    with pytest.raises(PlanError) as refused:
        runtime_named("logical", block_size=16)
    assert str(refused.value) == "logical: expected no options, it has none, got block_size"
    assert runtime_named("logical", block_size=None).name == "logical"


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("vllm", {"block_size": 0}, "vllm: expected block_size to be a whole number from 1 to 1048576, got 0"),
        ("vllm", {"hybrid": 1}, "vllm: expected hybrid to be true or false, got 1"),
        (
            "llamacpp",
            {"n_ubatch": 2.5},
            "llamacpp: expected n_ubatch to be a whole number from 1 to 1073741824, got 2.5",
        ),
        ("sglang", {"page_size": True}, "sglang: expected page_size to be a whole number from 1 to 1048576, got True"),
        *(
            (
                "sglang",
                {"swa_full_tokens_ratio": wrong},
                f"sglang: expected swa_full_tokens_ratio above 0 and at most 1, got {wrong!r}",
            )
            for wrong in ("0", "1.5", "1e-99999999", "nan", 2.0, float("nan"), 1, "0.0")
        ),
    ],
)
def test_an_option_out_of_range_is_refused(name, options, text):
    with pytest.raises(PlanError) as refused:
        runtime_named(name, **options)
    assert str(refused.value) == text


def test_storages_of_two_bytes_take_the_same():
    request = Request(7, storage=F16)
    assert allocate(model(attention(0, 3, 5)), request, LOGICAL).total == 7 * 60
