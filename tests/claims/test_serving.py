"""Claims of docs/claims/serving.md: what a step reads and multiplies, and what removing a head saves."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from headwise.nn import GroupedQueryAttention
from headwise.plan.compare import compare
from headwise.plan.states import Window
from tests.claims.published import fields_of, told

LLAMA = "meta-llama/Llama-2-7b"
WEIGHTS = 13_476_831_232  # 6,738,415,616 parameters of two bytes
F64 = torch.float64


@pytest.mark.parametrize(("batch", "ratio"), [(1, 1.15), (16, 3.29), (128, 13.07)])
def test_a_step_reads_weights_too(batch: int, ratio: float) -> None:
    """The least time of a step of Llama 2 7B behind 4,096 tokens, all heads over one: far from 32 at any batch."""
    asked = {"context": 4096, "batch": batch, "weights": WEIGHTS, "device": "h100-sxm"}
    whole, one = (row.plan.roofline for row in compare(told(LLAMA, **asked), "mha,mqa").rows[1:])
    assert whole is not None
    assert one is not None
    assert whole.cache_bytes == 32 * one.cache_bytes == batch * (2 << 30)
    bound = Fraction(WEIGHTS + whole.cache_bytes, WEIGHTS + one.cache_bytes)
    assert whole.step_seconds is not None
    assert one.step_seconds is not None
    assert whole.step_seconds / one.step_seconds == pytest.approx(float(bound), rel=1e-9)
    assert round(float(bound), 2) == ratio


def test_zeroing_a_head_saves_no_work_and_removing_it_does() -> None:
    """The same outputs; all weights and all FLOPs of the matrices against five sixths of them."""
    zeroed, removed = (GroupedQueryAttention(30, heads, head_dim=5, dtype=F64) for heads in (6, 5))
    whole, inputs = GroupedQueryAttention(30, 6, dtype=F64), torch.randn(1, 7, 30, dtype=F64)
    zeroed.load_state_dict(whole.state_dict())
    with torch.no_grad():
        zeroed.o_proj.weight[:, 25:] = 0
    state = {name: weight[:25] for name, weight in whole.state_dict().items()}
    state["o_proj.weight"] = whole.o_proj.weight.detach()[:, :25]
    removed.load_state_dict(state)
    flops, sizes = [], []
    for layer in (whole, zeroed, removed):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            layer(inputs, causal=True)
        flops.append(counter.get_total_flops())
        sizes.append(sum(each.numel() for each in layer.parameters()))
    assert flops[0] == flops[1]
    assert sizes[0] == sizes[1]
    assert Fraction(flops[2], flops[0]) == Fraction(sizes[2], sizes[0]) == Fraction(5, 6)
    assert torch.allclose(zeroed(inputs).output, removed(inputs).output, atol=1e-12)


def test_where_attention_overtakes_the_feed_forward_part() -> None:
    """Llama 3.1 8B: three matrices of 4,096 by 14,336 against attention: equal at 16,384 tokens of context for a step,
    and at 32,767 for reading them all."""
    name = "meta-llama/Meta-Llama-3.1-8B"
    fields = fields_of(name)
    token = 2 * fields["num_hidden_layers"] * 3 * fields["hidden_size"] * fields["intermediate_size"]
    for context, sign in ((16_383, -1), (16_384, 0), (16_385, 1)):
        step = told(name, context=context).decode.total.visible
        assert (step > token) - (step < token) == sign
    for context, sign in ((32_766, -1), (32_767, 0), (32_768, 1)):
        reading = told(name, context=context).prefill.total.visible
        assert (reading > token * context) - (reading < token * context) == sign


def test_dense_work_does_not_shrink_with_a_window() -> None:
    own, window = (row.plan.prefill for row in compare(told(LLAMA, context=1009), "mha,window:101").rows[1:])
    assert window.scores.dense == own.scores.dense == 2 * 32 * 32 * 128 * 1009**2
    assert window.scores.bound == 2 * 32 * 32 * 128 * 1009 * 101  # T W, not W squared
    assert window.scores.visible < own.scores.visible < own.scores.dense


def test_heads_of_mistral_all_see_as_far() -> None:
    """4,096 tokens in every layer of 7B v0.1, and no bound in v0.3: no mix of local and global heads."""
    layers = told("mistralai/Mistral-7B-v0.1").architecture.layers
    assert {attention.extent for layer in layers for attention in layer.attentions} == {Window(4096)}
    later = told("mistralai/Mistral-7B-v0.3").architecture.layers
    assert not any(isinstance(attention.extent, Window) for layer in later for attention in layer.attentions)
