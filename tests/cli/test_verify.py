"""`headwise verify` as it is typed: the table, JSON, the figure, exit codes and refusals."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from headwise.cli.main import main
from tests.fixtures import one_thread
from tests.study import tiny

__all__ = ["one_thread"]

FAST = ("--tokens", "300", "--length", "31")
QUIET = (*FAST, "--no-speed")


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return tiny.save_llama(folder / "first"), tiny.save_llama(folder / "second", seed=1)


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("texts")
    return tiny.write_texts(folder / "one", count=40), tiny.write_texts(folder / "two", count=40, seed=1)


@pytest.fixture
def run(capsys) -> Callable[..., subprocess.CompletedProcess[str]]:
    def inside(*words: object) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        code = main(["verify", *map(str, words)])
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    return inside


def _strict(text: str):
    def refuse(word: str):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_json_is_one_object_and_nothing_else(run, models, texts):
    done = run(*models, "--documents", texts[0], "--documents", texts[1], *QUIET, "--json", "--seed", 3)
    assert done.returncode == 0, done.stderr
    record = _strict(done.stdout)
    assert [record[each]["source"] for each in "ab"] == list(map(str, models))
    assert [corpus["name"] for corpus in record["corpora"]] == list(map(str, texts))
    assert record["settings"]["seed"] == 3
    assert record["limits"] == {"max_loss_increase": None, "min_agreement": None, "max_kl": None}
    assert record["shortfalls"] == []
    assert record["speed"] == []


def test_limits_make_it_a_check(run, models, texts):
    words = (*models, "--documents", texts[0], *QUIET)
    done = run(*words, "--max-kl", "0.001", "--min-agreement", "0.5", "--max-loss-increase", "9", "--json")
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if line.startswith("fell short: ")]
    assert len(told) == 2
    assert f"{texts[0]}: expected KL of at most 0.001, got " in told[1]
    record = _strict(done.stdout)
    assert [each["what"] for each in record["shortfalls"]] == ["top-1 agreement", "KL"]
    same = run(models[0], models[0], "--documents", texts[0], *QUIET, "--max-kl", "0", "--min-agreement", "1")
    assert same.returncode == 0, same.stderr


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_fits_and_nothing_is_cut(run, models, texts, monkeypatch, columns):
    from headwise.bench import verify
    from headwise.bench.verification.memory import MemoryUse

    monkeypatch.setattr(verify, "measure_memory", lambda source, **_: MemoryUse(1 << 28, 1 << 29, 1 << 30))
    monkeypatch.setenv("COLUMNS", str(columns))
    latency = ("--batches", "1,3", "--contexts", "19,29", "--rounds", "5", "--prefill-tokens", "60")
    done = run(*models, "--documents", texts[0], *FAST, *latency)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if str(texts[0]) not in line]  # a path may be as long as it is
    assert max(map(len, lines)) <= columns
    assert "…" not in done.stdout
    rows = {line[:28].strip(): line.split()[-1] for line in lines if line.strip()}
    assert rows["peak at 3 x 29"] == "x"
    assert rows["cache, each further token"] == "x"
    assert "memory, cache in float32" in lines
    for name in ("loss, nats", "KL(A || B), nats", "right tokens", "batch 3, context 29"):
        assert name in rows, done.stdout
    assert "note: prefill of more than 60 tokens was not timed: batch 3, context 29" in done.stdout
    assert any(line.startswith(("decode: B is ", "prefill: B is ")) for line in lines)
    assert "faster, or slower: by a sign test over the rounds at 5 %, which takes 5 of 5 rounds won" in unfolded(done)
    heads = [line.split() for line in lines if "paired ratio" in line and "median" in line]
    assert heads == [["median", "median", "paired", "ratio", "(quartiles)"]] * 2


def test_the_cache_is_counted_in_the_dtype_that_models_are_opened_in(run, models, texts):
    done = run(*models, "--documents", texts[0], *QUIET, "--dtype", "bfloat16")
    assert done.returncode == 0, done.stderr
    assert "memory, cache in bfloat16" in done.stdout.splitlines()


def test_caches_of_two_dtypes_are_both_named():
    from headwise.bench.verification.caches import CacheBytes
    from headwise.cli.verify_tables import _memory_title

    caches = [CacheBytes(3, 480, 480, 480, dtype) for dtype in ("float32", "bfloat16")]
    titles = [_memory_title(SimpleNamespace(cache=cache)) for cache in (None, caches, caches[:1] * 2)]
    assert titles == ["memory", "memory, cache of A in float32, of B in bfloat16", "memory, cache in float32"]


def unfolded(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join(done.stdout.split())


def test_a_narrow_terminal_has_one_value_a_line_and_splits_none(run, models, texts, monkeypatch):
    values = []
    for columns in (120, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        done = run(*models, "--documents", texts[0], *QUIET)
        lines = [line for line in done.stdout.splitlines() if str(texts[0]) not in line]
        assert max(map(len, lines)) <= columns
        values.append(set(done.stdout.split()))
    wide, narrow = values
    assert wide - narrow == set()
    told = [line.split(":")[0].strip() for line in lines]
    place = told.index("loss, nats")
    assert told[place + 1 : place + 4] == ["A", "B", "B beside A"]


def test_equal_models_differ_by_nothing_without_a_sign(run, models, texts):
    done = run(models[0], models[0], "--documents", texts[0], *QUIET)
    assert "0.000 (0.000 to 0.000)" in unfolded(done)
    assert not re.search(r"(?<!e)[+-][0-9]", done.stdout.replace(str(texts[0]), ""))


def test_the_rule_of_faster_is_in_the_help(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = run("--help").stdout
    assert "a sign test over rounds" in shown
    assert "5 of 5 rounds won, or 8 of 9" in shown.replace("\n", " ")


def test_the_figure_is_drawn(run, models, texts, tmp_path):
    from PIL import Image

    done = run(*models, "--documents", texts[0], *QUIET, "--figure", tmp_path / "result.png")
    assert done.returncode == 0, done.stderr
    assert f"figure: {tmp_path / 'result.png'}" in done.stderr
    with Image.open(tmp_path / "result.png") as image:
        assert image.size[0] > 1000


def test_a_figure_that_cannot_be_drawn_loses_nothing_of_what_was_measured(run, models, texts, tmp_path, monkeypatch):
    from headwise.errors import UserError
    from headwise.report import verify_figure

    def fail(*_):
        raise UserError("the disk is full")

    monkeypatch.setattr(verify_figure, "draw_verification", fail)
    words = (*models, "--documents", texts[0], *QUIET, "--figure", tmp_path / "result.png", "--json")
    done = run(*words)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, "headwise: the disk is full")
    assert len(_strict(done.stdout)["corpora"]) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--dtype", "float16"), "--dtype: expected float32 or bfloat16, got 'float16'"),
        (("--contexts", "512,many"), "--contexts: expected a number of tokens, such as 8192"),
        (("--contexts", "9"), "verify: expected contexts of more than 11 tokens"),
        (("--batches", "a"), "--batches: expected numbers of sequences, such as 1,8, got 'a'"),
        (("--batches", "1,,8"), "--batches: expected numbers of sequences, such as 1,8, got '1,,8'"),
        (("--figure", "."), "--figure: expected a file that ends in .png, .svg, .pdf, got ."),
        (("--max-loss-increase", "nan"), "--max-loss-increase: expected a finite number, got nan"),
        (("--documents", "a", "--documents", "./a"), "--documents: expected each corpus once, got a twice"),
        (("--batches", "0"), "verify: expected batches of at least 1 sequence, got 0"),
        (("--figure", "result.jpg"), "--figure: expected a file that ends in .png, .svg, .pdf, got result.jpg"),
        (("--figure", "nowhere/result.png"), "--figure: expected an existing folder for result.png, got nowhere"),
        (("--documents", "nothing.txt"), "nothing.txt: no such file or folder"),
        (("--min-agreement", "2"), "--min-agreement"),
    ],
)
def test_wrong_words_are_refused_before_a_model_is_opened(run, tmp_path, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    done = run("./no-model", "./nor-this", *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert told in done.stderr.splitlines()[-1]


def test_models_of_two_kinds_are_refused(run, models, texts, tmp_path):
    bert = tiny.save_bert(tmp_path / "bert")
    done = run(models[0], bert, "--documents", texts[0], *QUIET)
    assert done.returncode == 2
    assert "verify: bert: expected" in done.stderr.splitlines()[-1]


def test_one_model_is_too_few(run):
    done = run("demo")
    assert done.returncode == 2
    assert "Missing argument 'B'" in done.stderr
