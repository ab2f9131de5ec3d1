"""Saving: what other tools load, what only headwise opens, and what is carried along."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from headwise.models import load
from headwise.models.weights import LAYERS_KEY, copy_of
from headwise.surgery.export import export
from tests.models import tiny
from tests.surgery.resized import HISTORY, one_kv_head, resized, whole

# Name of the folder: model, heads, KV heads, layers, the class that transformers must give, the format.
STOCK = {
    "llama": (("llama", 3, 1), "LlamaForCausalLM", "stock"),
    "llama with more KV heads": (("llama", 6, 6), "LlamaForCausalLM", "stock"),
    "llama as mistral": (("llama", 4, 2), "MistralForCausalLM", "mistral"),
    "mistral": (("mistral, window 5", 4, 2), "MistralForCausalLM", "stock"),
    "qwen2": (("qwen2", 5, 1), "Qwen2ForCausalLM", "stock"),
    "qwen3": (("qwen3", 4, 2), "Qwen3ForCausalLM", "stock"),
    "gemma2": (("gemma2", 3, 1), "Gemma2ForCausalLM", "stock"),
    "phi3": (("phi3", 4, 2), "Phi3ForCausalLM", "stock"),
}
OWN = {"llama by layers": ("llama", 4, 2, [1]), "gemma2": ("gemma2", 4, 2), "gpt2": ("gpt2", 3, 3)}
LOADER = """
import sys, json, torch, transformers
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
told = {}
for folder in sys.argv[2:]:
    # Its sdpa leaves the soft-cap out, and refuses.
    for implementation in ("eager",) if "gemma2" in folder else ("eager", "sdpa"):
        try:
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                folder, output_loading_info=True, attn_implementation=implementation)
        except Exception as error:
            told[folder] = {"error": str(error)}
            break
        with torch.no_grad():
            logits = model.eval()(input_ids=torch.load(sys.argv[1])).logits
        torch.save(logits, f"{folder}/{implementation}.pt")
        info = {name: sorted(map(str, found)) for name, found in info.items() if found}
        kept = transformers.AutoTokenizer.from_pretrained(folder)("baba bade").input_ids
        told[folder] = {"class": type(model).__name__, "info": info, "dtype": str(model.dtype), "tokens": kept}
assert "headwise" not in sys.modules
print(json.dumps(told))
"""


def logits_of(checkpoint, implementation: str, dtype: torch.dtype | None = None) -> torch.Tensor:
    model = copy_of(checkpoint).model.to(dtype or checkpoint.model.dtype)
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        return model(input_ids=tiny.tokens(2, 13)).logits


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """What a process without headwise makes of the folders, all in one since it takes seconds to start."""
    root = tmp_path_factory.mktemp("exported")
    saved = {f"stock {name}": resized(*made) for name, (made, *_) in STOCK.items()}
    saved |= {f"own {name}": resized(*made) for name, made in OWN.items()}
    saved["gpt_bigcode"] = one_kv_head()
    for name, checkpoint in saved.items():
        export(checkpoint, root / name)
    torch.save(tiny.tokens(2, 13), root / "tokens.pt")
    script = [sys.executable, "-c", LOADER, str(root / "tokens.pt"), *(str(root / name) for name in saved)]
    ran = subprocess.run(script, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False)
    assert ran.returncode == 0, ran.stderr
    return root, saved, {Path(folder).name: told for folder, told in json.loads(ran.stdout).items()}


def compare_logits(checkpoint, folder: Path, implementation: str) -> None:
    """As near to the checkpoint's own on stock attention as that is to float64."""
    found = torch.load(folder / f"{implementation}.pt")
    own = logits_of(checkpoint, implementation)
    exact = logits_of(checkpoint, implementation, torch.float64)
    assert (found - own).abs().max() <= 2 * (own - exact).abs().max()


@pytest.mark.parametrize("name", STOCK)
def test_stock_transformers_loads_it_without_headwise(elsewhere, name):
    root, saved, told = elsewhere
    folder = root / f"stock {name}"
    _, model_class, form = STOCK[name]
    # Some architectures have a tokenizer class of their own, whatever the files say.
    tokens = [7, 8] if name.startswith("llama") else told[folder.name]["tokens"]
    assert told[folder.name] == {"class": model_class, "info": {}, "dtype": "torch.float32", "tokens": tokens}
    compare_logits(saved[folder.name], folder, "eager")
    if name != "gemma2":
        compare_logits(saved[folder.name], folder, "sdpa")
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == [model_class]
    assert LAYERS_KEY not in config
    assert not [key for key in config if "attn_implementation" in key]
    assert json.loads((folder / "headwise.json").read_text())["format"] == form


