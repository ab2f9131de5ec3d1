"""Rotary pairs that turn like chosen ones of another embedding."""

from __future__ import annotations

import pytest
import torch

from headwise.nn import RotaryEmbedding
from headwise.nn.rope_selected import SelectedRotaryEmbedding
from tests.helpers.compare import assert_same

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize("scaling", [None, YARN], ids=["plain", "yarn"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_pair_turns_like_the_one_it_names(dtype, scaling):
    source = RotaryEmbedding(11, 50.0, rotary_dim=10, scaling=scaling)
    pairs = (3, 0, 3, 1)
    rope = SelectedRotaryEmbedding(source, pairs)
    positions = torch.tensor([0, 5, 8191])
    inputs = torch.randn(2, 3, 3, 8, dtype=dtype)
    got = rope(inputs, positions)
    for place, pair in enumerate(pairs):
        one = torch.zeros(2, 3, 3, 11, dtype=dtype)
        one[..., pair], one[..., pair + 5] = inputs[..., 2 * place], inputs[..., 2 * place + 1]
        turned = source(one, positions)
        assert_same(got[..., 2 * place : 2 * place + 2], torch.stack([turned[..., pair], turned[..., pair + 5]], -1))


def test_frequencies_survive_casts_and_halves_can_stand_apart():
    source = RotaryEmbedding(10, 50.0)
    rope = SelectedRotaryEmbedding(source, [4, 2, 2], interleaved=False).half()
    assert torch.equal(rope.inverse_frequencies, source.inverse_frequencies[[4, 2, 2]])
    inputs, positions = torch.randn(1, 1, 2, 6), torch.tensor([3, 7])
    other = SelectedRotaryEmbedding(source, [4, 2, 2])
    order = [0, 3, 1, 4, 2, 5]
    assert_same(rope(inputs, positions)[..., order], other(inputs[..., order], positions))
    assert "2 of 5 frequencies" in repr(rope)


def test_pairs_that_are_not_there_are_refused():
    source = RotaryEmbedding(10, 50.0)
    for pairs in ([], [0, 5], [-1]):
        with pytest.raises(ValueError, match="SelectedRotaryEmbedding: expected pairs from 0 to 4, got"):
            SelectedRotaryEmbedding(source, pairs)
