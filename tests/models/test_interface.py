"""headwise inside transformers: the same numbers as stock eager attention, for every kind of attention and mask."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.models.interface import NAME, register
from tests.models import tiny

register()
BATCH, LENGTH, PADDING, NEW = 2, 13, 3, 7
ALL = tiny.DECODERS | tiny.ENCODERS


@cache
def family(name: str) -> tuple[Any, Any, Any]:
    """Three copies of one tiny model: headwise, eager, and eager in float64."""
    model = tiny.build(ALL.get(name, tiny.T5))
    copies = [copy.deepcopy(model) for _ in range(3)]
    for one, implementation in zip(copies, (NAME, "eager", "eager"), strict=True):
        one.set_attn_implementation(implementation)
    return copies[0], copies[1], copies[2].double()


def assert_as_good_as_eager(
    name: str, run: Callable[[Any], Tensor], exactly: Callable[[Any], Tensor] | None = None
) -> None:
    """headwise is no further from eager in float64 than four times as far as eager in the same dtype is.

    ``exactly`` is what to run in float64, if that is something else (eager has NaN there for rows that see nothing).
    """
    models = family(name)
    with torch.no_grad():
        own, eager, exact = run(models[0]), run(models[1]), (exactly or run)(models[2])
    assert own.shape == eager.shape
    assert own.dtype == eager.dtype
    budget = 4 * (eager.double() - exact.double()).abs().max()
    assert budget < 1e-3, f"{name}: eager alone is off by {budget:.2g}: nothing can be told"
    assert (own.double() - exact.double()).abs().max() <= budget


def padded(left: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """Two sequences of different lengths, padded to the same one."""
    tokens = tiny.tokens(BATCH, LENGTH + PADDING)
    mask = torch.ones_like(tokens)
    hidden = slice(None, PADDING) if left else slice(-PADDING, None)
    tokens[0, hidden] = 0
    mask[0, hidden] = 0
    return tokens, {"attention_mask": mask}


@pytest.mark.parametrize("name", ALL)
def test_logits(name):
    tokens = tiny.tokens(BATCH, LENGTH)
    assert_as_good_as_eager(name, lambda model: model(input_ids=tokens).logits)


@pytest.mark.parametrize("name", ALL)
def test_padding(name):
    left = name in tiny.DECODERS
    tokens, options = padded(left)
    kept = options["attention_mask"].bool()  # what padding itself attends to is nobody's business
    if left:
        options["position_ids"] = (kept.cumsum(1) - 1).clamp(min=0)

    def alone(model: Any) -> Tensor:
        """Every sequence by itself, without padding."""
        rows = zip(tokens, kept, strict=True)
        return torch.cat([model(input_ids=row[mask][None]).logits[0] for row, mask in rows])

    assert_as_good_as_eager(name, lambda model: model(input_ids=tokens, **options).logits[kept], alone)


@pytest.mark.parametrize("name", tiny.DECODERS)
def test_decoding_step_by_step(name):
    tokens = tiny.tokens(BATCH, LENGTH)

    def steps(model: Any) -> Tensor:
        output = model(input_ids=tokens[:, :PADDING], use_cache=True)
        logits = [output.logits]
        for position in range(PADDING, LENGTH):
            output = model(
                input_ids=tokens[:, position : position + 1], past_key_values=output.past_key_values, use_cache=True
            )
            logits.append(output.logits)
        return torch.cat(logits, dim=1)

    assert_as_good_as_eager(name, steps)


@pytest.mark.parametrize("cache_implementation", [None, "static"])
@pytest.mark.parametrize("name", tiny.DECODERS)
def test_greedy_generation(name, cache_implementation):
    tokens, options = padded(left=True)
    if cache_implementation:
        options["cache_implementation"] = cache_implementation
    own, eager, _ = family(name)
    settings = {"max_new_tokens": NEW, "do_sample": False, "disable_compile": True}
    expected = eager.generate(tokens, **settings, **options)
    assert expected.shape == (BATCH, LENGTH + PADDING + NEW)
    assert own.generate(tokens, **settings, **options).tolist() == expected.tolist()


@pytest.mark.parametrize("name", [*ALL, "t5"])
def test_weights_on_request(name):
    tokens = tiny.tokens(BATCH, LENGTH)
    options = {"decoder_input_ids": tiny.tokens(BATCH, 5, seed=2)} if name == "t5" else {}
    fields = ["decoder_attentions", "cross_attentions", "encoder_attentions"] if name == "t5" else ["attentions"]

    def weights(model: Any) -> Tensor:
        output = model(input_ids=tokens, output_attentions=True, **options)
        assert [len(output[field]) for field in fields] == [tiny.LAYERS] * len(fields)
        assert output[fields[0]][0].shape[:2] == (BATCH, model.config.num_attention_heads)
        return torch.cat([layer.flatten() for field in fields for layer in output[field]])

    assert_as_good_as_eager(name, weights)


def test_no_weights_unless_asked_for():
    model, _, _ = family("gpt2")
    assert model(input_ids=tiny.tokens(1, 3)).attentions is None


def test_t5_with_position_bias_and_padding():
    tokens, options = padded(left=False)
    answer = tiny.tokens(BATCH, 5, seed=2)
    assert_as_good_as_eager("t5", lambda model: model(input_ids=tokens, decoder_input_ids=answer, **options).logits)


def test_t5_generation():
    tokens, options = padded(left=False)
    own, eager, _ = family("t5")
    expected = eager.generate(tokens, max_new_tokens=NEW, do_sample=False, **options)
    assert own.generate(tokens, max_new_tokens=NEW, do_sample=False, **options).tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["llama", "mistral, window 2", "gemma2"])
def test_a_mask_of_four_axes(name):
    tokens = tiny.tokens(BATCH, LENGTH)
    visible = torch.rand(BATCH, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(3)) < 0.5
    visible = visible.tril() | torch.eye(LENGTH, dtype=torch.bool)

    def run(model: Any) -> Tensor:
        mask = torch.zeros(visible.shape, dtype=model.dtype).masked_fill(~visible, torch.finfo(model.dtype).min)
        return model(input_ids=tokens, attention_mask=mask).logits

    assert_as_good_as_eager(name, run)


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
    "packed": (
        {"cu_seq_lens_q": torch.tensor([0, 3, 5])},
        "cu_seq_lens_q (packed sequences) is not supported; pad the batch instead",
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


def test_training_with_attention_dropout_is_refused_and_without_it_gives_gradients():
    model = copy.deepcopy(family("llama")[0]).requires_grad_(True).train()
    tokens = tiny.tokens(BATCH, LENGTH)
    model(input_ids=tokens, labels=tokens).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    with pytest.raises(ValueError, match=r"^headwise attention in LlamaAttention: attention dropout 0\.1"):
        model(input_ids=tokens)


def test_registering_twice_changes_nothing():
    from transformers import AttentionInterface, AttentionMaskInterface

    from headwise.models.interface import headwise_attention, headwise_mask

    register()
    assert AttentionInterface()[NAME] is headwise_attention
    assert AttentionMaskInterface()[NAME] is headwise_mask


def test_without_the_mask_function_padding_would_be_dropped(monkeypatch):
    """What test_padding guards against: transformers passes no mask to an implementation whose masks it can't make."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    monkeypatch.delitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, NAME)
    with pytest.raises(AssertionError):
        test_padding("llama")
