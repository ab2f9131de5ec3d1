"""vLLM's blocks, by hand and against sizes that it was seen to choose."""

from __future__ import annotations

import pytest

from headwise.plan.allocation import allocate
from headwise.plan.errors import PlanError
from headwise.plan.request import Request
from headwise.plan.runtimes import runtime_named
from headwise.plan.runtimes.vllm_layers import group_size
from headwise.plan.states import Chunk, Fixed, Plane, State, Window
from headwise.plan.storages import F32, storage_named
from tests.plan.loads import attention, cross, delta_net, indexer, latent, mamba2, model

TOKEN = 4 * 64 * 2 * 2


def run(architecture, request: Request, **options):
    return allocate(architecture, request, runtime_named("vllm", **options))


def tokens(extent, request: Request, **options) -> int:
    """Tokens for which the one layer of a model has places."""
    allocation = run(model(attention(0, 4, 64, extent)), request, **options)
    assert allocation.total == allocation.groups[0].each.entries * TOKEN
    return allocation.groups[0].each.entries


@pytest.mark.parametrize(("context", "blocks"), [(1, 1), (16, 1), (17, 2), (1000, 63)])
def test_full_attention_takes_whole_blocks(context, blocks):
    assert tokens(None, Request(context)) == 16 * blocks
    assert tokens(None, Request(context, 7)) == 7 * 16 * blocks


def test_the_size_of_a_block_is_an_option():
    assert tokens(None, Request(1000), block_size=128) == 1024
    assert run(model(latent(0)), Request(1)).groups[0].each.entries == 64
    assert run(model(latent(0)), Request(1), block_size=1).groups[0].each.entries == 1


def test_drafts_take_places_behind_the_context():
    assert tokens(None, Request(15, speculative=1)) == 16
    assert tokens(None, Request(15, speculative=2)) == 32


def test_a_prefix_saves_whole_blocks():
    assert tokens(None, Request(100, 5, shared_prefix=50)) == 16 * (3 + 5 * 4)
    assert tokens(None, Request(100, 5, shared_prefix=47)) == 16 * (2 + 5 * 5)
    assert tokens(None, Request(100, 1, shared_prefix=47)) == 16 * 7
    # Not those of a window, nor beside recurrent layers, where nothing is found again.
    assert tokens(Window(40), Request(100, 5, shared_prefix=50)) == tokens(Window(40), Request(100, 5))
    hybrid = model(attention(0, 4, 64), mamba2(1, 8, 16, 2, 32))
    assert run(hybrid, Request(100, 5, shared_prefix=50)).total == run(hybrid, Request(100, 5)).total


@pytest.mark.parametrize(
    ("window", "batched", "context", "blocks"),
    [
        (1024, 8192, 100_000, 577),  # ceil((1023 + 8192) / 16) + 1
        (1024, 8192, 5_000, 314),  # ceil(5000 / 16) + 1
        (4, 1, 100, 2),
        (16, 1, 100, 2),
        (18, 1, 100, 3),
    ],
)
def test_a_window_holds_what_a_step_reads_and_one_block(window, batched, context, blocks):
    assert tokens(Window(window), Request(context), max_num_batched_tokens=batched) == 16 * blocks


def test_a_chunk_holds_itself_and_what_a_step_reads():
    only = {"max_num_batched_tokens": 1000}
    assert tokens(Chunk(8192), Request(100_000), **only) == 16 * 575  # ceil(9192 / 16)
    assert tokens(Chunk(8192), Request(5_000), **only) == 16 * 313


def test_one_window_everywhere_needs_no_hybrid_manager():
    assert tokens(Window(1024), Request(100_000), hybrid=False) == 16 * 577


def test_without_the_hybrid_manager_windows_are_held_as_full_layers():
    mixed = model(attention(0, 4, 64, Window(1024)), attention(1, 4, 64))
    off = run(mixed, Request(100_000), hybrid=False)
    assert [group.each.entries for group in off.groups] == [100_000, 100_000]
    runtime = runtime_named("vllm", hybrid=False)
    assert [runtime.grows(state, Request(1), mixed) for state in mixed.states] == [True, True]
    on = run(mixed, Request(100_000))
    assert [group.each.entries for group in on.groups] == [16 * 577, 100_000]
    assert [runtime_named("vllm").grows(state, Request(1), mixed) for state in mixed.states] == [False, True]


def test_chunked_models_run_without_the_hybrid_manager_unless_told():
    mixed = model(attention(0, 4, 64, Chunk(8192)), attention(1, 4, 64))
    assert [group.each.entries for group in run(mixed, Request(100_000)).groups] == [100_000, 100_000]
    on = run(mixed, Request(100_000), hybrid=True, max_num_batched_tokens=1000)
    assert [group.each.entries for group in on.groups] == [16 * 575, 100_000]


