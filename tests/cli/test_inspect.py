"""`headwise inspect` as people and programs use it."""

from __future__ import annotations

import json

import pytest

from headwise.cli.main import main
from headwise.models import load
from headwise.surgery.export import export
from headwise.surgery.layout_table import inspect_layouts
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
    assert lines[-2:] == [
        "As it is, it would be saved as stock.", "With its 6 heads it could have 1, 2, 3 or 6 KV heads.",
    ]  # fmt: skip
    assert shown(folders / "llama", capsys, monkeypatch, 120) == lines


def test_layers_of_their_own_and_what_was_done(folders, capsys, monkeypatch):
    lines = shown(folders / "gemma2", capsys, monkeypatch)
    runs = [line for line in lines if line.endswith((" 5", "  none")) and line[0].isdigit()]
    assert [" ".join(line.split()) for line in runs] == ["0 6 2 3 10 5", "1 4 2 2 10 none", "2 6 2 3 10 5"]
    assert "1  prune  score contribution, keep (2), documents (2)" in lines
    assert lines[-1] == "As it is, it would be saved as headwise."


def test_formats_without_shared_heads(folders, capsys, monkeypatch):
    lines = shown(folders / "gpt2", capsys, monkeypatch)
    assert "stock (gpt2)  5            as many as heads" in lines
    assert "gpt_bigcode   also 5       1" in lines
    assert "headwise      also 1 to 4  as many as heads" in lines
    lines = shown(folders / "gpt-neox", capsys, monkeypatch)
    assert any("2 of 8" in line for line in lines)
    assert "biases                     query, key, value, output" in lines


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
    assert told(folders / "qwen3", capsys)["layers"][0]["rotary"]["norms"]
    assert told(folders / "qwen2", capsys)["layers"][0]["biases"] == ["query", "key", "value"]
    assert told(folders / "bert", capsys)["layers"][0]["rotary"]["style"] == "none"
    found = told(folders / "olmo2", capsys)
    assert (found["packing"], found["holds"], found["layers"][0]["rotary"]) == (None, {}, None)


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


def test_nothing_of_that_name(capsys):
    assert main(["inspect", "./nope"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no such folder or file" in captured.err
