"""llama.cpp's cells, against what llama.cpp prints and by hand."""

from __future__ import annotations

import pytest

from headwise.plan.allocation import allocate
from headwise.plan.errors import PlanError
from headwise.plan.request import Request
from headwise.plan.runtimes import runtime_named
from headwise.plan.states import Chunk, Window
from headwise.plan.storages import F16, storage_named
from tests.plan.loads import attention, cross, delta_net, indexer, latent, mamba2, model

MIB = 1 << 20
TOKEN = 4 * 64 * 2 * 2


def run(architecture, request: Request, **options):
    return allocate(architecture, request, runtime_named("llamacpp", **options))


def cells(extent, request: Request, model_type: str = "gemma2", **options) -> int:
    allocation = run(model(attention(0, 4, 64, extent), model_type=model_type), request, **options)
    assert allocation.total == allocation.groups[0].each.entries * TOKEN
    return allocation.groups[0].each.entries


def test_the_cache_that_llama_cpp_prints_for_sixteen_full_layers():
    """16384.00 MiB for 262144 cells of 16 layers, 4 heads of 256, in f16."""
    sixteen = model(*[attention(layer, 4, 256) for layer in range(16)])
    allocation = run(sixteen, Request(262_144, storage=F16))
    assert allocation.total == 16_384 * MIB
    assert allocation.key_bytes == allocation.value_bytes == 8_192 * MIB


def test_the_recurrent_state_that_llama_cpp_prints_for_48_gated_delta_layers():
    """149.625 MiB a sequence: 16 key and 48 value heads of 128, convolutions of 4, in float32 whatever is asked."""
    nets = model(*[delta_net(layer, 16, 48, 128, dtype="bfloat16") for layer in range(48)])
    assert run(nets, Request(1)).total * 1000 == 149_625 * MIB
    assert run(nets, Request(1, state_storage=F16)).total * 1000 == 149_625 * MIB
    assert run(nets, Request(100_000, 3)).total * 1000 == 3 * 149_625 * MIB


def test_the_fixed_bytes_of_qwen_3_5_35b():
    nets = model(*[delta_net(layer, 16, 32, 128) for layer in range(30)])
    assert run(nets, Request(1)).fixed_bytes == 65_863_680


@pytest.mark.parametrize(("context", "expected"), [(1, 256), (256, 256), (257, 512)])
def test_cells_come_in_256(context, expected):
    assert cells(None, Request(context)) == expected
    # Each sequence has its own.
    assert cells(None, Request(context, 3)) == 3 * expected


def test_a_unified_cache_pads_once_and_holds_a_prefix_once():
    assert cells(None, Request(300, 3), unified=True) == 1024
    assert cells(None, Request(300, 3, shared_prefix=290), unified=True) == 512
    assert cells(None, Request(300, 3, shared_prefix=290)) == 3 * 512
    assert cells(None, Request(300, 3, speculative=80), unified=True) == 1280


def test_sliding_cells():
    assert cells(Window(1000), Request(10_000)) == 1536  # 1000 + 512
    assert cells(Window(1000), Request(10_000, 3)) == 3 * 1536
    assert cells(Window(1000), Request(10_000, 3), unified=True) == 3584  # 3000 + 512
    assert cells(Window(1000), Request(10_000), n_ubatch=2048) == 3072
    assert cells(Window(1000), Request(700)) == 768
    assert cells(Window(1000), Request(10_000), swa_full=True) == 10_240
    assert cells(Chunk(8192), Request(100_000), "llama4") == 8704


@pytest.mark.parametrize("model_type", ["mistral", "phi3", "qwen2", "mixtral", "starcoder2"])
def test_models_without_a_window_in_llama_cpp_hold_everything(model_type):
    assert cells(Window(1000), Request(10_000), model_type) == 10_240
    architecture = model(attention(0, 4, 64, Window(1000)), model_type=model_type)
    assert runtime_named("llamacpp").grows(architecture.states[0], Request(1), architecture)


