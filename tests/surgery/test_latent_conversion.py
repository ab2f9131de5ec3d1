"""Whole models with latent attention: the same logits at full size, less below it, saved and loaded."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from headwise.errors import UserError
from headwise.models import headwise_cache, load
from headwise.models.checkpoint import Checkpoint
from headwise.models.corpus import Rows
from headwise.models.interface import NAME, register
from headwise.models.losses import Question, row_losses
from headwise.models.weights import heads_of, round_weights
from headwise.surgery.gauge import rotate
from headwise.surgery.mla.checkpoint import load_latent, save_latent
from headwise.surgery.mla.convert import convert_to_latent, to_latent
from headwise.surgery.mla.model import LatentCheckpoint
from tests.models import tiny
from tests.study.tiny import tokenizer

register()
LENGTH = 19


def made(name: str, dtype: torch.dtype = torch.float32) -> Checkpoint:
    model = tiny.build((tiny.DECODERS | tiny.ENCODERS)[name]).to(dtype)
    model.set_attn_implementation(NAME)
    return Checkpoint(model, None, name=name, source=name, objective="next")


def rows(count: int = 7, length: int = LENGTH) -> Rows:
    return Rows(tiny.tokens(count, length), tuple(range(count)), ("0" * 16,) * count)


@pytest.mark.parametrize(("general", "bound"), [(False, 1e-9), (True, 1e-5)])
def test_a_truncation_does_not_depend_on_the_bases_of_heads(general, bound):
    """But for the floor under weights, where bases are stretched: the root of 1e-10."""
    model = made("llama", torch.float64)
    turned = rotate(model, seed=2, general=general)
    inputs = torch.randn(2, LENGTH, 42, dtype=torch.float64)

    def output(one: Checkpoint, rank: int, rope: int) -> Tensor:
        return to_latent(one, 1, inputs, rank=rank, rope=rope)(inputs, causal=True).output

    whole, truncated = output(model, 20, 20), output(model, 11, 14)
    assert (truncated - whole).abs().max() > 1e-2
    assert (output(turned, 11, 14) - truncated).abs().max() < bound * whole.abs().max()


def test_more_numbers_lose_less():
    model = made("llama")
    calibration, question = rows(23), tiny.tokens(5, LENGTH, seed=7)

    def distance(rank: int, rope: int) -> float:
        converted = convert_to_latent(model, rank=rank, rope=rope, rows=calibration)
        with torch.no_grad():
            return float((converted.forward(question).logits - model.forward(question).logits).square().mean())

    assert distance(5, 20) > distance(10, 20) > distance(15, 20) > 1e3 * distance(20, 20)
    assert distance(40, 4) > distance(40, 10) > distance(40, 16)


@pytest.mark.parametrize("name", ["llama", "mistral, window 5", "gemma2", "phi3"])
def test_a_whole_model_of_full_rank_has_the_same_logits(name):
    model = made(name)
    groups, width = model.layouts[0].num_kv_heads, model.layouts[0].head_dim
    digest, tokens = model.weights_sha256, tiny.tokens(2, LENGTH, seed=3)
    converted = convert_to_latent(model, rank=groups * width, rope=groups * width, rows=rows())
    mask = torch.ones_like(tokens)
    mask[0, :4] = 0
    with torch.no_grad():
        for options in ({}, {"attention_mask": mask}):
            expected = model.forward(tokens, **options).logits
            got = converted.forward(tokens, **options).logits
            real = options.get("attention_mask", torch.ones_like(tokens)).bool()
            assert (got - expected)[real].abs().max() < 1e-4
        cache, parts = headwise_cache(converted, LENGTH, kind="latent", window=False), []
        for part in tokens.split([11, 1, 1, 6], 1):
            parts.append(converted.forward(part, past_key_values=cache, use_cache=True).logits)
        assert (torch.cat(parts, 1) - model.forward(tokens).logits).abs().max() < 1e-4
    per_token = model.num_layers * 2 * groups * width * 4
    assert converted.cache_bytes_per_token == per_token
    assert cache.nbytes_logical == per_token * tokens.numel()
    model.forget_hash()
    assert model.weights_sha256 == digest


@pytest.fixture
def small() -> LatentCheckpoint:
    return convert_to_latent(made("mistral, window 5"), rank=11, rope=14, rows=rows())


def test_a_saved_model_is_the_same_when_it_is_opened(small, tmp_path):
    small.tokenizer = tokenizer(wrapped=False)
    folder = save_latent(small, tmp_path / "latent")
    opened = load_latent(folder)
    tokens = tiny.tokens(2, LENGTH)
    with torch.no_grad():
        assert torch.equal(opened.forward(tokens).logits, small.forward(tokens).logits)
    assert opened.history == small.history
    assert opened.history[-1]["operation"] == "convert_to_latent"
    assert (opened.history[-1]["rank"], opened.history[-1]["rope"]) == (11, 14)
    assert opened.layouts == small.layouts
    assert opened.tokenizer.get_vocab() == small.tokenizer.get_vocab()
    again = save_latent(opened, folder, overwrite=True)
    assert load_latent(again).weights_sha256 == small.weights_sha256


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma2"])  # the second shares its embeddings with its head
def test_another_dtype_is_written_once_and_read_back_to_the_bit(tmp_path, name, dtype):
    source, tokens = made(name), tiny.tokens(2, LENGTH)
    source.stored_dtype = dtype
    converted = convert_to_latent(source, rank=11, rope=14, rows=rows())
    assert converted.stored_dtype == dtype
    digest = converted.weights_sha256
    folder = save_latent(converted, tmp_path / "latent", dtype=dtype)
    converted.forget_hash()
    assert converted.weights_sha256 == digest
    written = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in written.values()} == {dtype}
    assert sum(tensor.numel() for tensor in written.values()) == converted.parameters
    told = json.loads((folder / "latent.json").read_text())
    assert f"torch.{told['dtype']}" == str(dtype)
    round_weights(converted)
    opened, narrow = load_latent(folder), load_latent(folder, dtype=dtype)
    assert (opened.model.dtype, narrow.model.dtype) == (torch.float32, dtype)
    assert opened.stored_dtype == narrow.stored_dtype == dtype
    assert opened.weights_sha256 == converted.weights_sha256
    with torch.no_grad():
        assert torch.equal(opened.forward(tokens).logits, converted.forward(tokens).logits)


def test_nothing_else_opens_the_folder(small, tmp_path):
    folder = save_latent(small, tmp_path / "latent")
    with pytest.raises(
        UserError, match=r"got a model with latent attention .* open it with headwise\.surgery\.mla\.checkpoint"
    ):
        load(folder)
    with pytest.raises(UserError, match=r"latent: exists already; give another --out"):
        save_latent(small, folder)
    with pytest.raises(UserError, match=r"expected a folder that holds latent\.json, .* got none; other models"):
        load_latent(tmp_path)


@pytest.mark.parametrize("damage", ["no weights", "cut weights", "NaN", "other format", "no JSON"])
def test_broken_folders_are_refused(small, tmp_path, damage):
    if damage == "NaN":
        next(iter(small.model.parameters())).view(-1)[3] = torch.nan
    folder = save_latent(small, tmp_path / "latent")
    weights, told = folder / "model.safetensors", folder / "latent.json"
    if damage == "no weights":
        weights.unlink()
    elif damage == "cut weights":
        weights.write_bytes(weights.read_bytes()[:-7])
    elif damage == "other format":
        told.write_text(json.dumps(json.loads(told.read_text()) | {"format": "headwise latent 2"}))
    elif damage == "no JSON":
        told.write_text(told.read_text()[:-9])
    with pytest.raises(UserError, match=r"copy (it|the folder) again") as raised:
        load_latent(folder)
    if damage == "other format":
        assert "its format is 'headwise latent 2', where this version knows 'headwise latent 1'" in str(raised.value)


def test_a_converted_model_is_measured_like_another_and_its_heads_are_not_touched(small):
    tokens = tiny.tokens(3, LENGTH)
    question = Question(tokens[:, :-1], tokens[:, 1:], (0, 1, 2))
    with torch.no_grad():
        assert row_losses(small, question).isfinite().all()
        with pytest.raises(TypeError, match=r"expected a cache of latents, got DynamicCache; pass headwise_cache"):
            small.forward(tokens, use_cache=True)
    assert [(one.num_heads, one.num_kv_heads, one.head_dim, one.value_dim) for one in small.layouts] == [
        (6, 1, 25, 11)
    ] * 3
    with pytest.raises(UserError, match=r"expected one of bert, .*, got headwise_latent"):
        heads_of(small, 0)
    for refused in (lambda: small.observe(print), lambda: small.ablate([(0, 0)]), lambda: small.gate(torch.ones(1))):
        with pytest.raises(UserError, match="its attention is latent, so its heads can't be watched or changed"):
            refused()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("qwen2", "biases, which the projections of latent attention don't have"),
        ("qwen3", "normalised queries and keys, which are not linear in a latent"),
        ("gpt2", "positions of another kind"),
        ("bert", "an encoder"),
    ],
)
def test_what_is_no_latent_attention_is_refused(name, reason):
    with pytest.raises(UserError) as raised:
        convert_to_latent(made(name), rank=2, rope=2, rows=rows())
    assert str(raised.value) == (
        f"{name}, layer 0: expected a decoder with rotary positions, without biases and norms of queries and keys "
        f"(Llama, Mistral, Gemma 2, Phi-3) to convert to latent attention, got {reason}"
    )


@pytest.mark.parametrize(
    ("rank", "rope", "expected"),
    [
        (3, 5, r"expected an even number of rotary dims from 2 to 20 \(2 KV heads of 10\), got 5"),
        (3, 0, "expected an even number of rotary dims from 2 to 20"),
        (3, 22, "expected an even number of rotary dims from 2 to 20"),
        (21, 20, "expected a rank from 1 to 20, which loses nothing more with 20 rotary dims, got 21"),
        (41, 18, "expected a rank from 1 to 40, which loses nothing more with 18 rotary dims, got 41"),
        (0, 18, "expected a rank from 1 to 40"),
        (40, 18, "expected at least 80 tokens of calibration for rank 40, got 38; give more text"),
    ],
)
def test_sizes_out_of_range_are_refused(rank, rope, expected):
    with pytest.raises(UserError, match=expected):
        convert_to_latent(made("llama"), rank=rank, rope=rope, rows=rows(2))
