"""Prefix: the layers before a change are not run again, and not one bit of the result moves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.models import Checkpoint
from headwise.models.interface import NAME, register
from headwise.models.prefix import Prefix
from tests.models import tiny

register()
TOKENS = tiny.tokens(2, 11)
SKIPPING = ["llama", "gemma3", "gpt-oss", "gpt2", "gpt-neox", "bert"]


def open_tiny(name: str) -> Checkpoint:
    model = tiny.build((tiny.DECODERS | tiny.ENCODERS)[name])
    model.set_attn_implementation(NAME)
    return Checkpoint(model, None, name=name, source=name, objective=None)


@pytest.fixture(scope="module", params=SKIPPING)
def checkpoint(request) -> Checkpoint:
    return open_tiny(request.param)


@pytest.fixture
def llama() -> Checkpoint:
    return open_tiny("llama")


def logits(checkpoint: Checkpoint, tokens: Tensor = TOKENS) -> Tensor:
    with torch.no_grad():
        return checkpoint.forward(tokens).logits


def layers_run(checkpoint: Checkpoint) -> tuple[list[int], Tensor]:
    """Which attention layers a forward pass runs, and what it gives."""
    layers: list[int] = []
    with checkpoint.observe(lambda call: layers.append(call.layer)):
        output = logits(checkpoint)
    return layers, output


def test_ablations_at_each_layer_are_the_same_to_the_bit(checkpoint):
    prefix = Prefix(checkpoint, TOKENS)
    assert prefix.skips
    for layer in range(checkpoint.num_layers):
        with checkpoint.ablate([(layer, 1), (tiny.LAYERS - 1, 0)]):
            _, expected = layers_run(checkpoint)
            with prefix.before(layer):
                layers, got = layers_run(checkpoint)
        assert torch.equal(got, expected)
        assert layers == list(range(layer, tiny.LAYERS))
        assert not torch.equal(got, logits(checkpoint))


def test_everything_is_as_before_afterwards(checkpoint):
    before = logits(checkpoint)
    prefix = Prefix(checkpoint, TOKENS)
    with pytest.raises(KeyboardInterrupt), prefix.before(2):
        interrupted()
    assert not [module for module in checkpoint.model.modules() if "forward" in module.__dict__]
    hooks = [module for module in checkpoint.model.modules() if module._forward_hooks]
    assert not hooks
    layers, after = layers_run(checkpoint)
    assert layers == list(range(tiny.LAYERS))
    assert torch.equal(after, before)


def interrupted() -> None:
    raise KeyboardInterrupt


def test_a_forward_that_was_there_before_comes_back(llama):
    """accelerate puts a forward of its own on modules that it moves between devices."""
    block = llama.model.model.layers[0]
    original = block.forward
    block.forward = lambda *inputs, **options: original(*inputs, **options)
    mine = block.forward
    with Prefix(llama, TOKENS).before(2):
        assert block.forward is not mine
    assert block.forward is mine


def test_hooks_are_removed_when_recording_fails(llama):
    with pytest.raises(IndexError):
        Prefix(llama, torch.tensor([[tiny.VOCABULARY]]))
    assert not [module for module in llama.model.modules() if module._forward_hooks]


def test_one_shared_block_runs_as_a_whole():
    albert = open_tiny("albert")
    prefix = Prefix(albert, TOKENS)
    assert not prefix.skips
    for layer in range(tiny.LAYERS):
        with albert.ablate([(layer, 1)]):
            _, expected = layers_run(albert)
            with prefix.before(layer):
                layers, got = layers_run(albert)
        assert layers == list(range(tiny.LAYERS))
        assert torch.equal(got, expected)


@pytest.fixture
def side_channel(llama) -> Iterator[Checkpoint]:
    """A model whose last block also reads what the first one left elsewhere."""
    blocks = llama.model.model.layers
    left: list[Tensor] = []

    def leave(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        left.append(output)

    def read(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        return output + left.pop()

    handles = [blocks[0].self_attn.o_proj.register_forward_hook(leave), blocks[2].register_forward_hook(read)]
    yield llama
    for handle in handles:
        handle.remove()


def test_blocks_that_hand_on_more_than_their_output_run_as_a_whole(side_channel):
    prefix = Prefix(side_channel, TOKENS)
    assert not prefix.skips
    expected = logits(side_channel)
    with prefix.before(2):
        assert torch.equal(logits(side_channel), expected)


def test_other_tokens_are_refused(llama):
    prefix = Prefix(llama, TOKENS)
    text = "^Prefix: called on other tokens than those it was recorded on; make another Prefix$"
    with pytest.raises(ValueError, match=text), prefix.before(1):
        logits(llama, TOKENS.flip(1))
    with pytest.raises(ValueError, match=text), prefix.before(1):
        logits(llama, TOKENS[:, :5])


def test_gradients_go_through_what_is_run():
    # GPT-2, whose norms keep the recorded output itself for the way back as soon as weights want a gradient.
    checkpoint = open_tiny("gpt2")
    checkpoint.model.requires_grad_(True)
    gates = torch.ones(tiny.LAYERS, 2, checkpoint.max_heads, requires_grad=True)
    with Prefix(checkpoint, TOKENS).before(1), checkpoint.gate(gates):
        checkpoint.forward(TOKENS).logits.square().sum().backward()
    assert gates.grad is not None
    assert gates.grad[0].abs().max() == 0
    assert gates.grad[1:].abs().amin() > 0
