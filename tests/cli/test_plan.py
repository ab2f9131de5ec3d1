"""`headwise plan` as people and programs use it."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headwise.cli.main import main
from tests.helpers.events import events_of, events_of_an_empty_help

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "max_position_embeddings": 8192,
}
MIXED = {
    "model_type": "gemma2",
    "hidden_size": 2304,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
    "max_position_embeddings": 8192,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
}
BERT = {
    "model_type": "bert",
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
}
HEAVY = {
    "torch",
    "transformers",
    "numpy",
    "pandas",
    "pyarrow",
    "matplotlib",
    "plotly",
    "gguf",
    "safetensors",
    "pydantic",
}


@pytest.fixture(autouse=True)
def _terminal(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    for name, config in (("llama", LLAMA), ("gemma", MIXED), ("deepseek", DEEPSEEK), ("bert", BERT)):
        Path(f"{name}.json").write_text(json.dumps(config))


def told(capsys, *words: str) -> str:
    code = main(["plan", *words])
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    return captured.out


def record(capsys, *words: str) -> dict:
    return json.loads(told(capsys, *words, "--json"))


def refused(capsys, *words: str) -> str:
    assert main(["plan", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("headwise: ")
    assert captured.err.count("\n") == 1
    assert "bug in headwise" not in captured.err
    return captured.err.removeprefix("headwise: ").rstrip("\n")


def test_json_is_one_object(capsys):
    found = record(capsys, "llama.json", "--budget", "24GiB", "--weights", "16GiB", "--batch", "2")
    assert found["model"] == "llama.json"
    assert found["kv_bytes"] == 2 << 30
    assert (found["max_context"], found["max_batch"]) == (32_768, 8)
    assert found["budget"] == 24 << 30
    assert "compare" not in found


def test_a_comparison_is_part_of_the_json(capsys):
    rows = record(capsys, "deepseek.json", "--compare", "mha,mqa")["compare"]
    assert [(row["layout"], row["kv_bytes_per_token"]) for row in rows] == [
        ("as it is", 70_272),
        ("mha", 4_997_120),
        ("mqa", 39_040),
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "bf16, runtime logical\n"),
        (("vllm",), "bf16, runtime vllm (max_num_batched_tokens=8192)\n"),
        (("vllm", "block_size=32"), "bf16, runtime vllm (block_size=32, max_num_batched_tokens=8192)\n"),
        (("sglang",), "bf16, runtime sglang (radix_cache=true, hybrid_swa=true, swa_full_tokens_ratio=0.8)\n"),
        (("transformers",), "bf16, runtime transformers (cache=dynamic, count=storage, last_step=1)\n"),
    ],
)
def test_options_in_force_stand_beside_the_runtime(capsys, monkeypatch, words, line):
    monkeypatch.setenv("COLUMNS", "200")
    asked = [word for pair in zip(("--runtime", "--runtime-option"), words, strict=False) for word in pair]
    assert f"1 sequence of 8,192 tokens, {line}" in re.sub(r" +\n", "\n", told(capsys, "gemma.json", *asked))


@pytest.mark.parametrize("model", ["llama.json", "gemma.json", "deepseek.json"])
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--batch", "1000000", "--context", "100000000", "--tp", "4", "--provenance"),
        ("--compare", "mha,gqa:4,mqa,mla:512+64,window:4096/6", "--budget", "80GB", "--weights", "10GB"),
        ("--budget", "80GB", "--device", "h100-sxm", "--weights", "60GB", "--runtime", "sglang"),
    ],
)
def test_all_tables_fit_into_80_columns(capsys, model, words):
    if model == "deepseek.json" and "--compare" in words:
        words = ("--compare", "mha,gqa:4,mqa,mla:512+64,window:4096/6")
    text = told(capsys, model, *words)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "…" not in text


# The numbers at the end of a line of a table, with their units; lines of equations are set in.
TAIL = re.compile(r"^\S.*? ((?: +[0-9][0-9,.]*(?: (?:[KMGTPEZ]?i?B|%|[kMGTPEZ]))?)+) *$", re.MULTILINE)


@pytest.mark.parametrize("columns", [1, 7, 20, 40, 50, 79])
@pytest.mark.parametrize(
    "words",
    [
        ("--context", "8000"),
        ("--context", "8000", "--batch", "1000000000", "--tp", "2", "--device", "h100-sxm", "--budget", "80GB"),
        ("--context", "8000", "--compare", "mha,gqa:4,mla:512+64,window:4096/6", "--budget", "80GB"),
    ],
)
def test_no_terminal_is_too_narrow_for_a_digit(capsys, monkeypatch, columns, words):
    """The columns of numbers stand as in a wide terminal; what folds are words."""
    wide = told(capsys, "llama.json", *words)
    tails = {" ".join(tail.split()) for tail in TAIL.findall(wide)}
    assert len(tails) >= 5
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = told(capsys, "llama.json", *words)
    lines = [" ".join(line.split()) for line in narrow.splitlines()]
    assert not [tail for tail in tails if not any(line.endswith(tail) for line in lines)]
    if "--compare" in words:
        assert all(re.search(f"^{re.escape(layout)} ", narrow, re.MULTILINE) for layout in words[3].split(","))


@pytest.mark.parametrize("columns", ["20", "80", "200"])
def test_numbers_of_any_size_stand_in_full(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    words = ("llama.json", "--batch", "1099511627776", "--context", "1099511627776", "--tp", "8")
    text, found = told(capsys, *words), record(capsys, *words)
    for name in ("kv_bytes", "key_bytes", "kv_bytes_over_ranks"):
        assert f"{found[name]:,}" in text, name


def test_a_context_that_the_config_does_not_allow_is_told(capsys):
    line = "more than the 8,192 tokens that the config allows\n"
    assert line in re.sub(" +\n", "\n", told(capsys, "llama.json", "--context", "8193"))
    assert line in told(capsys, "llama.json", "--context", "1m", "--compare", "mha")
    assert line not in told(capsys, "llama.json", "--context", "8k")


def test_a_context_in_units(capsys):
    assert [record(capsys, "llama.json", "--context", each)["context"] for each in ("7", "8k", "1M")] == [
        7, 8192, 1_048_576
    ]  # fmt: skip


def test_the_table_says_what_the_json_says(capsys):
    found, text = record(capsys, "gemma.json"), told(capsys, "gemma.json")
    for name in ("kv_bytes", "kv_bytes_per_token", "kv_growth_bytes_per_token", "key_bytes", "attention_parameters"):
        assert f" {found[name]:,}\n" in re.sub(r" +\n", "\n", text), name
    assert "13 x 4,096 tokens x (4 x 256 x 2 B + 4 x 256 x 2 B)" in " ".join(text.split())
    assert re.search(r"^total +624\.00 MiB +654,311,424", text, re.MULTILINE)


def test_ranks_and_latents_are_told(capsys):
    text = told(capsys, "deepseek.json", "--tp", "8", "--context", "1000")
    assert "1 sequence of 1,000 tokens, bf16, runtime logical, one of 8 ranks" in text
    assert re.search(r"^all 8 ranks together .* 562,176,000", text, re.MULTILINE)
    assert re.search(r"^scores absorbed ", text, re.MULTILINE)


def test_a_budget_that_weights_use_up(capsys):
    text = told(capsys, "llama.json", "--budget", "10GiB", "--weights", "11GiB")
    assert "the weights alone leave no room" in text
    assert "weights: not counted" in told(capsys, "llama.json", "--budget", "10GiB")


def test_provenance_and_overrides(capsys):
    text = told(capsys, "llama.json", "--set", "num_key_value_heads=2", "--provenance")
    assert re.search(r"^num_key_value_heads +override", text, re.MULTILINE)
    assert re.search(r"^hidden_size +config hidden_size", text, re.MULTILINE)
    assert "key 2 × 128" in text


def test_runtime_options_are_given_by_name(capsys):
    plain = record(capsys, "gemma.json", "--runtime", "vllm")["kv_bytes"]
    larger = record(capsys, "gemma.json", "--runtime", "vllm", "--runtime-option", "block_size=64")["kv_bytes"]
    assert plain < larger


def test_a_comparison_is_a_table(capsys):
    text = told(capsys, "llama.json", "--compare", "mha", "--budget", "24GiB", "--weights", "16GiB")
    lines = [re.split(r"  +", re.sub(r" (?=\d| *any)", "  ", line.strip())) for line in text.splitlines()[2:5]]
    assert lines[0][0].startswith("layout")
    assert lines[1] == ["as it is", "1.34 G", "128.00 KiB", "128.00 KiB", "1.00 GiB", "25 %", "65,536", "8"]
    assert lines[2] == ["mha", "2.15 G", "512.00 KiB", "512.00 KiB", "4.00 GiB", "100 %", "16,384", "2"]


def test_csv_and_markdown(capsys):
    rows = list(csv.DictReader(io.StringIO(told(capsys, "llama.json", "--compare", "mha", "--format", "csv"))))
    assert [row["kv_bytes"] for row in rows] == ["1073741824", "4294967296"]
    table = told(capsys, "llama.json", "--compare", "mha", "--format", "markdown")
    assert table.startswith("| layout | attention_parameters |")
    assert "| mha |" in table


def test_a_figure_is_named_on_standard_error_only(capsys):
    assert main(["plan", "llama.json", "--compare", "mha", "--figure", "cache.png", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "figure: cache.png\n"
    assert json.loads(captured.out)["compare"]
    assert Path("cache.png").read_bytes()[:4] == b"\x89PNG"


def test_a_device_of_ones_own(capsys):
    found = record(capsys, "llama.json", "--bandwidth", "100", "--flop-rate", "2.5", "--weights", "16GB")["roofline"]
    assert (found["bandwidth"], found["flop_rate"]) == (100 * 10**9, 2_500 * 10**9)
    assert found["step_seconds"] == (16 * 10**9 + (1 << 30)) / 10**11
    assert found["source"] == "given with --bandwidth and --flop-rate"
    alone = record(capsys, "llama.json", "--bandwidth", "100")["roofline"]
    assert (alone["flop_rate"], alone["bound"], alone["source"]) == (None, None, "given with --bandwidth")
    assert re.search(r"reading the cache, .* reading alone *$", told(capsys, "llama.json", "--bandwidth", "1"), re.M)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("nowhere.json",), "nowhere.json"),
        (("llama.json", "--context", "-1"), "--context: expected a whole number from 0 to 1099511627776, got -1"),
        (("llama.json", "--context", "many"), "--context: expected a number of tokens, such as 8192, 8k"),
        (("llama.json", "--batch", "many"), "plan: Invalid value for '--batch'"),
        (("llama.json", "--value-dtype", "bf17"), "--value-dtype: expected one of f32, f16, bf16, fp8,"),
        (("llama.json", "--state-dtype", "bf17"), "--state-dtype: expected one of f32, f16, bf16, fp8,"),
        (("llama.json", "--kv-dtype", "bf17"), "--kv-dtype: expected one of f32, f16, bf16, fp8,"),
        (("llama.json", "--runtime", "x"), "--runtime: expected one of logical, transformers, vllm, llamacpp, sglang"),
        (("llama.json", "--runtime-option", "a=1"), "logical: expected no options, it has none, got a"),
        (("llama.json", "--runtime-option", "a"), "--runtime-option: expected NAME=VALUE, got 'a'"),
        (("llama.json", "--set", "=3"), "--set: expected NAME=VALUE, got '=3'"),
        (("llama.json", "--set", "head_dim=null", "--set", "num_attention_heads=x"), "num_attention_heads: expected a"),
        (("llama.json", "--runtime-option", "name=1"), "logical: expected no options, it has none, got name"),
        (("llama.json", "--runtime", "vllm", "--runtime-option", "a=1"), "vllm: expected an option of it, one of "),
        (("llama.json", "--set", "num_kv_heads=4"), "--set: expected a field that is read for this model, got 'num_kv"),
        (("llama.json", "--budget", "24"), "--budget: expected a size with its unit, got '24'; did you mean 24GiB?"),
        (("llama.json", "--encoder-length", "5"), "--encoder-length: expected a model with an encoder, llama has none"),
        (("llama.json", "--threads", "5"), "--threads: expected --device here with it"),
        (("llama.json", "--threads", "5", "--device", "h200"), "--threads: expected --device here with it"),
        (("bert.json", "--compare", "mha", "--figure", "a.png"), "--figure: expected a model that keeps a cache, bert"),
        (("llama.json", "--budget", "many"), "--budget: expected a size in whole bytes, such as 24GiB"),
        (("llama.json", "--weights", "nowhere"), "--weights: expected a size in whole bytes, such as 24GiB"),
        (("llama.json", "--weights", "model"), "llama.json"),
        (("llama.json", "--device", "abacus"), "--device: expected here or one of a100-40gb,"),
        (("llama.json", "--device", "h200", "--bandwidth", "1"), "--device: expected a device or its --bandwidth and"),
        (("llama.json", "--flop-rate", "1"), "--flop-rate: expected --bandwidth with it; a decode step mostly reads"),
        (("llama.json", "--bandwidth", "nan"), "--bandwidth: expected a number from 0.001 to 1000000000, got nan"),
        (("llama.json", "--bandwidth", "1", "--flop-rate", "inf"), "--flop-rate: expected a number from 0.001 to"),
        (("llama.json", "--format", "xml"), "--format: expected table, csv or markdown, got 'xml'"),
        (("llama.json", "--format", "csv"), "--format csv: expected --compare with it; name the layouts, such as"),
        (("llama.json", "--figure", "a.png"), "--figure: expected --compare with it; name the layouts, such as"),
        (("llama.json", "--compare", "mha", "--format", "csv", "--json"), "--format csv: expected one form, got"),
        (("llama.json", "--compare", "gqa:5"), "--compare gqa:5: expected a number of KV heads that divides the 32"),
        (("llama.json", "--set", "model_type=deepseek_v4"), "model_type: deepseek_v4 can't be planned: "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_one_line(capsys, words, line):
    assert line in refused(capsys, *words)


def test_a_terminal_without_unicode_gets_the_numbers_all_the_same():
    words = [sys.executable, "-m", "headwise.cli.main", "plan", "gemma.json"]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "13 layers, full, key 4 ? 256, value 4 ? 256" in done.stdout
    assert "654,311,424" in done.stdout


def test_a_config_loads_nothing_heavy():
    words = "plan deepseek.json --budget 80GB --weights 1GB --compare mha,mqa --device h200".split()
    code = (
        f"import sys, json; from headwise.cli.main import main; code = main({words!r}); "
        "print(json.dumps([code, sorted(sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    status, loaded = json.loads(done.stdout.splitlines()[-1])
    assert status == 0
    assert not {name.split(".")[0] for name in loaded} & HEAVY


def test_a_config_is_planned_with_no_more_than_a_help_takes():
    """A count, not a time; benchmarks/startup.py times it. Typer's own help takes about as much as planning does."""
    planning = "from headwise.cli.main import main; assert main(['plan', 'gemma.json']) == 0"
    assert events_of(planning) < 1.25 * events_of_an_empty_help()
