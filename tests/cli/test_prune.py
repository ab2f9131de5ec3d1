"""`headwise prune` as it is typed: what comes out, what the folder holds, and what is refused before any work."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoModelForCausalLM

from headwise.cli import prune_run
from headwise.errors import UserError
from headwise.layout import HeadLayout
from headwise.models import load
from headwise.models.corpus import cut_rows, read_corpus
from headwise.models.questions import document_losses
from headwise.report import prune_figure
from headwise.surgery.pruning import scores as prune_scores
from tests.cli.typed import changed, model, run, texts
from tests.fixtures import one_thread
from tests.study import tiny

__all__ = ["model", "one_thread", "run", "texts"]

ROWS = ("--tokens", "700", "--length", "50")


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    return tiny.save_bert(tmp_path_factory.mktemp("models") / "bert")


def _one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr.strip().splitlines()[-1]


def test_json_is_one_object_and_the_folder_opens_with_the_same_losses(run, tmp_path, model, texts):
    out = tmp_path / "smaller"
    words = ("--heads", 6, "--documents", texts, "--out", out, "--seed", 3, "--curve", "--json", *ROWS)
    done = run("prune", model, *words)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["heads"], told["kv_heads"]) == ([18, 12], [6, 4])
    assert (told["cache_bytes_per_token"], told["cache_dtype"]) == ([480, 320], "float32")
    assert told["parameters"][0] - told["parameters"][1] == 6 * 2 * 10 * 66 + 2 * 2 * 10 * 66
    assert told["format"] == "headwise"
    assert sum(len(layer["removed"]) for layer in told["layers"]) == 6
    assert all((layer["recovered"] is None) == (not layer["removed"]) for layer in told["layers"])
    opened = load(out)
    held_out = cut_rows(
        read_corpus(texts).held_out, opened.tokenizer, tokens=350, length=50, seed=3, what="the test"
    )  # fmt: skip
    losses = {"before": document_losses(load(model), held_out), "after": document_losses(opened, held_out)}
    for name, loss in losses.items():
        assert told["loss"][name] == pytest.approx(loss.mean(), abs=1e-6)
    assert told["loss"]["low"] <= told["loss"]["difference"] <= told["loss"]["high"]
    (step,) = opened.history
    assert (step["operation"], step["heads"], step["seed"], step["length"]) == ("prune", 6, 3, 50)
    curve = json.loads((out / "curve.json").read_bytes())
    assert {point["order"] for point in curve["points"]} == {"fixed", "greedy", "random"}
    assert (out / "curve.png").stat().st_size > 1_000
    assert not set(step["documents"]) & set(curve["documents"]), "measured on documents that were calibrated on"


def test_uniform_numbers_open_in_transformers_alone(run, tmp_path, model, texts):
    out = tmp_path / "smaller"
    done = run("prune", model, "--heads", 9, "--uniform", "--documents", texts, "--out", out, *ROWS)
    assert done.returncode == 0, done.stderr
    opened = AutoModelForCausalLM.from_pretrained(out)
    assert (opened.config.num_attention_heads, opened.config.num_key_value_heads) == (3, 1)
    words = " ".join(done.stdout.split())
    assert "6 → 3" in words
    assert "2 → 1" in words
    assert "−50.0%" in words
    assert "held-out documents" in words
    assert f"model: {out} (format stock)" in done.stdout
    assert "KV heads │ 6 │ 3 │ −50.0%" in words
    assert "stock tools" not in words


def test_uniform_numbers_that_no_stock_format_holds_are_noted_with_those_that_would_fit(run, tmp_path, bert, texts):
    """BERT has no word for fewer heads of the same width."""
    words = ("--share", 0.34, "--uniform", "--curve", "--documents", texts, "--out", tmp_path / "s", "--json", *ROWS)
    done = run("prune", bert, *words)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["format"] == "headwise"
    curve, stock = told["notes"][:2]
    assert curve == "the curve is of free removal, from any layer, not of uniform removal"
    assert stock.startswith("stock tools will not open it: bert has 3 heads of ")
    assert stock.endswith("; with --uniform, no other number of heads would fit")


def test_what_would_fit_is_named(model):
    """Llama's config refuses a width of 66 with 4 heads, and takes 2; with biases Mistral's can't take over."""
    checkpoint = load(model, check=False)
    checkpoint.model.config.attention_bias = True
    request = SimpleNamespace(uniform=True, curve=False, unit="head")
    layouts = [HeadLayout(4, 2, layout.head_dim) for layout in checkpoint.layouts]
    (note,) = prune_run._uniform_notes(checkpoint, SimpleNamespace(layouts=layouts), request)  # type: ignore[arg-type]
    assert re.fullmatch(
        "stock tools will not open it: LlamaConfig refuses: .* with --uniform, --heads 12 would fit", note
    )


