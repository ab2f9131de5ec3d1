"""`headwise inspect` as people and programs use it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from headwise.cli.main import main
from headwise.errors import UserError
from headwise.models import load
from headwise.models.outline import outline
from headwise.surgery import layout_table
from headwise.surgery.export import export
from headwise.surgery.layout_table import inspect_layouts
from headwise.surgery.mla.checkpoint import save_latent
from headwise.surgery.mla.convert import convert_to_latent
from tests.surgery.decoders import rows
from tests.surgery.resized import HISTORY, resized, whole


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders whose weights are gone, since nothing but the config is to be read."""
    root = tmp_path_factory.mktemp("inspected")
    made = {
        "llama": whole("llama"), "gemma2": resized("gemma2", 4, 2, [1]), "gpt2": whole("gpt2"), "bert": whole("bert"),
        "gpt-neox": whole("gpt-neox"), "qwen3": whole("qwen3"), "olmo2": whole("olmo2"), "qwen2": whole("qwen2"),
    }  # fmt: skip
    for name, checkpoint in made.items():
        export(checkpoint, root / name)
        (root / name / "model.safetensors").write_bytes(b"gone")
    return root


def shown(folder, capsys, monkeypatch, width: int = 80) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["inspect", str(folder)]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= width
    return lines


def told(folder, capsys) -> dict:
    assert main(["inspect", str(folder), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_table(folders, capsys, monkeypatch):
    lines = shown(folders / "llama", capsys, monkeypatch)
    assert lines[0] == "llama (llama): 3 attention layers, width 42"
    assert "0 to 2      6         2             3        10    none" in lines
    assert "rotary                     half-split, dimension i with i + 5, base 10,000" in lines
    assert "norms of queries and keys  none" in lines
    assert "stock (llama)  1 to 3, 6                 any divisor of the heads" in lines
    assert "mistral        also 4, 5                 any divisor of the heads" in lines
    assert lines[1].endswith(" in attention")
    assert lines[-3:] == [
        "As it is, it would be saved as stock.",
        "Fewer KV heads: 1 by headwise convert --kv-heads.",
        "More KV heads, the same function: 6 by headwise.surgery.gauge.degroup.",
    ]
    assert shown(folders / "llama", capsys, monkeypatch, 120) == lines


def test_layers_of_their_own_and_what_was_done(folders, capsys, monkeypatch):
    lines = shown(folders / "gemma2", capsys, monkeypatch)
    runs = [line for line in lines if line.endswith((" 5", "  none")) and line[0].isdigit()]
    assert [" ".join(line.split()) for line in runs] == ["0 6 2 3 10 5", "1 4 2 2 10 none", "2 6 2 3 10 5"]
    assert "1  prune  score contribution, keep (2), documents (2)" in lines
    assert "As it is, it would be saved as headwise." in lines
    assert lines[-3] == "Fewer KV heads: 1 by headwise convert --kv-heads."


def test_formats_without_shared_heads(folders, capsys, monkeypatch):
    lines = shown(folders / "gpt2", capsys, monkeypatch)
    assert "stock (gpt2)  5            as many as heads" in lines
    assert "gpt_bigcode   also 5       1" in lines
    assert "headwise      also 1 to 4  as many as heads" in lines
    assert lines[-2:] == [
        "Fewer KV heads: 1 by headwise convert --kv-heads.", "More KV heads: none, each query head has its own.",
    ]  # fmt: skip
    lines = shown(folders / "gpt-neox", capsys, monkeypatch)
    assert any("2 of 8" in line for line in lines)
    assert "biases                     query, key, value, output" in lines
    assert any(
        line.startswith("headwise convert makes no number of KV heads of it: expected an arch") for line in lines
    )


def test_one_method_alone(folders, capsys, monkeypatch):
    told = "Fewer KV heads: 1 by headwise convert --kv-heads with --method first alone."
    assert told in shown(folders / "qwen3", capsys, monkeypatch)


def test_an_architecture_that_cannot_be_reshaped_is_shown_all_the_same(folders, capsys, monkeypatch):
    lines = shown(folders / "olmo2", capsys, monkeypatch, 120)
    assert "0 to 2      6         2             3         6    none" in lines
    assert lines[-1] == (
        "headwise does not know where olmo2 keeps its heads, so they can't be reshaped; it can be studied as it is"
    )


def test_json(folders, capsys):
    found = told(folders / "gemma2", capsys)
    assert found["model_type"] == "gemma2"
    assert [(layer["num_heads"], layer["window"]) for layer in found["layers"]] == [(6, 5), (4, None), (6, 5)]
    assert found["layers"][0]["rotary"] == {"style": "half", "dims": 10, "norms": False}
    assert found["history"] == list(HISTORY)
    assert found["format"] == "headwise"
    assert found["holds"]["stock"] == {"1": [1], "2": [1, 2], "3": [1, 3], "6": [1, 2, 3, 6]}
    assert set(found["holds"]) == {"stock", "headwise"}
    every = {method: [1] for method in ("pca", "aligned", "mean", "first")}
    assert found["reach"] == {"fewer": every, "refusal": None, "more": []}
    assert told(folders / "qwen3", capsys)["layers"][0]["rotary"]["norms"]
    assert told(folders / "qwen2", capsys)["layers"][0]["biases"] == ["query", "key", "value"]
    assert told(folders / "bert", capsys)["layers"][0]["rotary"]["style"] == "none"
    found = told(folders / "olmo2", capsys)
    assert [found[name] for name in ("packing", "holds", "reach")] == [None, {}, None]
    assert found["layers"][0]["rotary"] is None


def test_what_must_run_to_be_seen_is_loaded(tmp_path):
    folder = export(whole("gpt-oss"), tmp_path / "gpt-oss")
    found = inspect_layouts(folder)
    assert [layer.window for layer in found.layers] == [5, None, 5]
    assert [layer.num_kv_heads for layer in found.layers] == [layout.num_kv_heads for layout in load(folder).layouts]


def test_the_demo_model(capsys, monkeypatch):
    lines = shown("demo", capsys, monkeypatch)
    assert lines[0] == "SmolLM2-135M-Instruct (llama): 30 attention layers, width 576"
    assert "stock (llama)  1 to 4, 6, 8, 9           any divisor of the heads" in lines
    assert "mistral        also 5, 7                 any divisor of the heads" in lines


@pytest.mark.parametrize("name", ["llama", "gemma2, layers of their own", "bert", "gpt2", "qwen3"])
def test_parameters_are_those_of_the_model_when_it_is_loaded(name, tmp_path, capsys):
    checkpoint = resized("gemma2", 4, 2, [1]) if name.startswith("gemma2") else whole(name)
    found = told(export(checkpoint, tmp_path / "model"), capsys)
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm", "attn.c_", "attention.self", "output.dense")
    named = checkpoint.model.named_parameters()
    counted = {key: one.numel() for key, one in named if any(part in key for part in names)}
    if name == "bert":  # the second output.dense is that of the feed-forward part
        counted = {key: count for key, count in counted.items() if ".attention." in key}
    assert found["attention_parameters"] == sum(counted.values())
    assert found["parameters"] == load(tmp_path / "model", check=False).parameters


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A model in more than four files."""
    folder = export(whole("llama"), tmp_path_factory.mktemp("parts") / "parts")
    load(folder, check=False).model.save_pretrained(folder, max_shard_size="20KB")
    (folder / "model.safetensors").unlink()
    assert len(list(folder.glob("model-*.safetensors"))) > 4
    return folder


@pytest.mark.parametrize("gone", [1, 2, 4])
def test_parts_that_are_missing_are_named(parts, gone, tmp_path, capsys):
    folder = Path(shutil.copytree(parts, tmp_path / "copied"))
    assert main(["inspect", str(folder)]) == 0
    capsys.readouterr()
    names = [file.name for file in sorted(folder.glob("model-*.safetensors"))[:gone]]
    for name in names:
        (folder / name).unlink()
    assert main(["inspect", str(folder)]) == 2
    captured = capsys.readouterr()
    error = " ".join(captured.err.split())
    assert captured.out == ""
    assert f"got a folder without {', '.join(names[:3])}{' and 1 more' * (gone > 3)}; copy them there" in error
    with pytest.raises(UserError, match="expected all parts of the weights"):
        load(folder)


def test_weights_under_another_name_are_missing(tmp_path, capsys):
    folder = export(whole("llama"), tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    assert main(["inspect", str(folder)]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "expected weights in model.safetensors, or in parts with model.safetensors.index.json, got " in error
    assert "got other.safetensors; copy" in error
    with pytest.raises(UserError, match="cannot read the weights"):
        load(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_weights": "other.safetensors"}))
    assert main(["inspect", str(folder)]) == 0
    assert load(folder).num_layers == 3


@pytest.mark.parametrize("text", ["{}", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', "{"])
def test_an_index_that_is_none(tmp_path, capsys, text):
    folder = export(whole("llama"), tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    (folder / "model.safetensors.index.json").write_text(text)
    assert main(["inspect", str(folder)]) == 2
    assert "cannot read the weights: " in " ".join(capsys.readouterr().err.split())


def test_a_model_of_the_hub_is_told_from_its_config(folders, capsys, monkeypatch):
    """Its weights stay where they are, and that is said."""
    asked = []

    def of_the_hub(source):
        asked.append(source)
        return outline(folders / "llama")

    monkeypatch.setattr(layout_table, "outline", of_the_hub)
    lines = shown("org/name", capsys, monkeypatch, 120)
    assert asked == ["org/name"]
    assert lines[2] == "Its weights are on the hub and were not looked at: all of this is from its config."
    assert told("org/name", capsys)["config_only"]
    assert not told(folders / "llama", capsys)["config_only"]


def test_latent_attention_is_refused_with_how_to_open_it(tmp_path, capsys):
    checkpoint = convert_to_latent(whole("llama"), rank=11, rope=6, rows=rows())
    folder = save_latent(checkpoint, tmp_path / "latent")
    assert main(["inspect", str(folder)]) == 2
    captured = capsys.readouterr()
    error = " ".join(captured.err.split())
    assert captured.out == ""
    assert "expected a Hugging Face model folder, got a model with latent attention" in error
    assert "open it with headwise.surgery.mla.checkpoint.load_latent" in error


def test_nothing_of_that_name(capsys):
    assert main(["inspect", "./nope"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no such folder or file" in captured.err
