"""What copying tells that text does not, and intervals over documents."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch
from torch import nn

from headwise.bench.verification import quality as quality_module
from headwise.bench.verification.estimates import estimate
from headwise.bench.verification.quality import compare_copying, compare_text, copying_questions
from headwise.bench.verification.settings import Settings
from headwise.intervals import bootstrap_interval
from headwise.layout import HeadLayout
from headwise.models import Checkpoint
from headwise.models.corpus import Rows
from headwise.models.weights import copy_of
from tests.study.tiny import WORDS, tokenizer

VOCABULARY = WORDS + 5


class Copier(nn.Module):
    """A bigram model that says what followed the same token before, where there was one; without ``copies`` it forgets.

    On rows without repeats both are the same function.
    """

    def __init__(self, copies: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.bigrams = nn.Parameter(torch.randn(VOCABULARY, VOCABULARY, generator=generator), requires_grad=False)
        self.copies = copies
        self.config = types.SimpleNamespace(vocab_size=VOCABULARY, bos_token_id=1)
        self.config.get_text_config = lambda: self.config

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> types.SimpleNamespace:
        logits = self.bigrams[input_ids].clone()
        for row, tokens in enumerate(input_ids.tolist() if self.copies else ()):
            followed: dict[int, int] = {}
            for place, token in enumerate(tokens):
                if token in followed:
                    logits[row, place, followed[token]] += 20
                if place:
                    followed[tokens[place - 1]] = token
        return types.SimpleNamespace(logits=logits)


def copier(copies: bool) -> Checkpoint:
    return Checkpoint(
        Copier(copies), tokenizer(wrapped=False), "copier", "made", "next", layouts=(HeadLayout(1, 1, 2),)
    )


def test_lost_copying_shows_on_repeated_tokens_and_not_on_text():
    first, second = copier(True), copier(False)
    settings = Settings(copies=5)
    copying = compare_copying(copying_questions(first, settings), first, second, settings)
    # The first token of the second copy, which nothing tells, is not asked for.
    assert copying.of("correct_a").value == 1
    assert copying.of("correct_b").value < 0.1
    assert copying.loss_difference.low > 3
    assert copying.each.positions == 5 * 49
    generator = torch.Generator().manual_seed(2)
    tokens = torch.stack([torch.randperm(WORDS, generator=generator)[:37] + 5 for _ in range(9)])
    text = compare_text("text", Rows(tokens, tuple(range(9)), tuple("abcdefghi")), first, second, settings)
    assert text.loss_difference == estimate(np.zeros(9), 0)
    assert text.of("kl").value == 0
    assert text.each.positions == 9 * 36


def test_differences_are_paired_by_document(llama, pooled):
    tokens = torch.randint(5, 216, (11, 23), generator=torch.Generator().manual_seed(1))
    units = (0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3)
    quality = compare_text("text", Rows(tokens, units, tuple("abcdefg")), llama, pooled, Settings(seed=3))
    difference = quality.each.loss_b - quality.each.loss_a
    assert len(difference) == 7
    low, high = bootstrap_interval(difference, 3)
    assert vars(quality.loss_difference) == {"value": difference.mean(), "low": low, "high": high}
    right = quality.each.correct_b - quality.each.correct_a
    low, high = bootstrap_interval(right, 3)
    assert vars(quality.accuracy_difference) == {"value": right.mean(), "low": low, "high": high}
    assert quality.of("kl") == estimate(quality.each.kl, 3) != estimate(quality.each.kl, 0)
    record = quality.record()
    assert record["documents"] == 7
    assert record["positions"] == 11 * 22
    assert [row["document"] for row in record["by_document"]] == list("abcdefg")
    assert [row["loss_b"] - row["loss_a"] for row in record["by_document"]] == difference.tolist()


def test_a_masked_model_is_asked_for_masked_tokens(bert):
    tokens = torch.randint(5, 216, (3, 41), generator=torch.Generator().manual_seed(1))
    tokens[:, 0], tokens[:, -1] = 1, 2
    quality = compare_text("text", Rows(tokens, (0, 1, 2), tuple("abc")), bert, copy_of(bert), Settings())
    assert 3 <= quality.each.positions < 3 * 20
    assert quality.loss_difference.value == 0


def test_masks_differ_between_batches_and_seeds(monkeypatch, bert):
    """Ten equal rows: eight and two that are asked together."""
    asked = []
    monkeypatch.setattr(quality_module, "compare", lambda _, __, questions, ___: asked.append(questions))
    tokens = torch.randint(5, 216, (41,), generator=torch.Generator().manual_seed(1)).expand(10, -1)
    rows = Rows(tokens, tuple(range(10)), tuple("abcdefghij"))
    for seed in (0, 7):
        compare_text("text", rows, bert, bert, Settings(seed=seed))
    (first, second), (other, _) = asked
    assert [len(question.inputs) for question in (first, second)] == [8, 2]
    assert not torch.equal(first.labels[:2], second.labels)
    assert not torch.equal(first.labels, other.labels)


def test_the_seed_draws_the_tokens_that_are_copied():
    first, again, other = (copying_questions(copier(True), Settings(copies=2, seed=seed)) for seed in (3, 3, 4))
    assert torch.equal(first[0].inputs, again[0].inputs)
    assert not torch.equal(first[0].inputs, other[0].inputs)


def test_a_single_document_has_no_interval():
    single = estimate(np.array([2.0]), 0)
    assert single.record() == {"value": 2.0, "low": None, "high": None}
    assert np.isnan(single.low)
    assert estimate(np.array([1.0, 3.0]), 0).record()["value"] == pytest.approx(2)
