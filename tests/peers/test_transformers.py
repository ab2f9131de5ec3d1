"""transformers as outside judge: every architecture gives on headwise what it gives on its own eager attention.

What eager loses against itself in float64 is the measure; see ``tests/models/families.py``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models import tiny
from tests.models.families import (
    ALL,
    ANSWER,
    BATCH,
    LENGTH,
    assert_as_good_as_eager,
    copies_of,
    family,
    inputs_of,
    padded,
    source_of,
)

NEW, BEAMS = 7, 3
# Appends to the cache: a prompt, then several tokens at once, then one after the other.
CHUNKS = (3, 4, 1, 1, 2, 1, 1)
# Every way in which a model holds a window; LENGTH is the length of the prompt.
WINDOWED: dict[str, Callable[[int | None], nn.Module]] = {
    "mistral": tiny.mistral,
    "qwen2": tiny.qwen2,
    "phi3": tiny.phi3,
    "starcoder2": tiny.starcoder2,
}
WINDOWS = (1, 2, 5, LENGTH - 1, LENGTH, LENGTH + 1)


def in_chunks(model: Any, tokens: Tensor, **options: Any) -> Tensor:
    """Logits ``[B, L, vocabulary]`` of tokens that come a few at a time, with a cache."""
    assert sum(CHUNKS) == tokens.shape[1]
    logits, cache = [], None
    for chunk in tokens.split(CHUNKS, dim=1):
        output = model(**{model_input(model): chunk}, past_key_values=cache, use_cache=True, **options)
        cache = output.past_key_values
        logits.append(output.logits)
    return torch.cat(logits, dim=1)


def model_input(model: Any) -> str:
    return "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"


def test_twelve_architectures_at_least():
    kinds = {type(family(name)[0]).__name__ for name in ALL}
    assert len(kinds) >= 12
    assert len(kinds) == len(ALL) - 1  # Mistral stands there with two windows


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_logits(name):
    assert_as_good_as_eager(name, lambda model: model(**inputs_of(name, model)).logits)


@pytest.mark.parametrize("name", [*tiny.DECODERS, *tiny.ENCODERS])
@torch.no_grad()
def test_padding(name):
    left = name in tiny.DECODERS
    tokens, options = padded(left)
    kept = options["attention_mask"].bool()  # what padding itself attends to is nobody's business
    if left and name != "opt":  # which counts positions itself
        options["position_ids"] = (kept.cumsum(1) - 1).clamp(min=0)

    def alone(model: Any) -> Tensor:
        """Every sequence by itself, without padding."""
        rows = zip(tokens, kept, strict=True)
        return torch.cat([model(input_ids=row[mask][None]).logits[0] for row, mask in rows])

    assert_as_good_as_eager(name, lambda model: model(input_ids=tokens, **options).logits[kept], alone)


@pytest.mark.parametrize("name", tiny.DECODERS)
@torch.no_grad()
def test_decoding_with_a_cache(name):
    tokens = tiny.tokens(BATCH, LENGTH)
    assert_as_good_as_eager(name, lambda model: in_chunks(model, tokens), lambda model: model(input_ids=tokens).logits)


@pytest.mark.parametrize("name", tiny.ENCODER_DECODERS)
@torch.no_grad()
def test_decoding_with_an_encoder_behind_it(name):
    answer = tiny.tokens(BATCH, LENGTH, seed=2)

    def steps(model: Any) -> Tensor:
        source = source_of(name, model, pad=True)
        encoded = model.get_encoder()(**source)
        mask = {} if name == "whisper" else {"attention_mask": source["attention_mask"]}
        return in_chunks(model, answer, encoder_outputs=encoded, **mask)

    assert_as_good_as_eager(name, steps)


@pytest.mark.parametrize("name", ["t5", "bart"])
@torch.no_grad()
def test_cross_attention_past_padding(name):
    answer = tiny.tokens(BATCH, ANSWER, seed=2)

    def run(model: Any) -> Tensor:
        return model(**source_of(name, model, pad=True), decoder_input_ids=answer).logits

    def alone(model: Any) -> Tensor:
        tokens, options = padded(left=False)
        rows = zip(tokens, options["attention_mask"].bool(), answer, strict=True)
        return torch.cat(
            [model(input_ids=row[mask][None], decoder_input_ids=one[None]).logits for row, mask, one in rows]
        )

    assert_as_good_as_eager(name, run, alone)


@pytest.mark.parametrize("name", tiny.ENCODER_DECODERS)
@torch.no_grad()
def test_padding_in_the_decoder(name):
    tokens, options = padded(left=False)
    kept = options["attention_mask"].bool()

    def run(model: Any) -> Tensor:
        answers = {"decoder_input_ids": tokens, "decoder_attention_mask": options["attention_mask"]}
        return model(**source_of(name, model), **answers).logits[kept]

    assert_as_good_as_eager(name, run)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", WINDOWED)
@torch.no_grad()
def test_windows_around_the_length_of_the_prompt(name, window):
    """A prompt in one piece, in pieces with a cache that keeps window - 1 tokens, and with padding on the left."""
    models = copies_of(tiny.build(lambda: WINDOWED[name](window)))
    tokens = tiny.tokens(BATCH, LENGTH)
    assert_as_good_as_eager(name, lambda model: model(input_ids=tokens).logits, models=models)
    if window == 1:  # transformers' own cache gets this wrong, see test_wounds.py
        return
    assert_as_good_as_eager(
        name, lambda model: in_chunks(model, tokens), lambda model: model(input_ids=tokens).logits, models
    )
    settings = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    tokens, options = padded(left=True)
    expected = models[1].generate(tokens, **settings, **options)
    assert models[0].generate(tokens, **settings, **options).tolist() == expected.tolist()


@torch.no_grad()
def test_a_window_that_is_off_by_one_would_show():
    tokens = tiny.tokens(BATCH, LENGTH)
    logits = []
    for window in (*WINDOWS, None):
        model = tiny.build(lambda window=window: tiny.mistral(window))
        model.set_attn_implementation("headwise")
        logits.append(model(input_ids=tokens).logits)
    steps = [(one - other).abs().max() for one, other in pairwise(logits)]
    assert [bool(step > 1e-3) for step in steps] == [True, True, True, True, False, False]


@pytest.mark.parametrize("cache_implementation", [None, "static"])
@pytest.mark.parametrize("name", tiny.DECODERS)
def test_greedy_generation(name, cache_implementation):
    tokens, options = padded(left=True)
    if cache_implementation:
        options["cache_implementation"] = cache_implementation
    assert_same_tokens(name, tokens, disable_compile=True, **options)


@pytest.mark.parametrize("name", tiny.DECODERS)
def test_beam_search(name):
    tokens, options = padded(left=True)
    assert_same_tokens(name, tokens, num_beams=BEAMS, num_return_sequences=BEAMS, **options)


@pytest.mark.parametrize("beams", [1, BEAMS])
@pytest.mark.parametrize("name", tiny.ENCODER_DECODERS)
def test_generation_from_an_encoder(name, beams):
    source = source_of(name, family(name)[0], pad=True)
    tokens = source.pop("input_ids" if "input_ids" in source else "input_features")
    assert_same_tokens(name, tokens, num_beams=beams, num_return_sequences=beams, **source)


def assert_same_tokens(name: str, tokens: Tensor, **options: Any) -> None:
    own, eager, _ = family(name)
    settings = {"max_new_tokens": NEW, "do_sample": False} | options
    expected = eager.generate(tokens, **settings)
    assert expected.shape[0] == BATCH * options.get("num_return_sequences", 1)
    assert expected.shape[1] >= NEW
    assert own.generate(tokens, **settings).tolist() == expected.tolist()


@pytest.mark.parametrize("name", ALL)
def test_gradients_in_training(name):
    models = tuple(copy.deepcopy(model).requires_grad_(True).train() for model in family(name))
    weighting = torch.randn(tiny.VOCABULARY, generator=torch.Generator().manual_seed(5))

    def gradients(model: Any) -> Tensor:
        logits = model(**inputs_of(name, model)).logits
        (logits.log_softmax(-1) * weighting.to(logits.dtype)).mean().backward()
        parameters = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        return torch.cat([gradient.flatten() for gradient in parameters])

    assert_as_good_as_eager(name, gradients, models=models)
    attention = [
        part for part, _ in models[0].named_parameters() if "attn" in part.lower() or "attention" in part.lower()
    ]
    assert all(models[0].get_parameter(part).grad is not None for part in attention)


@pytest.mark.parametrize("name", ["llama", "mistral, window 2", "gemma2"])
@torch.no_grad()
def test_a_mask_of_four_axes(name):
    tokens = tiny.tokens(BATCH, LENGTH)
    visible = torch.rand(BATCH, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(3)) < 0.5
    visible = visible.tril() | torch.eye(LENGTH, dtype=torch.bool)

    def run(model: Any) -> Tensor:
        mask = torch.zeros(visible.shape, dtype=model.dtype).masked_fill(~visible, torch.finfo(model.dtype).min)
        return model(input_ids=tokens, attention_mask=mask).logits

    assert_as_good_as_eager(name, run)


def test_without_the_mask_function_padding_would_be_dropped(monkeypatch):
    """What test_padding guards against: transformers passes no mask to an implementation whose masks it can't make."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    monkeypatch.delitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, "headwise")
    with pytest.raises(AssertionError):
        test_padding("llama")
