"""Bytes of every storage, against the formats' own figures."""

from __future__ import annotations

import gguf
import pytest

from headwise.plan.errors import PlanError
from headwise.plan.gguf_types import BLOCKS
from headwise.plan.storages import GGML_NAMES, STORAGES, storage_named


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # 5 heads of 64 elements.
        ("f32", 5 * 64 * 4),
        ("f16", 5 * 64 * 2),
        ("bf16", 5 * 64 * 2),
        ("fp8", 5 * 64),
        ("fp8_scaled", 5 * (64 + 4)),
        ("int8", 5 * (64 + 4)),
        ("int4", 5 * (32 + 4)),
        ("nvfp4", 5 * (32 + 4)),
        ("q8_0", 5 * 2 * 34),
        ("q5_1", 5 * 2 * 24),
        ("q5_0", 5 * 2 * 22),
        ("q4_1", 5 * 2 * 20),
        ("q4_0", 5 * 2 * 18),
        ("iq4_nl", 5 * 2 * 18),
    ],
)
def test_bytes_of_a_token(name, expected):
    assert storage_named(name).row_bytes(5, 64) == expected


def test_every_storage_is_tried_and_has_a_source():
    assert len(STORAGES) == 14
    assert all(storage.source for storage in STORAGES.values())
    assert all(name == storage.name for name, storage in STORAGES.items())


@pytest.mark.parametrize("name", GGML_NAMES)
def test_cache_types_of_llama_cpp_are_ggmls(name):
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name.upper()]]
    assert (storage_named(name).block, storage_named(name).block_bytes) == (block, size)


def test_types_of_gguf_tensors_are_ggmls():
    computing = {gguf.GGMLQuantizationType.Q8_1, gguf.GGMLQuantizationType.Q8_K}
    theirs = {kind.value: sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items() if kind not in computing}
    assert set(BLOCKS) <= set(theirs)
    assert {kind: theirs[kind] for kind in BLOCKS} == BLOCKS
    # What the package knows besides has to be looked at: types come and go.
    assert {gguf.GGMLQuantizationType(kind).name for kind in set(theirs) - set(BLOCKS)} <= {"Q1_0"}


@pytest.mark.parametrize(
    ("also", "name"),
    [("bfloat16", "bf16"), ("float16", "f16"), ("fp16", "f16"), ("half", "f16"), ("float32", "f32"), ("fp32", "f32"),
     ("fp8_e4m3", "fp8"), ("fp8_e5m2", "fp8"), ("fp8_per_token_head", "fp8_scaled"), ("int8_per_token_head", "int8"),
     ("int4_per_token_head", "int4")],
)  # fmt: skip
def test_other_names_for_the_same(also, name):
    assert storage_named(also) is STORAGES[name]


@pytest.mark.parametrize("wrong", ["int5", "", "x" * 100, None, 16])
def test_an_unknown_name_is_refused(wrong):
    shown = {None: "nothing", "x" * 100: "'" + "x" * 56 + "..."}.get(wrong, repr(wrong))
    with pytest.raises(PlanError) as refused:
        storage_named(wrong)
    assert str(refused.value) == (
        "--kv-dtype: expected one of f32, f16, bf16, fp8, fp8_scaled, int8, int4, nvfp4, q8_0, q5_1, q5_0, q4_1, q4_0, "
        f"iq4_nl, got {shown}"
    )
