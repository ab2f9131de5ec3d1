"""Rows of random tokens that repeat, among rows of text."""

from __future__ import annotations

import torch
from transformers import LlamaConfig

from headwise.models.copies import mixed_with_copies
from headwise.models.corpus import Rows
from tests.study.tiny import tokenizer

CONFIG = LlamaConfig(vocab_size=216, bos_token_id=1)
TEXT = Rows(torch.arange(30 * 41).view(30, 41) + 300, tuple(row // 3 for row in range(30)), tuple("abcdefghij"))


def random_rows(rows: Rows) -> list[list[int]]:
    return [row for row in rows.tokens.tolist() if row[1] < 300]


def test_the_share_of_random_rows_is_that_of_all_and_the_text_is_kept():
    mixed = mixed_with_copies(TEXT, tokenizer(wrapped=False), CONFIG, share=0.25, seed=3)
    assert len(mixed) == 40
    assert len(random_rows(mixed)) == 10
    kept = {tuple(row) for row in mixed.tokens.tolist()} & {tuple(row) for row in TEXT.tokens.tolist()}
    assert len(kept) == 30
    text_of = {tuple(row): unit for row, unit in zip(TEXT.tokens.tolist(), TEXT.units, strict=True)}
    for row, unit in zip(mixed.tokens.tolist(), mixed.units, strict=True):
        assert unit == text_of.get(tuple(row), unit)
        assert (unit >= 10) == (tuple(row) not in text_of)
    assert len(set(mixed.units)) == len(mixed.documents) == 20
    assert mixed.documents[10] == "random tokens, seed 3, row 0"


def test_every_random_row_repeats_a_stretch_of_ordinary_tokens_after_the_first_one():
    for row in random_rows(mixed_with_copies(TEXT, tokenizer(wrapped=False), CONFIG, share=0.5, seed=0)):
        assert row[0] == 1  # the model's own beginning
        assert all(token >= 5 for token in row[1:])  # no special ones
        periods = [period for period in range(8, 21) if row[1:-period] == row[1 + period :]]
        assert periods
        assert len(row) == 41


def test_special_tokens_stand_around_random_rows_as_around_text():
    mixed = mixed_with_copies(TEXT, tokenizer(wrapped=True), CONFIG, share=0.1, seed=0)
    assert {(row[0], row[-1]) for row in random_rows(mixed)} == {(1, 2)}


def test_a_seed_gives_the_same_rows_and_no_share_gives_none():
    plain = tokenizer(wrapped=False)
    made = [mixed_with_copies(TEXT, plain, CONFIG, share=0.2, seed=seed).tokens for seed in (1, 1, 2)]
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
    assert mixed_with_copies(TEXT, plain, CONFIG, share=0.0, seed=1) is TEXT