def test_one_kv_head_a_layer_leaves_the_heads_to_choose_from(run, tmp_path, model, texts):
    shared = tmp_path / "shared"
    assert run("prune", model, "--heads", 9, "--uniform", "--score", "magnitude", "--no-compensate",
               "--documents", texts, "--out", shared, *ROWS).returncode == 0  # fmt: skip
    done = run("prune", shared, "--heads", 3, "--documents", texts, "--out", tmp_path / "s", *ROWS)
    assert _one_line(done).endswith(
        "prune: expected layers with several KV groups, one of which stays, got one in each; take --unit head"
    )


def test_an_architecture_that_cannot_be_reshaped_is_named(run, tmp_path, monkeypatch, model, texts):
    def other(_):
        checkpoint = load(model, check=False)
        checkpoint.model.config.model_type = "made-up"
        return checkpoint

    monkeypatch.setattr(prune_run, "load", other)
    done = run("prune", model, "--heads", 5, "--documents", texts, "--out", tmp_path / "s", *ROWS)
    assert "whose projections headwise can read and replace, got made-up" in _one_line(done)


def test_an_encoder_has_masked_losses_and_no_cache(run, tmp_path, bert, texts):
    done = run("prune", bert, "--share", 0.34, "--documents", texts, "--out", tmp_path / "s", "--json", *ROWS)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["heads"] == [6, 4]
    assert told["cache_bytes_per_token"] is told["cache_dtype"] is None
    assert told["loss"]["before"] > 1


def test_without_compensation_nothing_is_said_to_be_recovered(run, tmp_path, model, texts):
    words = ("--heads", 2, "--unit", "head", "--score", "random", "--no-compensate", "--documents", texts)
    done = run("prune", model, *words, "--out", tmp_path / "s", *ROWS)
    assert done.returncode == 0, done.stderr
    assert "–" in done.stdout
    assert load(tmp_path / "s").history[-1]["compensated"] is False


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--heads", 0), "prune: expected at least 1 head to remove, got 0"),
        (("--heads", -3), "prune: expected at least 1 head to remove, got -3"),
        (("--share", 0.9), "got a share of 0.9, which is 16.2 heads; use --heads 9"),
        (("--share", 0.2, "--uniform"), "got a share of 0.2, which is 3.6 heads; use --heads 9"),
        (("--heads", 3, "--tokens", 10), "in 50 tokens; give more --tokens or documents, or --no-compensate"),
        (("--heads", 5), "a multiple of 3 up to 9 of the 18 heads"),
        (("--heads", 3, "--uniform"), "got 3; use 9"),
        (("--heads", 3, "--format", "stock"), "expected layers that the format stock can hold, got 3/1, 6/2"),
        (("--heads", 9, "--uniform", "--format", "gpt_bigcode"), "the format gpt_bigcode can hold"),
        (("--heads", 3, "--format", "onnx"), "expected one of stock, mistral, gpt_bigcode, headwise, got 'onnx'"),
        ((), "expected --heads or --share, got both or neither"),
        (("--heads", 3, "--share", 0.2), "expected --heads or --share, got both or neither"),
        (("--heads", 3, "--unit", "layer"), "the unit head or group, got 'layer'"),
        (("--heads", 3, "--score", "taste"), "a score out of contribution, first-order, ablation"),
        (("--heads", 3, "--tokens", 70_000), "for calibration, got"),
        (("--heads", 3, "--tokens", 64, "--length", 16), "tokens of calibration for 60 dimensions of kept heads"),
        (("--heads", 3, "--out", "/proc/smaller"), "/proc/smaller"),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_work(run, tmp_path, monkeypatch, model, texts, words, told):
    def work(*_, **__):
        raise AssertionError("scored before it was refused")

    monkeypatch.setattr(prune_scores, "gate_gradients", work)
    done = run("prune", model, *changed(("--documents", texts, "--out", tmp_path / "s", *ROWS), words))
    assert done.returncode == 2, done.stderr
    assert told in _one_line(done)
    assert list(tmp_path.iterdir()) == []


