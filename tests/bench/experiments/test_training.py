"""What small models share: seeds that depend on nothing else, splits by content, and the training loop."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from headwise.bench.experiments.training import Decoder, generator_of, seed_of, seeded, split_of, train
from headwise.nn import GroupedQueryAttention, LatentAttention, RotaryEmbedding

SEED = 27_443_967_899_939_341


def test_seeds_depend_on_every_part_and_on_its_place():
    told = [(1, "data"), (2, "data"), (1, "weights"), ("data", 1), (11,), (1, 1), ("1", "1")]
    assert len({seed_of(*parts) for parts in told}) == len(told)
    assert seed_of(1, "data") == SEED, "seeds are the same on every machine"
    first, second = (torch.rand(3, generator=generator_of(4, "data")) for _ in range(2))
    assert torch.equal(first, second)


def test_seeded_leaves_the_random_numbers_around_it_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with seeded(0, "weights"):
        inside = torch.rand(2)
    assert torch.equal(torch.rand(2), expected)
    torch.manual_seed(99)
    with seeded(0, "weights"):
        assert torch.equal(torch.rand(2), inside)


def test_a_row_has_one_split_and_all_splits_are_as_large():
    rows = torch.randint(7, (8_000, 5), generator=torch.Generator().manual_seed(0))
    splits = split_of(rows)
    assert torch.equal(split_of(rows.flip(0)), splits.flip(0))
    counts = torch.bincount(splits, minlength=8)
    assert len(counts) == 8
    assert (counts - 1000).abs().max() < 150
    # A change of any one place moves rows between splits.
    for place in range(5):
        other = rows.clone()
        other[:, place] = (other[:, place] + 1) % 7
        assert (split_of(other) != splits).float().mean() > 0.5


@pytest.mark.parametrize("mlp", [0, 11])
def test_a_decoder_sees_no_token_that_follows(mlp):
    layers = [
        GroupedQueryAttention(12, 3, 1, rope=RotaryEmbedding(4)),
        LatentAttention(12, 3, nope_head_dim=4, rope_head_dim=2, value_head_dim=4, latent_dim=5),
    ]
    model = Decoder(7, 5, layers, mlp=mlp, positions=9)
    tokens = torch.randint(7, (2, 9))
    changed = tokens.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % 7
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert before.shape == (2, 9, 5)
    torch.testing.assert_close(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6:], after[:, 6:])


def test_training_follows_its_rates_and_tells_its_steps():
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    weights: list[float] = []
    steps: list[int] = []

    def on_step(step: int) -> None:
        steps.append(step)
        weights.append(model.weight.item())
        assert not torch.is_grad_enabled()

    losses = train(
        model, lambda step: model.weight.sum(), steps=10, rate=0.5, warmup=2, decay=True, on_step=on_step
    )  # the gradient is always 1, and so is Adam's step
    assert steps == list(range(11))
    moved = [before - after for before, after in itertools.pairwise(weights)]
    expected = [0.25, 0.5] + [0.25 * (1 + math.cos(math.pi * step / 8)) for step in range(8)]
    assert moved == pytest.approx(expected, abs=1e-5)
    assert losses == pytest.approx(weights[:-1])
