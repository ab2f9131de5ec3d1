"""SGLang's pools, by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.plan.allocation import allocate
from headwise.plan.errors import PlanError
from headwise.plan.request import Request
from headwise.plan.runtimes import runtime_named
from headwise.plan.states import Chunk, Fixed, Plane, State, Window
from headwise.plan.storages import F32, storage_named
from tests.plan.loads import attention, cross, delta_net, indexer, latent, mamba2, model

TOKEN = 4 * 64 * 2 * 2


def run(architecture, request: Request, **options):
    return allocate(architecture, request, runtime_named("sglang", **options))


def slots(request: Request, **options) -> int:
    allocation = run(model(attention(0, 4, 64)), request, **options)
    assert allocation.total == allocation.groups[0].each.entries * TOKEN
    return allocation.groups[0].each.entries


def test_a_pool_holds_every_token_and_a_page_for_dummies():
    assert slots(Request(1000)) == 1001
    assert slots(Request(1000, 3)) == 3001
    assert slots(Request(1000, 3, speculative=4)) == 3013
    assert slots(Request(1000, 3), page_size=64) == 3 * 1024 + 64


def test_the_radix_tree_holds_whole_pages_of_a_prefix_once():
    assert slots(Request(1000, 3, shared_prefix=900)) == 900 + 3 * 100 + 1
    assert slots(Request(1000, 3, shared_prefix=900), page_size=64) == (14 + 3 * 2) * 64 + 64
    assert slots(Request(1000, 3, shared_prefix=900), radix_cache=False) == 3001


def pools(request: Request, extent=None, model_type: str = "gpt_oss", **options) -> tuple[int, int]:
    """Slots of the sliding and of the full pool."""
    mixed = model(attention(0, 4, 64, extent or Window(128)), attention(1, 4, 64), model_type=model_type)
    sliding, full = run(mixed, request, **options).groups
    return sliding.each.entries, full.each.entries


def test_the_sliding_pool_is_a_part_of_the_full_one():
    assert pools(Request(10_000)) == (8001, 10_001)
    assert pools(Request(10_000), swa_full_tokens_ratio="0.25") == (2501, 10_001)
    assert pools(Request(10_000), page_size=64) == (8000 + 64, 10_048 + 64)  # int(10048 x 0.8) = 8038 in pages
    assert pools(Request(10_000), hybrid_swa=False) == (10_001, 10_001)
    assert pools(Request(10_000), model_type="gemma2") == (10_001, 10_001)
    assert pools(Request(10_000), Chunk(128), "llama4") == (8001, 10_001)


def test_the_full_pool_is_enlarged_where_its_part_would_not_hold_the_windows():
    # 100 tokens in a window of 128 are all held: 100 / 0.8 = 125.
    assert pools(Request(100)) == (101, 126)
    # A window of 128 slots and one more, since it need not start at a page: 129 / 0.1.
    assert pools(Request(200), swa_full_tokens_ratio="0.1") == (130, 1291)


@settings(max_examples=100)
@given(
    context=st.integers(1, 4000),
    batch=st.integers(1, 5),
    window=st.integers(1, 700),
    page=st.sampled_from([1, 7, 64]),
    tenths=st.integers(1, 10),
)
def test_both_pools_hold_what_they_must(context, batch, window, page, tenths):
    ratio = "1.0" if tenths == 10 else f"0.{tenths}"
    sliding, full = pools(Request(context, batch), Window(window), page_size=page, swa_full_tokens_ratio=ratio)
    sliding, full = sliding - page, full - page
    assert full >= batch * context
    assert sliding >= batch * min(context, window)
    assert sliding == int(full * Fraction(ratio)) // page * page


def test_growth_follows_the_pools():
    for model_type, expected in (("gpt_oss", [False, True]), ("gemma2", [True, True])):
        mixed = model(attention(0, 4, 64, Window(128)), attention(1, 4, 64), model_type=model_type)
        runtime = runtime_named("sglang")
        assert [runtime.grows(state, Request(1), mixed) for state in mixed.states] == expected


def test_an_indexer_has_132_bytes_a_token_and_pages_of_64():
    sparse = model((latent(0), indexer(0)))
    assert [group.total for group in run(sparse, Request(1000)).groups] == [1088 * 576 * 2, 1088 * 132]
    fp8 = Request(1000, storage=storage_named("fp8"))
    assert [group.total for group in run(sparse, fp8).groups] == [1088 * 656, 1088 * 132]
    assert run(sparse, fp8).groups[0].each.equation == "(1024 + 64 dummy) slots x (528 B + 128 B)"
    # Without one, latents in fp8 are a byte an element.
    assert run(model(latent(0)), fp8).total == 1001 * 576


def test_recurrent_states_have_three_slots_a_sequence_and_one_for_dummies():
    columns, matrix = 3 * (2 + 2 + 6) * 8 * 2, 6 * 64 * 4
    net = model(delta_net(0, 2, 6, 8))
    assert run(net, Request(100, 5)).total == 16 * (columns + matrix)
    assert run(net, Request(100, 5), radix_cache=False).total == 6 * (columns + matrix)
    halved = model(delta_net(0, 2, 6, 8, dtype="bfloat16"))
    assert run(halved, Request(100, 5)).total == 16 * (columns + matrix // 2)
    assert run(net, Request(100, 5, state_storage=F32)).total == 16 * (2 * columns + matrix)


def test_drafts_keep_a_state_for_each_token_of_a_step():
    """4 tokens a step: 4 matrices, and columns in one overlapping window of 4 + 3 - 1."""
    column, matrix = (2 + 2 + 6) * 8 * 2, 6 * 64 * 4
    net = model(delta_net(0, 2, 6, 8))
    expected = 16 * (3 * column + matrix) + 6 * (6 * column + 4 * matrix)
    assert run(net, Request(100, 5, speculative=3)).total == expected


@pytest.mark.parametrize(
    ("architecture", "request_", "options", "text"),
    [
        (
            model(attention(0, 4, 64)),
            Request(7, storage=storage_named("int8")),
            {},
            "sglang: expected a --kv-dtype that it has, one of bf16, f16, f32, fp8, nvfp4, got int8",
        ),
        (
            model((latent(0), indexer(0))),
            Request(7),
            {"page_size": 1},
            "sglang: expected page_size 64 for gemma2, which has an indexer, got 1",
        ),
        (
            model(cross(0, 4, 64, 17)),
            Request(7),
            {},
            "sglang: can't hold the cross state of layer 0: SGLang puts an encoder's tokens into the pool of all "
            "layers",
        ),
        (
            model(State(0, "self", (Plane("key", 4, 64, "key"),), Fixed(3))),
            Request(7),
            {},
            "sglang: can't hold the self state of layer 0: a fixed number of keys and values is none of SGLang's pools",
        ),
        (
            model(mamba2(0, 8, 16, 2, 32)),
            Request(7, state_storage=storage_named("fp8")),
            {},
            "sglang: expected a --state-dtype that it has, one of bf16, f16, f32, got fp8",
        ),
    ],
)
def test_what_sglang_has_not_is_refused(architecture, request_, options, text):
    with pytest.raises(PlanError) as refused:
        run(architecture, request_, **options)
    assert str(refused.value) == text
