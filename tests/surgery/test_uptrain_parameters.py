"""Which weights are trained, and on which attention."""

from __future__ import annotations

import pytest

from headwise.models.weights import heads_of
from headwise.surgery.training.parameters import trained_names
from headwise.surgery.training.running import running_on
from tests.surgery.uptrain_models import built


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3", "gpt2", "gpt-neox", "bert", "gemma2"])
def test_attention_is_what_holds_the_projections(name):
    """What ``heads_of`` reads lies in the chosen weights, and they hold nothing else but norms of queries and keys."""
    checkpoint = built(name)
    chosen = [checkpoint.model.get_parameter(key) for key in trained_names(checkpoint, "attention")]
    read = {
        tensor.untyped_storage().data_ptr()
        for layer in range(checkpoint.num_layers)
        for tensor in vars(heads_of(checkpoint, layer)).values()
        if tensor is not None
    }
    others = [weight for weight in chosen if weight.untyped_storage().data_ptr() not in read]
    assert read == {weight.untyped_storage().data_ptr() for weight in chosen} - {
        weight.untyped_storage().data_ptr() for weight in others
    }
    assert all(weight.shape == (checkpoint.layouts[0].head_dim,) for weight in others)
    assert len(others) == (2 * checkpoint.num_layers if name == "qwen3" else 0)


def test_tied_embeddings_are_trained_as_one():
    checkpoint = built("gemma2")
    names, model = trained_names(checkpoint, "all"), checkpoint.model
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert sum("embed" in name or "lm_head" in name for name in names) == 1


@pytest.mark.parametrize(("name", "told"), [("llama", "sdpa"), ("gemma2", "headwise")])
def test_an_architecture_that_asks_for_more_stays_on_headwise(name, told):
    """PyTorch's own attention would leave out Gemma 2's soft-cap."""
    checkpoint = built(name)
    with running_on("auto", checkpoint):
        assert checkpoint.model.config._attn_implementation == told
    assert checkpoint.model.config._attn_implementation == "headwise"