def test_blocks_of_several_types_are_made_one_size():
    """Local layers of 8 x 256 and global ones of 2 x 512: half the bytes a token, so twice the tokens a block."""
    mixed = model(attention(0, 8, 256, Window(1024)), attention(1, 2, 512))
    local, full = run(mixed, Request(5000)).groups
    assert (local.each.entries, full.each.entries) == (16 * 314, 32 * 157)


def test_blocks_that_cannot_be_made_one_size_are_refused():
    with pytest.raises(PlanError) as refused:
        run(model(attention(0, 3, 64, Window(9)), attention(1, 4, 64)), Request(7))
    assert str(refused.value) == (
        "vllm: expected blocks of one size, got 12288 bytes for layer 0 and 16384 for another, which it doesn't "
        "divide; vLLM can't share a pool between them"
    )
    # Nothing is shared where all layers are of one type, so each has blocks of its own size.
    assert run(model(attention(0, 3, 64), attention(1, 4, 64)), Request(16)).total == 16 * 7 * 64 * 4


@pytest.mark.parametrize(
    ("counts", "size"),
    [([10, 20], 10), ([12, 13], 13), ([2, 3], 2), ([20, 29], 29), ([20, 30], 20), ([7], 7), ([1, 5, 1], 1)],
)
def test_layers_of_a_group(counts, size):
    assert group_size(counts) == size


def test_places_that_no_layer_fills_are_told_apart():
    """7 sliding and 3 full layers make groups of 3: three sliding ones, of which the last has two empty places."""
    layers = [attention(layer, 4, 64, Window(1024)) for layer in range(7)]
    mixed = model(*layers, *[attention(layer, 4, 64) for layer in range(7, 10)])
    allocation = run(mixed, Request(5000, 3))
    (extra,) = allocation.extras
    assert extra.total == 2 * 3 * 314 * 16 * TOKEN
    assert extra.name == "empty places beside window 1024 layers"
    assert extra.equation == f"2 places x 3 x 314 blocks x {16 * TOKEN} B"
    assert allocation.total == (9 * 314 + 3 * 313) * 3 * 16 * TOKEN
    assert allocation.padding_bytes == extra.total


@pytest.mark.parametrize(
    ("storage", "token"),
    [
        ("bf16", 4 * 128 * 2),
        ("fp8", 4 * 128),
        ("fp8_scaled", 4 * 128 + 2 * 4 * 4),
        ("int8", 4 * 128 + 2 * 4 * 4),
        ("int4", 4 * 64 + 2 * 4 * 4),
        ("nvfp4", 2 * 4 * (32 + 4)),
    ],
)
def test_cache_dtypes(storage, token):
    request = Request(16, storage=storage_named(storage))
    assert run(model(attention(0, 4, 64)), request).total == 16 * token


def test_latents_in_fp8_have_flashmlas_656_bytes_beside_an_indexer():
    fp8 = Request(64, storage=storage_named("fp8"))
    assert run(model(latent(0)), fp8).total == 64 * 576
    assert run(model(latent(0)), fp8, flashmla_fp8=True).total == 64 * 656
    sparse = run(model((latent(0), indexer(0))), fp8)
    assert [group.each.total for group in sparse.groups] == [64 * 656, 64 * 132]
    assert sparse.groups[0].each.equation == "1 block x 64 tokens x 656 B"
    assert run(model((latent(0), indexer(0))), fp8, flashmla_fp8=False).groups[0].each.total == 64 * 576
    # The indexer's keys don't follow the dtype of the latents.
    assert run(model((latent(0), indexer(0))), Request(64)).groups[1].each.total == 64 * 132


def test_other_widths_have_no_flashmla():
    with pytest.raises(PlanError) as refused:
        run(model(latent(0, 256, 32)), Request(7, storage=storage_named("fp8")), flashmla_fp8=True)
    assert str(refused.value) == (
        "vllm: can't hold the latent state of layer 0: FlashMLA's fp8 layout is for latents of 512 and rope keys of 64 "
        "elements"
    )


@pytest.mark.parametrize(("tp", "block", "page"), [(1, 4192, 2_146_304), (2, 4192, 1_073_152), (4, 2112, 540_672)])
def test_the_block_beside_mamba_2_that_vllm_chose_for_nemotron_3_nano(tp, block, page):
    """vLLM's issue 41037: 2 KV heads of 128 in fp8, 64 Mamba heads of 64, 8 groups, states of 128 in float32."""
    hybrid = model(attention(0, 2, 128), mamba2(1, 64, 64, 8, 128, "float32"))
    allocation = run(hybrid, Request(1, storage=storage_named("fp8"), tp=tp), block_size=32)
    assert allocation.groups[0].each.entries == block
    assert [group.total for group in allocation.groups] == [
        page,
        (2_134_016 - 64 * 64 * 128 * 4) // tp,
        page - (2_134_016 - 64 * 64 * 128 * 4) // tp,
    ]


