"""Fitting one layer alone."""

from __future__ import annotations

import pytest
import torch

from headwise.surgery.sharing.fit import fit_layer
from headwise.surgery.walk import Walk
from tests.surgery.decoders import decoder, rows

JUDGES = torch.arange(24) % 4 == 3


def prepared(name: str = "llama", noise: float = 0.3):
    """A layer whose projections are off by some noise, its inputs, and what it gave before."""
    model = decoder(name)
    walk = Walk(model, rows().tokens)
    walk.advance(0)
    inputs = walk.inputs(1)
    target = walk.attend(1, inputs)
    attention = walk.attention(1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in attention.module.parameters():
            if parameter.ndim > 1:
                parameter += noise * parameter.std() * torch.randn(parameter.shape, generator=generator)
    return model, attention, inputs, target


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma2", "phi3", "qwen3", "mistral, window 5"])
def test_a_fit_undoes_most_of_a_disturbance_on_rows_that_it_did_not_see(name):
    _, attention, inputs, target = prepared(name)
    fit = fit_layer(attention, inputs, target, JUDGES, steps=60, rate=0.03, seed=0)
    assert fit.before > 0.01
    assert fit.after < 0.4 * fit.before
    error = (attention(inputs[JUDGES]) - target[JUDGES]).square().sum() / target[JUDGES].square().sum()
    assert float(error) == pytest.approx(fit.after, rel=1e-4)


def test_nothing_but_the_projections_changes_and_nothing_is_left_behind():
    model, attention, inputs, target = prepared("qwen3")
    before = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
    fit_layer(attention, inputs, target, JUDGES, steps=5, rate=0.03, seed=0)
    changed = {name for name, tensor in model.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {f"model.layers.1.self_attn.{name}_proj.weight" for name in "qkvo"}
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in model.model.parameters())


@pytest.mark.parametrize(("noise", "rate"), [(0.3, 50.0), (0.0, 0.03)])
def test_what_does_not_help_leaves_every_bit_as_it_was(noise, rate):
    """Steps that are too large, and a layer that is right already, where only rounding is left to be fitted."""
    _, attention, inputs, target = prepared(noise=noise)
    before = [parameter.clone() for parameter in attention.module.parameters()]
    fit = fit_layer(attention, inputs, target, JUDGES, steps=7, rate=rate, seed=0)
    assert fit.after == fit.before
    assert all(torch.equal(*pair) for pair in zip(before, attention.module.parameters(), strict=True))


def test_a_seed_gives_the_same_fit():
    results = []
    for seed in (1, 1, 2):
        _, attention, inputs, target = prepared()
        fit_layer(
            attention,
            inputs.repeat(40, 1, 1),
            target.repeat(40, 1, 1),
            JUDGES.repeat(40),
            steps=5,
            rate=0.03,
            seed=seed,
        )
        results.append(torch.cat([parameter.flatten() for parameter in attention.module.parameters()]))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
