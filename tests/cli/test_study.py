"""`headwise study` as it is typed: what comes out, and how wrong input, Ctrl-C and a full disk end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.typed import model, run, texts
from tests.study import tiny

__all__ = ["model", "run", "texts"]

FAST = ("--count", "8", "--length", "41", "--null-draws", "3", "--leaders", "2")


def _run(*words: object, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headwise.cli.main", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def _one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The error's one line: stages may stand before it, a traceback nowhere."""
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr.strip().splitlines()[-1]


def test_json_is_one_object_with_the_documented_keys_and_nothing_else(tmp_path, model, texts):
    done = _run("study", model, "--documents", texts, "--out", tmp_path / "s", "--json", "--seed", 3, *FAST)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["model"] == "llama"
    assert result["findings"] == []
    assert result["effects"] == []
    assert result["seconds"] > 0
    assert result["peak_bytes"] > 2**20
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["seed"] == 3
    assert manifest["command"][:2] == ["headwise", "study"]
    assert "<html" in (tmp_path / "s" / "report.html").read_text(encoding="utf-8")


def test_without_json_it_says_in_words_that_nothing_was_found_and_where_the_page_is(run, tmp_path, model, texts):
    done = run("study", model, "--documents", texts, "--out", tmp_path / "s", *FAST)
    assert done.returncode == 0, done.stderr
    assert "No head was shown to do more than chance would" in done.stdout
    assert f"page: {tmp_path / 's' / 'report.html'}" in done.stdout


def test_findings_and_effects_are_told_in_tables(run, tmp_path, model, texts, monkeypatch):
    tiny.everything_is_a_finding(monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    done = run("study", model, "--documents", texts, "--out", tmp_path / "s", *FAST)
    assert done.returncode == 0, done.stderr
    assert "and 13 more" in done.stdout
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
    effects = {(row[0], row[1]): row[2:] for row in rows if len(row) == 6 and "(" in row[0]}
    assert set(effects) >= {("induction (2)", "repeated"), ("induction (2)", "text"), ("first (2)", "text")}
    for intact, zeroed, by_mean, beyond in effects.values():
        assert float(intact) > 1
        for cell in (zeroed, by_mean):
            assert re.fullmatch(r"\d+\.\d\d \((\d+\.\d\d|–)\)", cell), "cut off at 80 columns"
        assert beyond in {"no", "zeroed", "by mean", "both"}


def test_an_unusable_cache_folder_is_named_with_its_variable(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWISE_CACHE", "/proc/cache")
    done = run("study", "--out", tmp_path / "s")
    assert done.returncode == 2
    assert "/proc/cache/gguf: cannot write the converted model there" in _one_line(done)
    assert "HEADWISE_CACHE" in _one_line(done)


def test_an_existing_folder_is_refused_and_replaced_on_request(run, tmp_path, model, texts):
    out = tmp_path / "s"
    assert run("study", model, "--documents", texts, "--out", out, *FAST).returncode == 0
    again = run("study", model, "--documents", texts, "--out", out, *FAST)
    assert again.returncode == 2
    assert _one_line(again).endswith("exists already; give another --out, or --overwrite to replace it")
    assert run("study", model, "--documents", texts, "--out", out, "--overwrite", *FAST).returncode == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("./nope",), "no such folder or file"),
        (("org/name-that-is-nowhere",), "check the spelling and the connection"),
        (("--documents", "nothing.txt"), "nothing.txt: no such file or folder"),
        (("--seed", "-1"), "--seed"),
        (("--nonsense",), "No such option"),
        (("--out", "/proc/study"), "/proc/study"),
    ],
)
def test_wrong_input_ends_with_one_line_and_code_2(run, tmp_path, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    done = run("study", *words)
    assert done.returncode == 2, done.stderr
    assert told in _one_line(done)
    assert list(tmp_path.iterdir()) == []


def test_documents_too_short_leave_nothing_behind(run, tmp_path, model):
    (tmp_path / "one.txt").write_text("bade", encoding="utf-8")
    done = run("study", model, "--documents", tmp_path / "one.txt", "--out", tmp_path / "s")
    assert done.returncode == 2
    assert "fewer than 16 tokens" in _one_line(done)
    assert [file.name for file in tmp_path.iterdir()] == ["one.txt"]


def test_ctrl_c_ends_with_130_keeps_what_is_done_and_the_same_command_goes_on(tmp_path, model, texts):
    words = ["study", model, "--documents", texts, "--out", tmp_path / "s", *FAST]
    many = [*words[:-4], "--null-draws", "400", *words[-2:]]  # long enough to be hit in the middle
    command = [sys.executable, "-m", "headwise.cli.main", *map(str, many)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    steps = tmp_path / "s.partial" / "steps"
    deadline = time.monotonic() + 90
    while not list(steps.glob("random__*")):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline, "no random model was read in 90 seconds"
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    output, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert output == ""
    assert "Traceback" not in errors
    assert f"what is finished is kept in {tmp_path / 's.partial'}; the same command goes on from there" in errors
    kept = {file.name: file.stat().st_mtime_ns for file in steps.iterdir()}
    assert kept
    assert not (tmp_path / "s").exists()
    other = _run(*words)
    assert other.returncode == 2
    assert "half-finished study with other settings (setting null_draws)" in _one_line(other)
    assert {file.name: file.stat().st_mtime_ns for file in steps.iterdir()} == kept


def test_a_full_disk_ends_with_one_line_and_loses_nothing_finished(tmp_path, model, texts):
    """A file size limit is how a process without a disk of its own can run out of room."""
    import resource

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, 3_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    words = ("study", model, "--documents", texts, "--out", tmp_path / "s", *FAST)
    done = _run(*words, preexec_fn=small_files, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 2
    assert "File too large" in _one_line(done)
    assert not list((tmp_path / "s.partial").rglob("*.writing"))
    assert _run(*words).returncode == 0


def test_help_shows_examples_and_every_option(run):
    done = run("study", "--help")
    assert done.returncode == 0
    for word in ("Examples", "headwise study", "--out", "--documents", "--seed", "--threads", "--overwrite", "--json"):
        assert word in done.stdout
