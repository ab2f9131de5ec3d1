"""Weights and tokenizers that are missing, damaged or not finite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from headwise.models import Checkpoint, load
from tests.models import tiny
from tests.models.refusals import refusal
from tests.models.test_load import weights_of
from tests.models.test_refused import change_config, without
from tests.study.tiny import tokenizer


def save(weights: dict[str, torch.Tensor], folder: Path) -> None:
    save_file(weights, weights_of(folder), metadata={"format": "pt"})


def test_missing_weights(folder):
    weights = load_file(weights_of(folder))
    gone = [name for name in weights if ".layers.1." in name]
    save({name: tensor for name, tensor in weights.items() if name not in gone}, folder)
    assert refusal(folder) == (
        f"model: {len(gone)} weights are missing and would be random, first model.layers.1.input_layernorm.weight; the "
        "download is incomplete, or the weights belong to another architecture than config.json says"
    )


def test_a_missing_shard(llama_folder, tmp_path):
    model = transformers.LlamaForCausalLM.from_pretrained(llama_folder)
    model.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    tokenizer(wrapped=False).save_pretrained(tmp_path / "shards")
    gone = sorted((tmp_path / "shards").glob("*.safetensors"))[1]
    gone.unlink()
    told = refusal(tmp_path / "shards")
    assert "expected all parts of the weights that model.safetensors.index.json names" in told
    assert gone.name in told


@pytest.mark.parametrize(
    "spoil",
    [lambda data: data[:100], lambda data: data[:-100], lambda data: b"\xff" * 200, lambda data: b""],
    ids=["header cut", "end cut", "no header", "empty"],
)
def test_damaged_safetensors(folder, spoil: Callable[[bytes], bytes]):
    weights_of(folder).write_bytes(spoil(weights_of(folder).read_bytes()))
    told = refusal(folder)
    assert told.startswith("model: cannot read the weights: a damaged safetensors file (")
    assert told.endswith("); copy it again, it may be cut short")


def test_weights_of_another_shape(folder):
    change_config(folder, intermediate_size=35)
    told = refusal(folder)
    assert told.startswith("model: cannot read the weights: ")
    assert "size" in told or "shape" in told


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite(folder, number):
    weights = load_file(weights_of(folder))
    weights["model.layers.2.self_attn.k_proj.weight"][3, 5] = number
    save(weights, folder)
    assert refusal(folder) == (
        "model: the weight model.layers.2.self_attn.k_proj.weight holds NaN or infinity, so every number after it "
        "would be NaN; copy the file again, or save the model from a training step before it diverged"
    )


def test_large_weights_are_not_taken_for_infinite_ones(folder):
    """The sum of a thousand times 60,000 is beyond what float16 holds; each weight is not."""
    weights = load_file(weights_of(folder))
    weights["model.embed_tokens.weight"][100] = 60_000.0
    save(weights, folder)
    assert isinstance(load(folder, dtype=torch.float16, check=False), Checkpoint)


def test_no_tokenizer(folder):
    without(folder, "tokenizer.json", "tokenizer_config.json")
    expected = "model: cannot read the tokenizer: no tokenizer files there; copy tokenizer.json beside the weights"
    assert refusal(folder) == expected


def test_no_tokenizer_where_transformers_makes_an_empty_one(tmp_path):
    tiny.build(tiny.ENCODERS["bert"]).save_pretrained(tmp_path / "bert")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "bert") is not None
    expected = "bert: cannot read the tokenizer: no tokenizer files there; copy tokenizer.json beside the weights"
    assert refusal(tmp_path / "bert") == expected


@pytest.mark.parametrize("content", ["{broken", "{}", "[]"])
def test_a_damaged_tokenizer(folder, content):
    (folder / "tokenizer.json").write_text(content)
    assert refusal(folder).startswith("model: cannot read the tokenizer: ")
