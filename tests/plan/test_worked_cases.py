"""Numbers that textbooks and lessons work out by hand, and the models that they are worked out for."""

from __future__ import annotations

from fractions import Fraction

import pytest

from headwise.plan.answers import plan_architecture
from headwise.plan.compare import compare
from headwise.plan.request import Request
from headwise.plan.runtimes import runtime_named
from headwise.plan.storages import storage_named
from headwise.plan.work import attention_parameters
from tests.plan.made import grouped, model

GIB = 1 << 30
LOGICAL = runtime_named("logical")


def stack(layers: int, heads: int, kv_heads: int, dim: int, width: int, **kinds):
    return model(*(grouped(index, heads, kv_heads, dim, width, **kinds) for index in range(layers)))


@pytest.mark.parametrize(("kv_heads", "size", "gib"), [(64, 5_368_709_120, "5"), (8, 671_088_640, "0.625")])
def test_eighty_layers_behind_2048_tokens(kv_heads, size, gib):
    """2·B·N·Hkv·T·dh·b for B = 1, N = 80, T = 2,048, dh = 128 and two bytes."""
    told = plan_architecture(stack(80, 64, kv_heads, 128, 8192), Request(2048), LOGICAL)
    assert told.total == size == 2 * 1 * 80 * kv_heads * 2048 * 128 * 2
    assert Fraction(told.total, GIB) == Fraction(gib)
    (group,) = told.allocation.groups
    assert group.each.equation == f"2048 tokens x ({kv_heads} x 128 x 2 B + {kv_heads} x 128 x 2 B)"
    assert group.total == 80 * 2048 * (kv_heads * 128 * 2 + kv_heads * 128 * 2)


def test_eight_heads_that_split_the_width_and_eight_of_full_width():
    """4·d² against 4·h·d² projection weights, d = 512 and h = 8."""
    assert attention_parameters(stack(1, 8, 8, 64, 512)).total == 1_048_576 == 4 * 512**2
    wide = attention_parameters(stack(1, 8, 8, 512, 512))
    assert wide.total == 8_388_608 == 4 * 8 * 512**2
    assert wide.total - wide.by_name["output"] == 3 * 8 * 512**2


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16, 32])
def test_splitting_a_width_among_more_heads_leaves_the_parameters(heads):
    assert attention_parameters(stack(1, heads, heads, 512 // heads, 512)).total == 4 * 512**2


def test_scores_cost_the_same_for_any_number_of_heads_but_maps_do_not():
    """h·T²·dh = T²·d multiply-adds, while softmax and maps have h·T² elements."""
    one, eight = (plan_architecture(stack(1, h, h, 512 // h, 512), Request(100), LOGICAL).prefill for h in (1, 8))
    assert one.scores == eight.scores
    assert one.scores.bound == 2 * 100**2 * 512
    assert eight.softmax == one.softmax * 8
    assert eight.softmax.bound == 8 * 100**2


def test_one_kv_head_for_four_query_heads_saves_37_and_a_half_percent():
    """1 - 1/h of the key and value matrices, which is 75 % of them and 37.5 % of all four."""
    whole, single = (attention_parameters(stack(1, 4, groups, 128, 512)) for groups in (4, 1))
    inner = [each.by_name["key"] + each.by_name["value"] for each in (whole, single)]
    assert 1 - Fraction(inner[1], inner[0]) == Fraction(75, 100)
    assert 1 - Fraction(single.total, whole.total) == Fraction(375, 1000)


def test_the_small_layers_of_the_chapter():
    """Width 64, 8 heads, biases: 16,640, 12,480, 10,400, 9,360 parameters for 8, 4, 2, 1 KV heads; 16,384 without."""
    told = [attention_parameters(stack(1, 8, groups, 8, 64, bias=True)).total for groups in (8, 4, 2, 1)]
    assert told == [16_640, 12_480, 10_400, 9_360]
    assert attention_parameters(stack(1, 8, 8, 8, 64)).total == 16_384
    assert attention_parameters(stack(1, 8, 8, 8, 64, bias=True, packed=True)).total == 16_640


def test_the_table_of_32_heads():
    """GQA-8, GQA-4, GQA-2 and MQA keep 25, 12.5, 6.25 and 3.125 % of MHA's cache."""
    told = plan_architecture(stack(3, 32, 8, 128, 4096), Request(1000), LOGICAL)
    rows = compare(told, "mha,gqa:8,gqa:4,gqa:2,mqa").rows
    assert [row.share for row in rows[1:]] == [Fraction(part) for part in ("1", "0.25", "0.125", "0.0625", "0.03125")]
    assert rows[0].share == rows[2].share == Fraction("0.25")


@pytest.mark.parametrize(
    ("context", "dtype", "mha", "gqa"),
    [  # 32 layers of 32 heads with 128 elements, 8 KV heads: GiB of one sequence
        (2_048, "bf16", "1", "0.25"),
        (8_192, "bf16", "4", "1"),
        (131_072, "bf16", "64", "16"),
        (8_192, "f32", "8", "2"),
        (8_192, "fp8", "2", "0.5"),
        (8_192, "int8", "2.0625", "0.515625"),
        (8_192, "q4_0", "1.125", "0.28125"),
    ],
)
def test_llama_3_8b_under_mha_and_gqa(context, dtype, mha, gqa):
    """The exercise that asks for a table: contexts, dtypes, and a quarter throughout."""
    told = plan_architecture(stack(32, 32, 8, 128, 4096), Request(context, storage=storage_named(dtype)), LOGICAL)
    own, whole = (row.plan.total for row in compare(told, "mha").rows)
    assert Fraction(own, GIB) == Fraction(gqa)
    assert Fraction(whole, GIB) == Fraction(mha)
    assert attention_parameters(stack(32, 32, 8, 128, 4096)).total == 32 * 2 * (4096**2 + 4096 * 1024)