def test_rows_beyond_the_positions_are_refused_before_any_work(run, tmp_path, monkeypatch, bert, texts):
    """Of scores that read text, of compensation, and of the loss at the end."""

    def work(*_, **__):
        raise AssertionError("scored before it was refused")

    monkeypatch.setattr(prune_run, "score_units", work)
    long = tiny.write_texts(tmp_path / "long", length=400)
    words = ("--share", 0.34, "--documents", long, "--tokens", 700, "--length", 132, "--out", tmp_path / "s")
    for score in ("contribution", "magnitude"):
        done = run("prune", bert, *words, "--score", score, "--no-compensate")
        told = "bert: expected rows of at most 131 tokens, for which it has positions, got 132; ask for shorter rows"
        assert _one_line(done) == f"headwise: {told}"
        assert done.returncode == 2


def test_a_masked_model_without_a_mask_is_refused_before_any_work(run, tmp_path, monkeypatch, bert, texts):
    maskless = tmp_path / "maskless"
    shutil.copytree(bert, maskless)
    settings = json.loads((maskless / "tokenizer_config.json").read_bytes())
    (maskless / "tokenizer_config.json").write_text(json.dumps(settings | {"mask_token": None}), encoding="utf-8")
    assert load(maskless, check=False).tokenizer.mask_token_id is None

    def work(*_, **__):
        raise AssertionError("scored before it was refused")

    monkeypatch.setattr(prune_run, "score_units", work)
    words = ("--share", 0.34, "--score", "contribution", "--documents", texts, *ROWS)
    done = run("prune", maskless, *words, "--out", tmp_path / "s")
    assert "a masked language model whose tokenizer has no mask token" in _one_line(done)
    assert not (tmp_path / "s").exists()


def test_a_curve_that_cannot_be_drawn_leaves_nothing_half_written(run, tmp_path, monkeypatch, model, texts):
    def fail(*_, **__):
        raise UserError("the disk is full")

    monkeypatch.setattr(prune_figure, "draw_curve", fail)
    words = ("--heads", 3, "--score", "magnitude", "--documents", texts, "--curve", *ROWS)
    assert _one_line(run("prune", model, *words, "--out", tmp_path / "s")) == "headwise: the disk is full"
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_refused_and_replaced_on_request(run, tmp_path, model, texts):
    out = tmp_path / "s"
    words = ("prune", model, "--heads", 3, "--score", "magnitude", "--documents", texts, "--out", out, *ROWS)
    assert run(*words).returncode == 0
    again = run(*words)
    assert again.returncode == 2
    assert _one_line(again).endswith("exists already; give another --out, or --overwrite to replace it")
    assert run(*words, "--overwrite").returncode == 0


def test_help_shows_examples_and_every_option(run):
    done = run("prune", "--help")
    assert done.returncode == 0
    options = (
        "--heads --share --unit --score --uniform --no-compensate --curve --format --out --documents --tokens --json"
    )
    for word in ("Examples", "headwise prune demo", *options.split()):
        assert word in done.stdout


def test_help_needs_no_torch():
    code = (
        "import sys; from headwise.cli.main import main; main(['prune', '--help']); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'pandas', 'matplotlib')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
