"""`headwise prune` as it is typed: what comes out, what the folder holds, and what is refused before any work."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from headwise.cli import prune_run
from headwise.cli.main import main
from headwise.errors import UserError
from headwise.models import load
from headwise.models.corpus import cut_rows, read_corpus
from headwise.models.questions import document_losses
from headwise.report import prune_figure
from headwise.surgery import prune_scores
from tests.fixtures import one_thread
from tests.study import tiny

__all__ = ["one_thread"]

ROWS = ("--tokens", "700", "--length", "50")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Three layers of six query heads on two KV heads."""
    return tiny.save_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    return tiny.save_bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    return tiny.write_texts(tmp_path_factory.mktemp("texts") / "all")


@pytest.fixture
def run(capsys) -> Callable[..., subprocess.CompletedProcess[str]]:
    def inside(*words: object) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    return inside


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
    assert told["heads"] == [18, 12]
    assert told["cache_bytes_per_token"] == [480, 320]
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
    assert (step["operation"], step["heads"], step["seed"]) == ("prune", 6, 3)
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


def test_an_encoder_has_masked_losses_and_no_cache(run, tmp_path, bert, texts):
    done = run("prune", bert, "--share", 0.34, "--documents", texts, "--out", tmp_path / "s", "--json", *ROWS)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["heads"] == [6, 4]
    assert told["cache_bytes_per_token"] is None
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
    done = run("prune", model, "--documents", texts, "--out", tmp_path / "s", *ROWS, *words)
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
