"""GGUF files: converted once into a folder of the cache, and refused in one line where that cannot be."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from headwise.errors import UserError
from headwise.layout import HeadLayout
from headwise.models import gguf as conversion
from headwise.models import load
from headwise.models.gguf import folder_of
from tests.models.test_demo import TEXT

VOCABULARY, WIDTH, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 40, 64, 96, 4, 2, 16, 2


def write_gguf(path: Path, architecture: str = "llama", seed: int = 0) -> dict[str, np.ndarray]:
    """A small Llama as a GGUF file; returns its tensors."""
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(VOCABULARY)
    words = ["<s>", "</s>", *"abcdefghijklmnopqrstuvwxyz", "Ġ", "ab", *(f"t{index}" for index in range(10))]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types([3, 3] + [1] * (VOCABULARY - 2))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    generator = np.random.default_rng(seed)
    tensors = {name: generator.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes().items()}
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def shapes() -> dict[str, tuple[int, ...]]:
    whole = {"token_embd": (VOCABULARY, WIDTH), "output": (VOCABULARY, WIDTH), "output_norm": (WIDTH,)}
    layer = {
        "attn_norm": (WIDTH,),
        "attn_q": (HEADS * HEAD_DIM, WIDTH),
        "attn_k": (KV_HEADS * HEAD_DIM, WIDTH),
        "attn_v": (KV_HEADS * HEAD_DIM, WIDTH),
        "attn_output": (WIDTH, HEADS * HEAD_DIM),
        "ffn_norm": (WIDTH,),
        "ffn_gate": (INNER, WIDTH),
        "ffn_up": (INNER, WIDTH),
        "ffn_down": (WIDTH, INNER),
    }
    for index in range(LAYERS):
        whole |= {f"blk.{index}.{name}": shape for name, shape in layer.items()}
    return {f"{name}.weight": shape for name, shape in whole.items()}


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


@pytest.fixture
def file(tmp_path) -> Path:
    write_gguf(tmp_path / "small.gguf")
    return tmp_path / "small.gguf"


def test_it_is_read_and_checked(tmp_path, cache):
    tensors = write_gguf(tmp_path / "small.gguf")
    checkpoint = load(tmp_path / "small.gguf")
    assert (checkpoint.name, checkpoint.objective, checkpoint.causal) == ("small", "next", True)
    assert checkpoint.layouts == (HeadLayout(HEADS, KV_HEADS, HEAD_DIM, value_head_dim=HEAD_DIM),) * LAYERS
    assert len(checkpoint.checks) == 6
    assert checkpoint.model.dtype == torch.float32
    value = checkpoint.model.model.layers[1].self_attn.v_proj.weight
    assert torch.equal(value, torch.from_numpy(tensors["blk.1.attn_v.weight"]))
    assert checkpoint.tokenizer("abc").input_ids[-2:] == [29, 4]


def test_it_is_converted_once(file, cache, monkeypatch):
    import transformers

    folder = folder_of(file)
    assert folder.parent == cache
    assert [path.name for path in cache.iterdir()] == [folder.name]  # nothing half-written is left beside it
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", None)
    assert folder_of(file) == folder
    copied = file.with_name("small.gguf.copy").with_suffix(".GGUF")
    copied.write_bytes(file.read_bytes())
    assert folder_of(file) == folder


def test_another_content_is_another_folder(file, cache):
    first = folder_of(file)
    write_gguf(file, seed=1)
    assert folder_of(file) != first
    assert load(file).weights_sha256 != load(first).weights_sha256


@pytest.mark.parametrize("gone", ["config.json", "model.safetensors"])
def test_a_folder_that_someone_cleared_is_made_again(file, cache, gone):
    folder = folder_of(file)
    (folder / gone).unlink()
    assert folder_of(file) == folder
    assert (folder / gone).is_file()


def test_nothing_is_left_of_a_conversion_that_failed(file, cache, monkeypatch):
    import transformers

    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(transformers.LlamaForCausalLM, "save_pretrained", full_disk)
    with pytest.raises(OSError, match="No space left"):
        folder_of(file)
    assert list(cache.iterdir()) == []


def test_two_at_once_agree_on_one_folder(file, cache, monkeypatch):
    """Another process finishes the same conversion while this one writes."""
    import headwise.models.gguf as module

    dequantised = module._dequantised

    def meanwhile(path: Path) -> Any:
        monkeypatch.setattr(module, "_dequantised", dequantised)
        folder_of(path)
        return dequantised(path)

    monkeypatch.setattr(module, "_dequantised", meanwhile)
    folder = folder_of(file)
    assert [path.name for path in cache.iterdir()] == [folder.name]


def test_a_capital_ending_is_fine(file, cache):
    file.rename(file.with_suffix(".GGUF"))
    assert load(file.with_suffix(".GGUF")).name == "small"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and so on", b"GGU"])
def test_something_else_is_refused(tmp_path, cache, content):
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(UserError) as raised:
        load(path)
    assert str(raised.value) == f"{path}: expected a GGUF file, got one that does not start with the letters GGUF"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:4],
        lambda data: data[:500],
        lambda data: data[:-5000],
        lambda data: data[:4] + (99).to_bytes(4, "little") + data[8:],
        lambda data: data[:8] + b"\xff" * 64 + data[72:],
    ],
    ids=["letters only", "header cut", "end cut", "version", "counts"],
)
def test_a_damaged_file_is_refused(file, cache, spoil: Callable[[bytes], bytes]):
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(UserError) as raised:
        load(file)
    text = str(raised.value)
    assert text.startswith(f"{file}: transformers cannot read this GGUF file (")
    assert text.endswith(
        "; it may be damaged or cut short, or of an architecture that transformers does not convert; copy it again, or "
        "give the folder it was made from"
    )
    assert "\n" not in text
    assert raised.value.__cause__ is not None
    assert list(cache.glob("*")) == []  # nothing half-written stays in the cache


def test_an_architecture_that_transformers_does_not_convert(tmp_path, cache):
    write_gguf(tmp_path / "rwkv.gguf", architecture="rwkv6")
    with pytest.raises(UserError, match=r"GGUF.*rwkv6"):
        load(tmp_path / "rwkv.gguf")


def test_a_cache_that_cannot_be_written_is_named_with_its_variable(file, tmp_path, monkeypatch):
    (tmp_path / "blocked").touch(mode=stat.S_IRUSR)
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "blocked"))
    monkeypatch.setattr(conversion, "_dequantised", lambda _: pytest.fail("converted before it was known where to"))
    with pytest.raises(UserError) as refused:
        load(file)
    assert str(refused.value) == (
        f"{tmp_path / 'blocked' / 'gguf'}: cannot write the converted model there (Not a directory); "
        "name another cache folder in HEADWISE_CACHE"
    )


def test_the_tokenizer_of_the_demo_model_is_that_of_its_file(demo):
    ids = demo.tokenizer(TEXT).input_ids
    assert demo.tokenizer.decode(ids) == TEXT
    assert len(ids) < 30
