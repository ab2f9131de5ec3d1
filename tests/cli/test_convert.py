"""`headwise convert` as it is typed: what comes out, what the folder holds, and what is refused before any work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from headwise.errors import UserError
from headwise.models import load
from headwise.models.corpus import cut_rows, read_corpus
from headwise.models.questions import document_losses
from headwise.surgery.export import export
from headwise.surgery.mla.checkpoint import load_latent
from tests.cli.typed import changed, model, run, texts
from tests.fixtures import one_thread
from tests.study import tiny

__all__ = ["model", "one_thread", "run", "texts"]

ROWS = ("--tokens", "700", "--length", "50")


def test_json_is_one_object_and_stock_transformers_opens_the_folder(run, tmp_path, model, texts):
    out = tmp_path / "mqa"
    words = ("--kv-heads", 1, "--documents", texts, "--out", out, "--steps", 4, "--json", *ROWS)
    done = run("convert", model, *words)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["kv_heads"] == [6, 3]
    assert (told["cache_bytes_per_token"], told["cache_dtype"]) == ([480, 240], "float32")
    assert told["parameters"][0] - told["parameters"][1] == 3 * 2 * 10 * 66
    assert (told["method"], told["grouping"], told["steps"], told["format"]) == ("pca", "chosen", 4, "stock")
    assert [layer["groups"] for layer in told["layers"]] == [[[0, 1]]] * 3
    assert all(layer["fitted"] <= layer["refitted"] for layer in told["layers"])
    stock = AutoModelForCausalLM.from_pretrained(out)
    assert stock.config.num_key_value_heads == 1
    checkpoint, original = load(out), load(model)
    assert checkpoint.history[-1]["operation"] == "convert"
    held_out = cut_rows(
        read_corpus(texts).held_out, checkpoint.tokenizer, tokens=175, length=50, seed=0, what="the test"
    )
    with torch.no_grad():
        difference = stock(input_ids=held_out.tokens).logits - checkpoint.forward(held_out.tokens).logits
    assert difference.abs().max() < 1e-4
    losses = [document_losses(each, held_out, seed=0) for each in (original, checkpoint)]
    assert told["loss"]["before"] == pytest.approx(losses[0].mean(), rel=1e-5)
    assert told["loss"]["after"] == pytest.approx(losses[1].mean(), rel=1e-5)
    assert told["loss"]["low"] <= told["loss"]["difference"] <= told["loss"]["high"]
    used = set(checkpoint.history[-1]["documents"])
    assert used
    assert not used & set(held_out.documents)


def test_the_table_names_every_layer_and_where_the_model_lies(run, tmp_path, model, texts, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    out = tmp_path / "mqa"
    done = run("convert", model, "--kv-heads", 1, "--documents", texts, "--out", out, "--steps", 0, *ROWS)
    assert done.returncode == 0, done.stderr
    for piece in ("0+1", "merged", "refitted", "KV heads", "−50.0%", "(float32)", f"model: {out} (format stock)"):
        assert piece in done.stdout
    assert "fitted" not in done.stdout.replace("refitted", "").replace("not fitted", "")


def test_the_baselines_need_no_calibration(run, tmp_path, model, texts):
    done = run(
        "convert", model, "--kv-heads", 1, "--documents", texts, "--out", tmp_path / "mean", "--method", "mean",
        "--json", *ROWS,
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert told["calibration"] == {"tokens": 0, "length": 0, "documents": 0, "random_rows": 0, "copies": 0}
    assert (told["grouping"], told["refit"], told["steps"]) == ("adjacent", False, 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "convert: expected --kv-heads or --mla, got both or neither"),
        (("--kv-heads", 1, "--mla", "5+2"), "got both or neither"),
        (("--kv-heads", 4), "expected a number of KV heads that divides the 2 of layer 0 (1), got 4"),
        (("--kv-heads", 2), "expected fewer KV heads than it has, got 2, which every layer has already"),
        (("--kv-heads", 1, "--tokens", 600, "--length", 300), "documents: expected 600 tokens in rows of 300"),
        (("--kv-heads", 1, "--method", "median"), "expected method to be one of pca, aligned, mean, first"),
        (("--kv-heads", 1, "--grouping", "any"), "expected grouping to be chosen or adjacent, got 'any'"),
        (("--kv-heads", 1, "--format", "onnx"), "onnx"),
        (("--kv-heads", 1, "--tokens", 200), "expected at least 264 tokens of calibration"),
        (("--kv-heads", 1, "--tokens", 9_999), "expected 10,000 tokens in rows of 50 for calibration, got"),
    ],
)
def test_what_is_refused_leaves_nothing(run, tmp_path, model, texts, words, message):
    out = tmp_path / "out"
    done = run("convert", model, *changed(("--documents", texts, "--out", out, *ROWS), words))
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_kept(run, tmp_path, model, texts):
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter.tex").write_text("years", encoding="utf-8")
    for more in ((), ("--overwrite",)):
        done = run("convert", model, "--kv-heads", 1, "--out", out, "--documents", texts, *ROWS, *more)
        assert done.returncode == 2
        assert "not what headwise writes as a model (no headwise.json), so not even --overwrite" in done.stderr
    assert (out / "chapter.tex").read_text(encoding="utf-8") == "years"


def test_latent_attention_is_written_in_a_format_of_its_own(run, tmp_path, model, texts):
    out = tmp_path / "latent"
    words = ("--mla", "23+10", "--documents", texts, "--out", out, "--json", *ROWS)
    done = run("convert", model, *words)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["cache_bytes_per_token"] == [480, 3 * 33 * 4]
    assert (told["rank"], told["rope"], told["format"]) == (23, 10, "latent")
    latent = load_latent(out)
    held_out = cut_rows(read_corpus(texts).held_out, latent.tokenizer, tokens=175, length=50, seed=0, what="the test")
    assert told["loss"]["after"] == pytest.approx(document_losses(latent, held_out, seed=0).mean(), rel=1e-5)
    with pytest.raises(UserError, match=r"a model with latent attention .*; open it with .*\.load_latent"):
        load(out)
    assert (out / "model.safetensors").stat().st_mode == (out / "latent.json").stat().st_mode
    with pytest.raises(UserError, match="its attention is latent, which no format of export holds"):
        export(latent, tmp_path / "other")
    assert "no stock format" in run("convert", model, *words[:6], *ROWS, "--overwrite").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--mla", "23"), "--mla: expected RANK+ROPE, such as 192+64, got '23'"),
        (("--mla", "a+b"), "expected RANK+ROPE"),
        (("--mla", "23+10", "--format", "stock"), "expected no --format"),
        (("--mla", "23+10", "--steps", 3, "--method", "mean"), "expected no --method, --steps, which say how"),
        (("--mla", "23+10", "--no-refit"), "expected no --no-refit"),
        (("--mla", "23+11"), "expected an even number of rotary dims from 2 to 20"),
        (("--mla", "999+10"), "expected a rank from 1 to"),
    ],
)
def test_latent_sizes_that_cannot_be_are_refused(run, tmp_path, model, texts, words, message):
    done = run("convert", model, "--documents", texts, "--out", tmp_path / "out", *words, *ROWS)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


def saved_in(dtype: torch.dtype, model: Path, folder: Path) -> Path:
    AutoModelForCausalLM.from_pretrained(model, dtype=dtype).save_pretrained(folder)
    tiny.tokenizer(wrapped=False).save_pretrained(folder)
    return folder


@DTYPES
def test_latents_stay_in_the_dtype_of_the_files_and_are_judged_as_they_are_written(run, tmp_path, model, texts, dtype):
    source, out = saved_in(dtype, model, tmp_path / "source"), tmp_path / "latent"
    words = ("--mla", "23+10", "--documents", texts, "--out", out, "--json", *ROWS)
    told = json.loads(run("convert", source, *words).stdout)
    size = dtype.itemsize
    assert told["cache_bytes_per_token"] == [3 * 2 * 2 * 10 * size, 3 * 33 * size]
    assert f"torch.{told['cache_dtype']}" == str(dtype)
    assert {tensor.dtype for tensor in load_file(out / "model.safetensors").values()} == {dtype}
    written = load_latent(out)
    assert written.stored_dtype == dtype
    held_out = cut_rows(read_corpus(texts).held_out, written.tokenizer, tokens=175, length=50, seed=0, what="the test")
    assert told["loss"]["after"] == document_losses(written, held_out, seed=0).mean()


def test_a_model_in_bfloat16_stays_one_and_is_judged_as_it_is_written(run, tmp_path, model, texts):
    half, out = saved_in(torch.bfloat16, model, tmp_path / "half"), tmp_path / "mqa"
    words = ("--kv-heads", 1, "--documents", texts, "--out", out, "--steps", 0, "--json", *ROWS)
    told = json.loads(run("convert", half, *words).stdout)
    assert (told["cache_bytes_per_token"], told["cache_dtype"]) == ([240, 120], "bfloat16")
    stock = AutoModelForCausalLM.from_pretrained(out)
    assert stock.dtype == torch.bfloat16
    written = load(out)
    held_out = cut_rows(read_corpus(texts).held_out, written.tokenizer, tokens=175, length=50, seed=0, what="the test")
    assert told["loss"]["after"] == pytest.approx(document_losses(written, held_out, seed=0).mean(), rel=1e-6)


def test_gpt2_with_one_kv_head_is_told_as_it_is_written(run, tmp_path, texts):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=216, n_layer=2, n_head=3, n_embd=33, n_positions=64, bos_token_id=1, eos_token_id=2)
    model, out = tmp_path / "gpt2", tmp_path / "mqa"
    GPT2LMHeadModel(config).save_pretrained(model)
    tiny.tokenizer(wrapped=False).save_pretrained(model)
    done = run("convert", model, "--kv-heads", 1, "--documents", texts, "--out", out, "--json", *ROWS)
    told = json.loads(done.stdout)
    assert (told["format"], told["kv_heads"], told["steps"]) == ("gpt_bigcode", [6, 2], 0)
    assert told["cache_bytes_per_token"] == [2 * 2 * 33 * 4, 2 * 2 * 11 * 4]
    stock = AutoModelForCausalLM.from_pretrained(out)
    assert told["parameters"] == [load(model).parameters, sum(one.numel() for one in stock.parameters())]
    longer = ("--documents", texts, "--length", 65, "--tokens", 700, "--out", tmp_path / "other")
    assert "expected rows of at most 64 tokens" in run("convert", model, "--kv-heads", 1, *longer).stderr