def test_growth_follows_the_window():
    architecture = model(attention(0, 4, 64, Window(1000)), attention(1, 4, 64))
    for options, expected in [({}, [False, True]), ({"swa_full": True}, [True, True])]:
        runtime = runtime_named("llamacpp", **options)
        assert [runtime.grows(state, Request(1), architecture) for state in architecture.states] == expected


def test_a_window_of_which_llama_cpp_may_know_nothing_is_refused():
    with pytest.raises(PlanError) as refused:
        cells(Window(1000), Request(10_000), "brand_new")
    assert str(refused.value) == (
        "llamacpp: can't hold the self state of layer 0: whether llama.cpp has windows for brand_new isn't known here"
    )
    assert cells(None, Request(10_000), "brand_new") == 10_240


@pytest.mark.parametrize(
    ("keys", "values", "expected"),
    [("f16", "f16", 2 * 512), ("q8_0", "q8_0", 2 * 272), ("q8_0", "q4_0", 272 + 144), ("f16", "q5_1", 512 + 192)],
)
def test_keys_and_values_have_types_of_their_own(keys, values, expected):
    """8 blocks of 32 a token for 4 heads of 64; 32 elements of q8_0 are 34 bytes, not 34 each."""
    request = Request(256, storage=storage_named(keys), value_storage=storage_named(values))
    assert run(model(attention(0, 4, 64)), request).total == 256 * expected


def test_latent_attention_keeps_keys_only_and_an_indexer_its_own():
    sparse = model((latent(0), indexer(0)))
    assert run(sparse, Request(256)).total == 256 * (576 + 128) * 2
    assert run(sparse, Request(256, storage=storage_named("q8_0"))).total == 256 * (18 + 4) * 34


def test_drafts_cost_recurrent_layers_a_row_each():
    mamba = model(mamba2(0, 8, 16, 2, 32))
    one = (3 * (8 * 16 + 2 * 2 * 32) + 8 * 16 * 32) * 4
    assert run(mamba, Request(100, 5)).total == 5 * one
    assert run(mamba, Request(100, 5, speculative=3)).total == 20 * one


def test_without_flash_attention_all_values_are_as_wide_as_the_widest():
    mixed = model(attention(0, 4, 64), attention(1, 2, 64))
    plain, padded = run(mixed, Request(256)), run(mixed, Request(256), flash_attention=False)
    assert padded.total - plain.total == padded.padding_bytes == 256 * 2 * 64 * 2
    assert padded.value_bytes == plain.value_bytes
    assert padded.groups[1].each.equation == ("256 cells x (2 x 64 x 2 B + 2 x 64 x 2 B) + 65536 B values padded")


@pytest.mark.parametrize(
    ("state", "request_", "options", "text"),
    [
        (
            attention(0, 4, 64),
            Request(7, tp=2),
            {},
            "llamacpp: expected --tp 1, got 2; llama.cpp deals out layers over devices, not heads",
        ),
        (
            attention(0, 4, 64),
            Request(7, storage=storage_named("fp8")),
            {},
            "llamacpp: expected a --kv-dtype that it has, one of f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl, "
            "got fp8",
        ),
        (
            attention(0, 4, 80),
            Request(7, storage=storage_named("q8_0")),
            {},
            "llamacpp: expected heads that blocks of 32 divide for q8_0, got key of 80 in layer 0; use f16",
        ),
        (
            attention(0, 4, 64),
            Request(7, storage=storage_named("q8_0")),
            {"flash_attention": False},
            "llamacpp: expected flash attention for values in q8_0, got none; use f16",
        ),
        (
            cross(0, 4, 64, 17),
            Request(7),
            {},
            "llamacpp: can't hold the cross state of layer 0: llama.cpp computes cross attention's keys anew from the "
            "encoder's output",
        ),
    ],
)
def test_what_llama_cpp_has_not_is_refused(state, request_, options, text):
    with pytest.raises(PlanError) as refused:
        run(model(state), request_, **options)
    assert str(refused.value) == text
