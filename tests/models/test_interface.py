"""headwise inside transformers: options, refusals, weights on request and packed documents.

That every architecture gives the same numbers as on eager attention is judged in ``tests/peers/test_transformers.py``.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.models.interface import NAME, register
from tests.models import tiny
from tests.models.families import ALL, BATCH, LENGTH, assert_as_good_as_eager, family, inputs_of

DOCUMENTS = (5, 1, 8)  # lengths; the windows and chunks of the tiny models are 2 and 5


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_weights_on_request(name):
    fields = ["attentions"]
    if name in tiny.ENCODER_DECODERS:
        fields = ["decoder_attentions", "cross_attentions", "encoder_attentions"]

    def weights(model: Any) -> Tensor:
        output = model(**inputs_of(name, model), output_attentions=True)
        assert [len(output[field]) for field in fields] == [tiny.LAYERS] * len(fields)
        assert output[fields[0]][0].shape[:2] == (BATCH, model.config.num_attention_heads)
        return torch.cat([layer.flatten() for field in fields for layer in output[field]])

    assert_as_good_as_eager(name, weights)


def test_no_weights_unless_asked_for():
    model, _, _ = family("gpt2")
    assert model(input_ids=tiny.tokens(1, 3)).attentions is None


def test_a_long_prompt_into_a_static_cache_is_aligned_at_its_start():
    """Slots behind the prompt are empty yet; a causal mask aligned at the end of the cache would let them be read."""
    tokens = tiny.tokens(1, LENGTH)
    model, eager, _ = family("llama")
    from transformers import StaticCache

    with torch.no_grad():
        cached = model(input_ids=tokens, past_key_values=StaticCache(config=model.config, max_cache_len=29)).logits
        expected = eager(input_ids=tokens).logits
    torch.testing.assert_close(cached, expected, rtol=0, atol=1e-5)


class Layer(nn.Module):
    """An attention module as transformers' functions see it."""

    is_causal = True


def call(module: nn.Module | None = None, mask: Tensor | None = None, **options: Any) -> Tensor:
    from headwise.models.interface import headwise_attention

    query, key = torch.randn(1, 6, 5, 7), torch.randn(1, 2, 5, 7)
    return headwise_attention(module or Layer(), query, key, key, mask, **options)[0]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dropout": (
        {"dropout": 0.1},
        "attention dropout 0.1 is not supported; call model.eval(), set attention_dropout to 0, or use "
        'attn_implementation="eager"',
    ),
    "unknown tensor": (
        {"indexer": torch.zeros(2, 3)},
        "got indexer, a tensor of shape [2, 3], which headwise does not know; use "
        'attn_implementation="eager" for this model',
    ),
    "unknown number": (
        {"temperature": 0.5},
        'got temperature, of type float, which headwise does not know; use attn_implementation="eager" for this model',
    ),
    "half of a packing": (
        {"cu_seq_lens_k": torch.tensor([0, 3, 5])},
        "expected cu_seq_lens_q and cu_seq_lens_k for packed documents, got cu_seq_lens_k alone; pass both",
    ),
    "a table of blocks": (
        {"block_table": torch.zeros(1, 2)},
        "got block_table, a tensor of shape [1, 2], which headwise does not know; use "
        'attn_implementation="eager" for this model',
    ),
    "two-sided window": (
        {"is_causal": False, "sliding_window": 3},
        "a two-sided sliding window of 3 came without a mask, and architectures disagree on its width; pass the mask",
    ),
}