@pytest.mark.parametrize(("dtype", "block", "page"), [("float32", 1056, 2_162_688), (None, 544, 1_114_112)])
def test_the_block_beside_gated_delta_layers_of_qwen_3_5(dtype, block, page):
    """2 KV heads of 256 in two bytes; 16 key and 32 value heads of 128, convolution of 4."""
    hybrid = model(attention(0, 2, 256), delta_net(1, 16, 32, 128, dtype))
    full, columns, matrix = run(hybrid, Request(1)).groups
    assert (full.each.entries, full.total) == (block, page)
    assert columns.total + matrix.total == page
    assert matrix.each.padding == page - 3 * 8192 * 2 - 32 * 128 * 128 * (4 if dtype else 2)


def test_recurrent_layers_alone_are_not_padded():
    one = 3 * (8 * 16 + 2 * 2 * 32) * 2 + 8 * 16 * 32 * 2
    mamba = model(mamba2(0, 8, 16, 2, 32), mamba2(1, 8, 16, 2, 32))
    assert run(mamba, Request(1000, 5)).total == 2 * 5 * one
    assert run(mamba, Request(1000, 5, state_storage=F32)).total == 2 * 5 * 2 * one


def test_drafts_cost_recurrent_layers_a_page_each_and_a_column():
    mamba = model(mamba2(0, 8, 16, 2, 32))
    page = (3 + 2) * (8 * 16 + 2 * 2 * 32) * 2 + 8 * 16 * 32 * 2
    assert run(mamba, Request(1000, 5, speculative=2)).total == 5 * 3 * page


def test_cross_attention_takes_blocks_for_the_encoders_tokens():
    decoder = model((attention(0, 4, 64), cross(0, 4, 64, 1500)))
    own, other = run(decoder, Request(100, 3)).groups
    assert (own.each.entries, other.each.entries) == (3 * 112, 3 * 1504)


@pytest.mark.parametrize(
    ("architecture", "request_", "options", "text"),
    [
        (
            model(attention(0, 4, 64)),
            Request(7, storage=storage_named("q8_0")),
            {},
            "vllm: expected a --kv-dtype that it has, one of bf16, f16, f32, fp8, fp8_scaled, int8, int4, nvfp4, got "
            "q8_0",
        ),
        (
            model(latent(0)),
            Request(7, storage=storage_named("int8")),
            {},
            "vllm: expected a --kv-dtype that it has, one of bf16, f16, f32, fp8, got int8",
        ),
        (
            model(attention(0, 4, 64)),
            Request(7, value_storage=storage_named("fp8")),
            {},
            "vllm: expected keys and values in one dtype, got bf16 and fp8",
        ),
        (
            model(attention(0, 4, 24)),
            Request(7, storage=storage_named("nvfp4")),
            {},
            "vllm: expected heads that blocks of 16 divide for nvfp4, got key of 24; use another --kv-dtype",
        ),
        (
            model(attention(0, 4, 64), mamba2(1, 8, 16, 2, 32)),
            Request(7),
            {"hybrid": False},
            "vllm: expected the hybrid manager for gemma2, which has recurrent layers beside attention, got "
            "hybrid=false",
        ),
        (
            model(State(0, "self", (Plane("key", 4, 64, "key"),), Fixed(3))),
            Request(7),
            {},
            "vllm: can't hold the self state of layer 0: a fixed number of keys and values is none of vLLM's caches",
        ),
    ],
)
def test_what_vllm_has_not_is_refused(architecture, request_, options, text):
    with pytest.raises(PlanError) as refused:
        run(architecture, request_, **options)
    assert str(refused.value) == text


def test_a_runtime_can_be_asked_about_one_model_after_another():
    runtime = runtime_named("vllm", hybrid=False)
    window, mixed = model(attention(0, 4, 64, Window(9))), model(attention(0, 4, 64, Window(9)), attention(1, 4, 64))
    for _ in range(2):
        assert not runtime.grows(window.states[0], Request(1), window)
        assert runtime.grows(mixed.states[0], Request(1), mixed)
        for storage, token in (("bf16", TOKEN), ("fp8", TOKEN // 2)):
            request = Request(16, storage=storage_named(storage))
            assert allocate(mixed, request, runtime).total == 2 * 16 * token


@pytest.mark.parametrize("change", [{"tp": 2}, {"speculative": 3}, {"state_storage": F32}, {"storage": F32}])
def test_what_decides_the_blocks_is_asked_anew(change):
    runtime = runtime_named("vllm")
    hybrid = model(attention(0, 4, 64), mamba2(1, 8, 16, 4, 32))
    allocate(hybrid, Request(100, 3), runtime)
    changed = Request(100, 3, **change)
    assert allocate(hybrid, changed, runtime) == allocate(hybrid, changed, runtime_named("vllm"))
