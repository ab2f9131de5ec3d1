"""Saving in another dtype: what is written, what it holds, and what stays as it was."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from headwise.models import load
from headwise.surgery.export import export
from tests.models import tiny
from tests.surgery.resized import resized, whole

MODELS = ["llama", "mistral, window 5", "qwen2", "qwen3", "gemma2", "phi3", "gpt2", "gpt-neox", "bert"]


@pytest.mark.parametrize("name", MODELS)
def test_another_dtype_changes_the_bits_and_nothing_else(tmp_path, name):
    """What two names share, as most small models share their embeddings with their head, is written once."""
    checkpoint = whole(name)
    before = {key: tensor.clone() for key, tensor in checkpoint.model.state_dict().items()}
    kept, half = (
        load_file(export(checkpoint, tmp_path / str(dtype), dtype=dtype) / "model.safetensors")
        for dtype in (None, torch.bfloat16)
    )
    assert half.keys() == kept.keys()
    for key, tensor in kept.items():
        assert half[key].dtype == torch.bfloat16
        assert torch.equal(half[key], tensor.to(torch.bfloat16))
    after = checkpoint.model.state_dict()
    assert all(torch.equal(after[key], tensor) and after[key].dtype == tensor.dtype for key, tensor in before.items())


@pytest.mark.parametrize("name", ["gemma2", "gpt2"])
def test_fewer_heads_with_shared_embeddings_open_in_the_dtype_that_was_written(tmp_path, name):
    checkpoint = resized(name, 3, 3 if name == "gpt2" else 1)
    folder = export(checkpoint, tmp_path / "half", dtype=torch.bfloat16)
    assert json.loads((folder / "headwise.json").read_bytes())["dtype"] == "bfloat16"
    opened = load(folder)
    assert opened.stored_dtype == torch.bfloat16
    tokens = tiny.tokens(2, 13)
    with torch.no_grad():
        for parameter in checkpoint.model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
        assert torch.equal(opened.forward(tokens).logits, checkpoint.forward(tokens).logits)