def test_gpt2_with_one_kv_head_becomes_gpt_bigcode(elsewhere):
    root, saved, told = elsewhere
    assert told["gpt_bigcode"]["class"] == "GPTBigCodeForCausalLM"
    assert told["gpt_bigcode"]["info"] == {}
    for implementation in ("eager", "sdpa"):
        compare_logits(saved["gpt_bigcode"], root / "gpt_bigcode", implementation)
    # A key and a value where there were five of each.
    stored = sum((root / "gpt_bigcode" / name).stat().st_size for name in ("model.safetensors",))
    spared = tiny.LAYERS * 2 * 4 * 7 * (35 + 1) * 4
    assert abs(saved["gpt_bigcode"].parameters * 4 - spared - stored) < 8192


@pytest.mark.parametrize("name", OWN)
def test_stock_transformers_refuses_what_only_headwise_opens(elsewhere, name):
    root, saved, told = elsewhere
    assert "mismatched" in told[f"own {name}"]["error"]
    again = load(root / f"own {name}")
    assert again.layouts == saved[f"own {name}"].layouts
    assert torch.equal(logits_of(again, "eager"), logits_of(saved[f"own {name}"], "eager"))


def test_what_is_read_again_is_what_was_saved(tmp_path):
    checkpoint = resized("llama", 4, 2)
    checkpoint.model.to(torch.bfloat16)
    checkpoint.forget_hash()
    assert export(checkpoint, tmp_path / "model") == tmp_path / "model"
    again = load(tmp_path / "model", dtype=torch.bfloat16)
    assert again.history == HISTORY
    assert again.weights_sha256 == checkpoint.weights_sha256
    assert (again.layouts, again.objective) == (checkpoint.layouts, "next")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model"]
    twice = export(again, tmp_path / "twice")
    for name in ("model.safetensors", "config.json", "generation_config.json", "tokenizer.json"):
        assert (twice / name).read_bytes() == (tmp_path / "model" / name).read_bytes()
    modes = {file.stat().st_mode for file in twice.iterdir()}
    assert len(modes) == 1


def test_the_checkpoint_stays_as_it_was(tmp_path):
    for name, form in (("llama", "mistral"), ("gemma2", "headwise")):
        checkpoint = resized(name, 4, 2)
        config, digest = checkpoint.model.config.to_dict(), checkpoint.weights_sha256
        logits = logits_of(checkpoint, "headwise")
        export(checkpoint, tmp_path / name, format=form)
        checkpoint.forget_hash()
        assert (checkpoint.model.config.to_dict(), checkpoint.weights_sha256) == (config, digest)
        assert torch.equal(logits_of(checkpoint, "headwise"), logits)


def test_the_manifest_says_what_was_done_and_names_nobody(tmp_path):
    checkpoint = resized("phi3", 4, 2, [0, 2])
    export(checkpoint, tmp_path / "model")
    text = (tmp_path / "model" / "headwise.json").read_text()
    told = json.loads(text)
    assert told["history"] == list(HISTORY)
    assert (told["format"], told["model_type"], told["source"]) == ("headwise", "phi3", "phi3")
    assert told["layouts"] == [[4, 2], [6, 2], [4, 2]]
    assert told["weights_sha256"] == checkpoint.weights_sha256
    assert set(told["versions"]) == {"python", "headwise", "torch", "transformers", "safetensors"}
    for name in (str(tmp_path), socket.gethostname(), str(Path.home())):
        assert name not in text


def test_tied_weights_are_written_once(tmp_path):
    checkpoint = resized("gemma2", 3, 1)
    assert checkpoint.model.config.tie_word_embeddings
    folder = export(checkpoint, tmp_path / "model")
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118
    model = load(folder).model
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_generation_settings_that_transformers_would_not_save_are_carried_along(tmp_path):
    checkpoint = whole("llama")
    checkpoint.model.generation_config.temperature = 0.5  # without sampling, as many published models have it
    folder = export(checkpoint, tmp_path / "model")
    assert json.loads((folder / "generation_config.json").read_text())["temperature"] == 0.5
    assert load(folder).model.generation_config.temperature == 0.5


def test_an_encoder(tmp_path):
    checkpoint = resized("bert", 3, 3)
    export(checkpoint, tmp_path / "model")
    again = load(tmp_path / "model")
    assert (again.objective, [layout.num_heads for layout in again.layouts]) == ("masked", [3, 3, 3])
