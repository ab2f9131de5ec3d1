"""Claims of docs/claims/sharing.md: what sharing keys and values saves, in which models, and what it isn't."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import nn

from headwise.attention import attention, attention_weights
from headwise.nn import GroupedQueryAttention
from headwise.plan import plan
from headwise.plan.compare import compare
from tests.claims.published import heads_of, told

F64 = torch.float64
GQA_8 = ("meta-llama/Llama-2-70b", "meta-llama/Meta-Llama-3-8B", "meta-llama/Meta-Llama-3-70B")


def numbers(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_number_of_kv_heads_makes_it_mha_gqa_or_mqa() -> None:
    """With as many KV heads as query heads PyTorch's module, with one of them a single key for all heads."""
    layers = {groups: GroupedQueryAttention(30, 6, groups, dtype=F64) for groups in (6, 3, 2, 1)}
    inputs = torch.randn(2, 7, 30, dtype=F64)
    theirs = layers[6].to_torch()
    assert torch.allclose(layers[6](inputs).output, theirs(inputs, inputs, inputs)[0], atol=1e-12)
    for groups, layer in layers.items():
        context = layer.project_context(inputs)
        assert context.key.shape == context.value.shape == (2, groups, 7, 5)
        assert layer.q_proj.weight.shape == (30, 30)


@pytest.mark.parametrize("heads", [2, 4, 8, 32])
def test_one_kv_head_saves_one_minus_one_over_h_of_its_matrices(heads: int) -> None:
    width = heads * 3
    whole, single = GroupedQueryAttention(width, heads), GroupedQueryAttention(width, heads, 1)
    inner = [numbers(each.k_proj) + numbers(each.v_proj) for each in (whole, single)]
    assert 1 - Fraction(inner[1], inner[0]) == 1 - Fraction(1, heads)
    assert 1 - Fraction(numbers(single), numbers(whole)) == (1 - Fraction(1, heads)) / 2
    if heads == 4:
        assert (1 - Fraction(inner[1], inner[0]), 1 - Fraction(numbers(single), numbers(whole))) == (0.75, 0.375)
    assert (1 - Fraction(inner[1], inner[0]) == Fraction(1, 2)) == (heads == 2)


@pytest.mark.parametrize("bias", [False, True])
def test_like_with_like_the_ratio_is_nine_sixteenths(bias: bool) -> None:
    """Every matrix has d or d + 1 numbers for each output, so that the bias cancels; 0.571 mixes the two."""
    shared, whole = (numbers(GroupedQueryAttention(64, 8, groups, bias=bias)) for groups in (1, 8))
    assert Fraction(shared, whole) == Fraction(9, 16) == (1 + Fraction(1, 8)) / 2
    mixed = [numbers(GroupedQueryAttention(64, 8, 1, bias=True)), numbers(GroupedQueryAttention(64, 8, bias=False))]
    assert mixed == [9_360, 16_384]
    assert f"{mixed[0] / mixed[1]:.3f}" == "0.571"


@pytest.mark.parametrize(("groups", "expected"), [(8, 16_640), (4, 12_480), (2, 10_400), (1, 9_360)])
def test_the_four_printed_counts(groups: int, expected: int) -> None:
    outside = [nn.Linear(64, 64), nn.Linear(64, 8 * groups), nn.Linear(64, 8 * groups), nn.Linear(64, 64)]
    assert sum(map(numbers, outside)) == expected == numbers(GroupedQueryAttention(64, 8, groups, bias=True))


def test_which_llamas_have_32_query_heads_and_8_kv_heads() -> None:
    """By their published configs: of these only Llama 3 8B (and 3.1 8B)."""
    pairs = {
        "huggyllama/llama-7b": (32, 32),
        "meta-llama/Llama-2-7b": (32, 32),
        "meta-llama/Llama-2-13b": (40, 40),
        "meta-llama/Llama-2-70b": (64, 8),
        "meta-llama/Meta-Llama-3-8B": (32, 8),
        "meta-llama/Meta-Llama-3-70B": (64, 8),
        "meta-llama/Meta-Llama-3.1-8B": (32, 8),
        "meta-llama/Meta-Llama-3.1-405B": (128, 8),
        "meta-llama/Llama-3.2-1B": (32, 8),
        "meta-llama/Llama-3.2-3B": (24, 8),
    }
    assert {name: heads_of(name) for name in pairs} == pairs