@pytest.mark.parametrize(("options", "text"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_go_through_is_refused_by_name(options, text):
    with pytest.raises(ValueError, match=f"^{re.escape(f'headwise attention in Layer: {text}')}$"):
        call(**options)


def test_flags_and_what_has_no_bearing_on_weights_go_through():
    torch.manual_seed(0)
    plain = call()
    torch.manual_seed(0)
    flagged = call(use_cache=True, output_router_logits=True, position_ids=torch.arange(5)[None], softcap=None)
    assert torch.equal(plain, flagged)


def test_a_window_without_a_mask_counts_the_querys_own_key():
    positions = torch.arange(5)
    behind = positions[:, None] - positions
    for window in (1, 2, 4, 5, 9):
        mask = (behind >= 0) & (behind < window)
        torch.manual_seed(0)
        expected = call(mask=mask[None, None])
        torch.manual_seed(0)
        assert torch.equal(call(sliding_window=window), expected)


def test_a_mask_of_numbers_and_a_position_bias_add_up():
    mask, bias = torch.randn(1, 1, 5, 5), torch.randn(1, 6, 5, 5)
    torch.manual_seed(0)
    expected = call(mask=mask + bias)
    torch.manual_seed(0)
    assert torch.equal(call(mask=mask, position_bias=bias), expected)
    torch.manual_seed(0)
    assert not torch.equal(call(mask=mask), expected)


def test_a_two_sided_window_is_fine_with_its_mask_or_if_nothing_is_cut_off():
    mask = torch.ones(1, 1, 5, 5, dtype=torch.bool)
    torch.manual_seed(0)
    everything = call(is_causal=False)
    torch.manual_seed(0)
    assert torch.equal(call(mask=mask, is_causal=False, sliding_window=3), everything)
    torch.manual_seed(0)
    assert torch.equal(call(is_causal=False, sliding_window=5), everything)


def test_attention_dropout_is_refused_in_training():
    model = tiny.build(tiny.DECODERS["llama"])
    model.set_attn_implementation(NAME)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    tokens = tiny.tokens(BATCH, LENGTH)
    model(input_ids=tokens)  # in eval mode there is none
    with pytest.raises(ValueError, match=r"^headwise attention in LlamaAttention: attention dropout 0\.1"):
        model.train()(input_ids=tokens)


def test_registering_twice_changes_nothing():
    from transformers import AttentionInterface, AttentionMaskInterface

    from headwise.models.interface import headwise_attention, headwise_mask

    register()
    assert AttentionInterface()[NAME] is headwise_attention
    assert AttentionMaskInterface()[NAME] is headwise_mask


# Packed documents.


def packed() -> tuple[list[Tensor], dict[str, Any], dict[str, Any]]:
    """Documents one by one, side by side in one row, and where each begins."""
    documents = [tiny.tokens(1, length, seed=length) for length in DOCUMENTS]
    positions = torch.cat([torch.arange(length) for length in DOCUMENTS])
    starts = torch.tensor([0, *DOCUMENTS]).cumsum(0).int()
    row = {"input_ids": torch.cat(documents, 1), "position_ids": positions[None]}
    bounds = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": 8, "max_length_k": 8}
    return documents, row, bounds


def assert_as_if_alone(name: str, **options: Any) -> None:
    """Logits of the row are those of each document by itself, to what eager loses by rounding."""
    documents, row, _ = packed()
    models = family(name)

    def alone(model: Any) -> Tensor:
        return torch.cat([model(input_ids=document).logits for document in documents], 1)

    def run(model: Any) -> Tensor:
        return model(**row, **options).logits if model is models[0] else alone(model)

    with torch.no_grad():
        assert_as_good_as_eager(name, run, alone)


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("name", [name for name in tiny.DECODERS if name != "llama4"])
def test_packed_documents_do_not_see_each_other(name, use_cache):
    assert_as_if_alone(name, use_cache=use_cache, **packed()[2])


@pytest.mark.parametrize("name", ["llama", "mistral, window 2", "gemma3", "llama4"])
def test_position_ids_alone_pack_where_there_is_no_cache(name):
    """transformers reads packing off position ids then, and puts it into the mask; gpt-oss and OPT don't ask for it."""
    assert_as_if_alone(name, use_cache=False)


@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
@torch.no_grad()
def test_position_ids_alone_mean_what_they_mean_to_eager(name):
    """With a cache (the default) no mask of transformers keeps documents apart, on eager neither."""
    _, row, _ = packed()
    assert_as_good_as_eager(name, lambda model: model(**row, use_cache=True).logits)


def test_packing_needs_its_bounds_with_a_cache():
    with pytest.raises(AssertionError):
        assert_as_if_alone("llama", use_cache=True)


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_packed_documents_in_training(name):
    """Gradients of the row are the sum of those of the documents."""
    documents, row, bounds = packed()
    models = tuple(copy.deepcopy(model).requires_grad_(True).train() for model in family(name))
    weighting = torch.randn(tiny.VOCABULARY)

    def gradients(model: Any) -> Tensor:
        model.zero_grad()
        for given in [row | bounds] if model is models[0] else [{"input_ids": document} for document in documents]:
            logits = model(**given).logits
            (logits.log_softmax(-1) @ weighting.to(logits.dtype)).sum().backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    assert_as_good_as_eager(name, gradients, models=models)


def test_a_packed_window_is_cut_within_its_document():
    torch.manual_seed(0)
    whole = call(sliding_window=2, cu_seq_lens_q=torch.tensor([0, 3, 5]), cu_seq_lens_k=torch.tensor([0, 3, 5]))
    position = torch.arange(5)
    behind = position[:, None] - position
    document = (position >= 3).int()
    mask = (behind >= 0) & (behind < 2) & (document[:, None] == document)
    torch.manual_seed(0)
    torch.testing.assert_close(whole, call(mask=mask[None, None]))


def test_packed_chunks_are_refused():
    """Llama 4 with a cache: transformers' mask counts chunks from the start of the row."""
    _, row, bounds = packed()
    message = (
        "headwise attention in Llama4TextAttention: expected no cu_seq_lens_q with chunked attention, whose mask "
        "counts chunks from the start of the row and not of each document; pass position_ids that start again with "
        "each document, and use_cache=False"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        family("llama4")[0](**row, **bounds)
