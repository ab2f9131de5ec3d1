"""`headwise bench` as it is typed: tables, JSON, the folder, exit codes and refusals."""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from headwise.bench.layouts import run as comparing
from headwise.bench.layouts.memory import Peak
from headwise.cli.main import main
from tests.bench.layouts import DEVICE
from tests.fixtures import one_thread

__all__ = ["one_thread"]

LOAD = ("--batch", "3", "--context", "31", "--rounds", "5")
SIZES = ("--like", "config.json", *LOAD)
CONFIG = {
    "model_type": "llama", "hidden_size": 23, "num_hidden_layers": 3, "num_attention_heads": 6, "head_dim": 10,
    "num_key_value_heads": 2, "vocab_size": 97, "intermediate_size": 41, "max_position_embeddings": 53,
}  # fmt: skip


@pytest.fixture
def run(capsys, monkeypatch, tmp_path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """In a folder with a config, and with speeds and peaks that are made up: measuring them takes processes."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparing, "measured_device", lambda dtype: DEVICE)
    monkeypatch.setattr(
        comparing,
        "measure_peak",
        lambda spec, load, *, repeats, **_: Peak(1 << 20, (3 if repeats else 2) << 20, 4 << 20),
    )

    def inside(*words: object) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        code = main(["bench", *map(str, words)])
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    return inside


def strict(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_json_is_one_object_and_nothing_else(run):
    done = run(*SIZES, "--layouts", "mha,mla:11+4,window:7", "--seed", 3, "--json", "--dtype", "bfloat16")
    assert done.returncode == 0, done.stderr
    record = strict(done.stdout)
    assert [each["name"] for each in record["layouts"]] == ["gqa:2", "mha", "mla:11+4", "window:7"]
    assert [each["name"] for each in record["repeating"]] == ["gqa:2 repeated"]
    asked = record["settings"]
    assert (asked["width"], asked["like"], asked["seed"], asked["dtype"]) == (23, "config.json", 3, "bfloat16")
    assert (asked["batch"], asked["context"], asked["rounds"], asked["layers"]) == (3, 31, 5, 1)
    for each in record["layouts"]:
        assert each["cache_bytes"]["planned"] == each["cache_bytes"]["allocated"]
        assert each["check"]["agrees"] is True


def test_the_exercise_of_the_head_counts_is_one_call(run):
    done = run("--layouts", "mha/4,mha/8,mha/16,mha/32", "--width", 64, *LOAD, "--no-memory", "--json")
    assert done.returncode == 0, done.stderr
    layouts = strict(done.stdout)["layouts"]
    assert [(each["heads"], each["head_dim"]) for each in layouts] == [(4, 16), (8, 8), (16, 4), (32, 2)]
    assert {each["parameters"]["total"] for each in layouts} == {4 * 64 * 64}
    assert {each["cache_bytes"]["allocated"] for each in layouts} == {3 * 31 * 2 * 64 * 4}
    softmax = [each["softmax_elements"]["decode"] for each in layouts]
    assert softmax == [3 * 31 * heads for heads in (4, 8, 16, 32)]


def test_without_layouts_it_is_the_exercise_of_the_kv_heads(monkeypatch, run):
    asked: list[Any] = []

    def stop(settings, **_):
        asked.append(settings)
        raise comparing.CheckFailed(["stopped"])

    monkeypatch.setattr(comparing, "compare_layouts", stop)
    assert run().returncode == 1
    (settings,) = asked
    assert [(each.name, each.heads, each.kv_heads) for each in settings.specs] == [
        ("mha", 8, 8), ("gqa:4", 8, 4), ("gqa:2", 8, 2), ("mqa", 8, 1)
    ]  # fmt: skip
    assert {(each.width, each.head_dim) for each in settings.specs} == {(512, 64)}
    assert (settings.load.batch, settings.load.context, settings.load.dtype) == (1, 2048, "float32")
    assert run("--like", "config.json").returncode == 1
    assert [each.name for each in asked[1].specs] == ["gqa:2", "mha", "gqa:3", "mqa"]


@pytest.mark.parametrize("columns", [80, 120])
def test_the_tables_fit_and_nothing_is_cut(run, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    done = run(*SIZES, "--layouts", "mha,mla:11+4,mixed:2@7")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    assert "…" not in done.stdout
    rows = [line.split() for line in lines]
    assert ["gqa:2", "6", "on", "2", "10", "1,380", "460", "460", "1,380", "3,680"] in rows
    assert ["gqa:2", "14.53", "KiB", "14.53", "KiB", "1.00", "14.53", "KiB"] in rows
    assert ["gqa:2", "repeated", "14.53", "KiB", "2.00", "MiB", "2.00", "3.00", "MiB", "1.00"] in rows
    assert next(row[-1] for row in rows if row[:2] == ["gqa:2", "repeated"]).endswith("%")
    told = " ".join(done.stdout.split())
    assert "one attention layer of width 23, 3 sequences of 31 tokens, float32" in told
    assert "note: one attention layer was measured, not a model" in told
    assert "note: a smaller cache does not mean less peak memory: gqa:2 repeated keeps the cache of gqa:2" in told
    assert "roofline: 7.0 GB/s, 11.0 GFLOP/s, made up" in told
    assert "repeated: K and V copied for every query head" in told


def test_no_two_columns_have_one_name(run, monkeypatch):
    """One below the other, too, each name says what it is without the one before."""
    monkeypatch.setenv("COLUMNS", "40")
    done = run(*SIZES, "--layouts", "mha,mla:11+4")
    blocks: list[list[str]] = []
    for line in done.stdout.splitlines():
        if line.startswith("    "):
            blocks[-1].append(line.partition(": ")[0].strip())
        elif line.startswith("  "):
            blocks.append([])
    assert len(blocks) == 3 * 3 + 3 * 4  # counted of three layouts; measured of one that repeats as well
    assert all(len(set(names)) == len(names) > 2 for names in blocks)
    assert ["FLOPs of prefill", "FLOPs of a token", "softmax of prefill", "softmax of a token"] in blocks
    assert ["cache", "a token", "a token, of gqa:2", "prefill", "prefill, of gqa:2"] in blocks
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.split() for line in run(*SIZES, "--layouts", "mha,mla:11+4").stdout.splitlines()]
    over = lines.index(["prefill", "a", "token", "prefill", "a", "token"])
    assert lines[over - 1] == ["FLOPs", "of", "FLOPs", "of", "softmax", "of", "softmax", "of"]
    over = lines.index(["cache", "a", "token", "of", "gqa:2", "prefill", "of", "gqa:2"])
    assert lines[over - 1] == ["a", "token,", "prefill,"]


def test_a_narrow_terminal_has_one_value_a_line(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "44")
    done = run(*SIZES, "--layouts", "mqa", "--no-memory")
    lines = done.stdout.splitlines()
    assert "  gqa:2 repeated" in lines
    assert "    output: 1,380" in lines
    assert "peak memory, above" not in done.stdout
    assert "note: peak memory was not measured: as was asked for" in " ".join(done.stdout.split())


def test_a_folder_holds_json_csv_a_picture_and_the_manifest(run, tmp_path):
    from PIL import Image

    done = run(*SIZES, "--layouts", "mqa,window:7", "--out", "made", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "written: made"
    folder = tmp_path / "made"
    assert sorted(file.name for file in folder.iterdir()) == ["bench.csv", "bench.json", "bench.png", "manifest.json"]
    record = strict((folder / "bench.json").read_text())
    assert record == strict(done.stdout)
    manifest = strict((folder / "manifest.json").read_text())
    assert manifest["kind"] == "bench"
    for name in ("settings", "environment", "device", "notes", "seconds"):
        assert manifest[name] == record[name]
    lines = list(csv.DictReader((folder / "bench.csv").open()))
    assert [line["name"] for line in lines] == ["gqa:2", "gqa:2 repeated", "mqa", "mqa repeated", "window:7"]
    assert float(lines[0]["decode.median_seconds"]) == record["layouts"][0]["decode"]["median_seconds"]
    with Image.open(folder / "bench.png") as picture:
        assert picture.size[0] > 1000
        assert sum(count > 0 for count in picture.convert("L").histogram()) > 10
    again = run(*SIZES, "--out", "made")
    assert again.returncode == 2
    assert "made: exists already; give another --out, or --overwrite to replace it" in again.stderr
    assert run(*SIZES, "--layouts", "mqa", "--out", "made", "--overwrite").returncode == 0
    assert "window" not in (folder / "bench.csv").read_text().split("\n", 1)[1]


def test_a_study_is_not_overwritten(run, tmp_path):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "manifest.json").write_text("{}")
    done = run(*SIZES, "--out", "study", "--overwrite")
    assert done.returncode == 2
    assert "study: exists already and is not " in done.stderr
    assert "a comparison of layouts (no bench.json)" in done.stderr
    assert (tmp_path / "study" / "manifest.json").read_text() == "{}"


def test_what_falls_short_exits_with_1_and_says_so(run, monkeypatch):
    from headwise.bench.layouts.runners import Runner
    from headwise.cache import DenseCache

    monkeypatch.setattr(Runner, "cache", lambda self, load: DenseCache(load.batch, 2, load.context + 1, 10))
    done = run("--like", "config.json", "--context", "31", "--rounds", "5", "--layouts", "gqa:2", "--json")
    assert (done.returncode, done.stdout) == (1, "")
    told = [line for line in done.stderr.splitlines() if line.startswith("fell short: ")]
    assert told[0].startswith("fell short: gqa:2: expected a cache of the planned 4,960 bytes, got 5,120 allocated; ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("--layouts", "gqa:3"),
            "--layouts gqa:3: expected a number of KV heads that divides the 8 query heads, got 3",
        ),
        (("--layouts", "mla:8+3"), "--layouts mla:8+3: expected an even rotary part of at least 2 elements"),
        (("--layouts", "window:0"), "--layouts window:0: expected a window of at least 1 key, the query's own, got 0"),
        (
            ("--layouts", "mixed:9@5"),
            "--layouts mixed:9@5: expected 1 to 8 local heads, of the 8 that there are, got 9",
        ),
        (("--layouts", "mha,full"), "--layouts: expected mha, gqa:KVHEADS, mqa, mla:RANK+ROPE, window:KEYS or mixed:"),
        (("--layouts", "mqa,mqa"), "--layouts: expected each layout once, got mqa twice; leave one out"),
        (
            ("--heads", "3"),
            "--heads: expected a number of heads that divides --width 512, got 3; use one of 1, 2, 4, 8",
        ),
        (
            ("--context", "many"),
            "--context: expected a number of tokens, such as 8192, 8k (8 x 1,024) or 1m, got 'many'",
        ),
        (("--dtype", "int8"), "--dtype: expected float32, bfloat16 or float16, got 'int8'"),
        (("--rounds", "4"), "--rounds: expected 5, of which there are quartiles, to 10,000, which take hours, got 4"),
        (("--batch", "0"), "--batch: expected at least 1 sequence, got 0"),
        (("--like", "config.json", "--width", "9"), "--like config.json: expected no --width and --heads, which it "),
        (("--like", "nothing.json"), "nothing.json: no such folder or file"),
        (("--overwrite",), "--overwrite: expected --out with it, the folder to replace; name it, or leave this out"),
        (("--out", "."), "--out: got the current folder, or nothing; name a new folder for the comparison of layouts"),
    ],
)
def test_wrong_words_are_refused_before_any_work(run, monkeypatch, words, told):
    monkeypatch.setattr(comparing, "compare_layouts", lambda *a, **o: pytest.fail("worked all the same"))
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"headwise: {told}")


def test_what_there_is_no_memory_for_is_refused(run, monkeypatch):
    monkeypatch.setattr(comparing, "available_bytes", lambda: 1 << 20)
    monkeypatch.setattr(comparing, "build_runner", lambda *a, **o: pytest.fail("built all the same"))
    done = run("--context", "1m", "--batch", "64", "--layouts", "mha,mqa")
    assert done.returncode == 2
    assert "expected caches and activations in at most half of the 1.00 MiB that are free, got about 1." in done.stderr
    assert "for 2 layouts at batch 64, context 1,048,576 in float32; ask for a shorter --context" in done.stderr


def test_words_are_judged_without_torch():
    code = (
        "import sys; from headwise.cli.main import main; "
        "code = main(['bench', '--layouts', 'gqa:3']); print(code, 'torch' in sys.modules)"
    )
    import sys

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "2 False\n", done.stderr


def test_layouts_may_be_typed_in_capitals(run):
    done = run(*SIZES, "--layouts", "MHA,Gqa:2,MLA:11+4,Mixed:2@7", "--no-memory", "--json")
    assert done.returncode == 0, done.stderr
    assert [each["name"] for each in strict(done.stdout)["layouts"]] == ["gqa:2", "mha", "mla:11+4", "mixed:2@7"]


def test_help_says_the_least_number_of_rounds(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = " ".join(run("--help").stdout.split())
    assert "How many times each layout is timed, 5 or more." in shown
    assert "--rounds: expected 5, of which " in run("--rounds", "4").stderr


def test_help_has_examples(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = " ".join(run("--help").stdout.split())
    assert "headwise bench --layouts mha/4,mha/8,mha/16,mha/32 --width 512" in shown
    assert "One attention layer with random weights is measured" in shown