def test_llama_2_70b_and_all_of_llama_3_share_eight_kv_heads() -> None:
    names = [*GQA_8, "meta-llama/Meta-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-405B"]
    names += ["meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-3B"]
    assert {heads_of(name)[1] for name in names} == {8}
    assert all(heads_of(name)[0] > 8 for name in names)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("meta-llama/Meta-Llama-3-8B", Fraction(1, 4)),
        ("meta-llama/Llama-2-70b", Fraction(1, 8)),
        ("meta-llama/Meta-Llama-3.1-405B", Fraction(1, 16)),
        ("meta-llama/Llama-3.2-3B", Fraction(1, 3)),
    ],
)
def test_eight_kv_heads_are_a_quarter_only_of_thirty_two(name: str, share: Fraction) -> None:
    assert compare(told(name), "mha").rows[0].share == share


def test_the_measured_model_kept_an_eighth_not_a_quarter() -> None:
    """T5 XXL 1.1 has 64 heads of 64, so that 8 KV heads hold 12.5 % of the decoder's cache, its own and the crossed."""
    fields = {"model_type": "t5", "d_model": 4096, "d_kv": 64, "num_heads": 64, "num_layers": 24}
    whole = plan(fields, context=512, encoder_length=512)
    (heads,) = {attention.heads for layer in whole.architecture.layers for attention in layer.attentions}
    assert heads == 64
    own = compare(whole, "mha,gqa:8").rows
    crossed = whole.fixed
    assert Fraction(own[2].plan.total - crossed, own[1].plan.total - crossed) == Fraction(8, 64)
    assert whole.growth == 2 * 24 * 64 * 64 * 2


def test_shares_of_thirty_two_heads() -> None:
    rows = compare(told("meta-llama/Llama-2-7b"), "mha,gqa:8,gqa:4,gqa:2,mqa").rows[1:]
    assert [100 * row.share for row in rows] == [100, 25, Fraction("12.5"), Fraction("6.25"), Fraction("3.125")]


def test_thirty_two_times_what_it_is_compared_with() -> None:
    """32 heads hold 32 times one head of their own width, and exactly as much as one head of the model's width."""
    fields = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 3, "num_key_value_heads": 32}
    many = plan(fields | {"num_attention_heads": 32}, context=1024)
    wide = plan(fields | {"num_attention_heads": 1, "num_key_value_heads": 1}, context=1024)
    narrow = compare(many, "mqa").rows[1].plan
    assert many.total == 32 * narrow.total == wide.total


def test_the_mean_of_two_keys_may_be_no_key_at_all() -> None:
    """Heads whose keys are opposite: each picks its token with certainty, their mean picks nothing."""
    key, query = torch.eye(7, dtype=F64), torch.eye(7, dtype=F64) * 900
    own = attention_weights(torch.stack([query, -query])[None], torch.stack([key, -key])[None], scale=1.0)[0]
    assert torch.allclose(own, torch.eye(7, dtype=F64).expand(2, 7, 7), atol=1e-12)
    pooled = attention_weights(torch.stack([query, -query])[None], ((key - key) / 2)[None, None], scale=1.0)[0]
    assert torch.allclose(pooled, torch.full((2, 7, 7), 1 / 7, dtype=F64), atol=1e-12)
    # A basis that is undone on both sides (here a change of sign) brings the one key back, and nothing is lost.
    aligned = attention_weights(torch.stack([query, query])[None], key[None, None], scale=1.0)[0]
    assert torch.allclose(aligned, own, atol=1e-12)


def test_grouping_is_not_a_flag() -> None:
    whole, shared = GroupedQueryAttention(30, 6, dtype=F64), GroupedQueryAttention(30, 6, 2, dtype=F64)
    with pytest.raises(RuntimeError, match="size mismatch"):
        shared.load_state_dict(whole.state_dict())
    inputs = torch.randn(2, 7, 30, dtype=F64)
    state = whole.state_dict()
    for name in ("k_proj.weight", "v_proj.weight"):  # the first head of each group, as a flag would have to
        state[name] = state[name].unflatten(0, (2, 3, 5))[:, 0].flatten(0, 1)
    shared.load_state_dict(state)
    assert (shared(inputs).output - whole(inputs).output).abs().max() > 1e-2


def test_compact_keys_repeated_at_each_step_are_as_large_as_those_of_all_heads() -> None:
    """What repeating makes beside the cache, in bytes; attention over the compact ones makes none of it."""
    query, key = torch.randn(2, 6, 1, 5), torch.randn(2, 2, 101, 5)
    repeated = key.repeat_interleave(3, 1)
    assert repeated.numel() == 3 * key.numel() == 2 * 6 * 101 * 5
    assert repeated.data_ptr() != key.data_ptr()
    theirs = nn.functional.scaled_dot_product_attention(query, repeated, repeated)
    assert torch.allclose(attention(query, key, key), theirs, atol=1e-6)
