"""Walking a model block by block gives what the model gives."""

from __future__ import annotations

import pytest
import torch

from headwise.errors import UserError
from headwise.surgery.walk import Walk
from tests.models import tiny
from tests.surgery.decoders import SHARING, decoder, rows

DECODERS = [*SHARING, "qwen3", "gpt2", "gpt-neox"]


@pytest.mark.parametrize("name", DECODERS)
def test_inputs_and_outputs_of_every_layer_are_those_of_a_forward_pass(name):
    model, tokens = decoder(name), rows(7, 13).tokens
    seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    handles = []
    for module, (layer,) in model.attention_layers.items():

        def note(_, arguments, options, given, layer=layer):
            seen[layer] = (arguments[0] if arguments else options["hidden_states"], given[0])

        handles.append(module.register_forward_hook(note, with_kwargs=True))
    with torch.no_grad():
        model.forward(tokens)
    for handle in handles:
        handle.remove()
    walk = Walk(model, tokens)
    walk._batch = 3  # parts of unequal size
    for layer in range(model.num_layers):
        inputs = walk.inputs(layer)
        torch.testing.assert_close(inputs, seen[layer][0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(walk.attend(layer, inputs), seen[layer][1], rtol=1e-4, atol=1e-4)
        walk.advance(layer)


def test_a_layer_that_is_changed_changes_what_comes_after():
    model, tokens = decoder("llama"), rows(3, 11).tokens
    walk, other = Walk(model, tokens), Walk(model, tokens)
    walk.advance(0)
    with torch.no_grad():
        next(iter(model.attention_layers)).o_proj.weight.mul_(2)
    other.advance(0)
    assert not torch.allclose(walk.inputs(1), other.inputs(1))


def test_a_model_without_a_list_of_blocks_is_refused():
    from headwise.models.checkpoint import Checkpoint
    from headwise.models.interface import NAME

    albert = tiny.build(tiny.ENCODERS["albert"])
    albert.set_attn_implementation(NAME)
    with pytest.raises(UserError, match="expected a list of blocks with one attention layer each"):
        Walk(Checkpoint(albert, None, name="albert", source="", objective=None), rows().tokens)
