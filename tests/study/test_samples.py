"""Inputs of a study: repeated tokens and text side by side."""

from __future__ import annotations

import pytest
import torch

from headwise.errors import UserError
from headwise.models.documents import Piece
from headwise.study.samples import PERIOD, count_tokens, repeated_samples, text_samples


def _drawn(checkpoint, **options):
    return repeated_samples(checkpoint.tokenizer, checkpoint.model.config, 7, 3, seed=5, **options)


def test_the_second_half_repeats_the_first_after_one_special_token(llama):
    samples = _drawn(llama)
    assert [sample.tokens.shape for sample in samples] == [(3, 101), (3, 101), (1, 101)]
    assert [unit for sample in samples for unit in sample.units] == list(range(7))
    for row in torch.cat([sample.tokens for sample in samples]):
        assert row[0] == 1
        first, second = row[1 : 1 + PERIOD], row[1 + PERIOD :]
        assert torch.equal(first, second)
        assert first.unique().numel() == PERIOD, "an accidental repeat would give a second place to look"
        assert not set(first.tolist()) & set(llama.tokenizer.all_special_ids)


def test_losses_count_over_the_second_copy_and_copies_point_at_the_first(llama):
    sample = _drawn(llama)[0]
    assert sample.counted.nonzero().squeeze(1).tolist() == list(range(51, 101))
    assert sample.copy_index is not None
    second = sample.counted
    assert torch.equal(sample.tokens[:, second], sample.tokens[:, sample.copy_index[second]])
    assert (sample.copy_index[~second] == -1).all()


def test_the_unrelated_half_has_nothing_to_copy(llama):
    for row in torch.cat([sample.tokens for sample in _drawn(llama, unrelated=True)]):
        assert row.unique().numel() == row.numel()


def test_an_encoder_keeps_its_special_tokens_around_the_sample(bert):
    sample = _drawn(bert)[0]
    assert sample.tokens.shape == (3, 102)
    assert (sample.tokens[:, 0] == 1).all()
    assert (sample.tokens[:, -1] == 2).all()
    assert not sample.counted[-1]


def test_another_seed_draws_other_tokens_and_the_same_seed_the_same(llama):
    tokens = _drawn(llama)[0].tokens
    assert torch.equal(tokens, _drawn(llama)[0].tokens)
    other = repeated_samples(llama.tokenizer, llama.model.config, 7, 3, seed=6)[0].tokens
    assert not torch.equal(tokens, other)


def test_a_vocabulary_that_is_too_small_is_refused(llama):
    class Config:
        vocab_size = 60
        bos_token_id = 1

        def get_text_config(self):
            return self

    with pytest.raises(UserError, match="a vocabulary of 56 tokens is too small, 100 are needed"):
        repeated_samples(llama.tokenizer, Config(), 2, 2, seed=0)


def test_pieces_of_one_length_stand_side_by_side_under_their_own_numbers():
    pieces = [
        Piece(str(number), tuple(range(number, number + length))) for number, length in enumerate((23, 19, 23, 23))
    ]
    samples = text_samples(pieces, batch=2)
    assert [(sample.tokens.shape, sample.units) for sample in samples] == [
        ((1, 19), (1,)), ((2, 23), (0, 2)), ((1, 23), (3,)),
    ]  # fmt: skip
    assert samples[1].tokens[1].tolist() == list(range(2, 25))
    assert count_tokens(samples) == 88
    assert [sample.tokens.shape for sample in text_samples(pieces, batch=8, length=17)] == [(4, 17)]
