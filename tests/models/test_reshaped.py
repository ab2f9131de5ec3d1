"""Opening what headwise saved: layers of their own, what was done, and files that are damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from headwise.models import load
from headwise.models.outline import outline
from headwise.surgery.export import export
from tests.models import tiny
from tests.models.refusals import refusal
from tests.study.tiny import save_llama
from tests.surgery.resized import HISTORY, resized, whole

RESHAPABLE = ["llama", "mistral, window 5", "qwen2", "qwen3", "gemma2", "phi3", "gpt2", "gpt-neox", "bert"]


def own_layers(name: str):
    """Another number of heads in the second layer."""
    return resized(name, 4, 4 if name in ("gpt2", "gpt-neox", "bert") else 2, [1])


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return export(own_layers("llama"), tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture
def spoilt(saved, tmp_path) -> Path:
    """A copy to be spoilt."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in saved.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize("name", RESHAPABLE)
def test_layers_of_their_own_are_opened_checked_and_watched(name, tmp_path):
    checkpoint = own_layers(name)
    again = load(export(checkpoint, tmp_path / "model"))
    assert again.layouts == checkpoint.layouts
    assert len({layout.num_heads for layout in again.layouts}) == 2
    assert again.checks
    assert all(check.passed for check in again.checks)
    assert again.weights_sha256 == checkpoint.weights_sha256
    assert again.history == HISTORY
    stock = type(checkpoint.model)
    assert (type(again.model).__name__, type(again.model).__module__) == (stock.__name__, stock.__module__)
    tokens = tiny.tokens(2, 11)
    heads = []
    with torch.no_grad():
        wanted = checkpoint.forward(tokens).logits
        with again.observe(lambda call: heads.append(call.query.shape[1])):
            assert torch.equal(again.forward(tokens).logits, wanted)
        with again.ablate([(1, 3)]), checkpoint.ablate([(1, 3)]):
            assert torch.equal(again.forward(tokens).logits, checkpoint.forward(tokens).logits)
            assert not torch.equal(again.forward(tokens).logits, wanted)
    assert heads == [layout.num_heads for layout in checkpoint.layouts]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_of_numbers(saved, dtype):
    checkpoint = load(saved, dtype=dtype)
    assert {parameter.dtype for parameter in checkpoint.model.parameters()} == {dtype}
    assert [layout.num_heads for layout in checkpoint.layouts] == [6, 4, 6]


def test_a_model_that_nobody_changed_has_no_history(llama_folder):
    assert load(llama_folder, check=False).history == ()


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "bert", "olmo2", "deepseek_v3"])
def test_an_outline_tells_the_same_without_weights(name, tmp_path):
    checkpoint = whole(name)
    folder = export(checkpoint, tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"no weights at all")
    found = outline(folder)
    assert (found.layouts, found.causal, found.objective) == (checkpoint.layouts, name != "bert", checkpoint.objective)
    assert list(found.attention_layers.values()) == [(0,), (1,), (2,)]
    assert {parameter.device.type for parameter in found.model.parameters()} == {"meta"}


@pytest.mark.parametrize(
    "listed",
    [
        "all", 7, [], [[6, 2]] * 2, [[6, 2], [6, 4], [6, 2]], [[6, 2], [0, 0], [6, 2]], [[6, 2], [6, -2], [6, 2]],
        [[6, 2], [True, True], [6, 2]], [[6, 2], [6.0, 2], [6, 2]], [[6, 2], [6], [6, 2]],
        [[6, 2], [10**12, 1], [6, 2]], [[6, 2], None, [6, 2]],
    ],
)  # fmt: skip
def test_damaged_lists_of_layers(spoilt, listed):
    change_config(spoilt, headwise_layers=listed)
    text = refusal(spoilt)
    assert text.startswith("model: headwise_layers in config.json: expected [query heads, KV heads] for each of its 3 ")


def test_lists_that_the_weights_contradict(spoilt):
    change_config(spoilt, headwise_layers=[[6, 2], [2, 2], [6, 2]])
    assert "model: cannot read the weights: " in refusal(spoilt)


def test_a_list_for_an_architecture_that_cannot_be_reshaped(spoilt):
    change_config(spoilt, model_type="olmo2", architectures=["Olmo2ForCausalLM"])
    assert "which headwise writes for bert, gemma2, " in refusal(spoilt)


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{broken", b"[1]", b"7", b"null", b"{}", b'{"history": {}}', b'{"history": [1]}', b"\xff\xfe\x00",
        b"[" * 9999,
    ],
    ids=["empty", "cut", "list", "number", "null", "without", "no list", "no objects", "no text", "deep"],
)  # fmt: skip
def test_a_damaged_manifest_is_refused_by_name(spoilt, text):
    (spoilt / "headwise.json").write_bytes(text)
    assert refusal(spoilt).startswith("model: cannot read headwise.json (")
    assert refusal(spoilt).endswith("; copy it again, or delete it and lose that")


def test_a_folder_in_place_of_a_manifest(spoilt):
    (spoilt / "headwise.json").unlink()
    (spoilt / "headwise.json").mkdir()
    assert refusal(spoilt).startswith("model: cannot read headwise.json (")


def test_a_shard_that_is_missing(tmp_path):
    whole_folder = save_llama(tmp_path / "whole")
    model = transformers.LlamaForCausalLM.from_pretrained(whole_folder)
    model.save_pretrained(whole_folder, max_shard_size="50KB")
    (whole_folder / "model.safetensors").unlink(missing_ok=True)
    first, *_ = sorted(whole_folder.glob("model-*.safetensors"))
    first.unlink()
    assert "expected all parts of the weights" in refusal(whole_folder)
    assert first.name in refusal(whole_folder)


def test_weights_that_are_no_numbers(spoilt):
    weights = load_file(spoilt / "model.safetensors")
    weights["model.layers.1.self_attn.q_proj.weight"][3, 5] = float("nan")
    save_file(weights, spoilt / "model.safetensors", metadata={"format": "pt"})
    assert refusal(spoilt).startswith("model: the weight model.layers.1.self_attn.q_proj.weight holds NaN or infinity")


def test_weights_that_are_missing(spoilt):
    weights = load_file(spoilt / "model.safetensors")
    del weights["model.layers.1.self_attn.q_proj.weight"]
    save_file(weights, spoilt / "model.safetensors", metadata={"format": "pt"})
    assert "1 weights are missing and would be random, first model.layers.1.self_attn.q_proj" in refusal(spoilt)
