"""Documents with the same text count once, and every command that reads documents says so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from headwise.cli.documents import tell_identical
from headwise.cli.uptrain import _run as run_uptrain
from tests.cli.typed import model, run, texts
from tests.fixtures import one_thread
from tests.study import tiny

__all__ = ["model", "one_thread", "run", "texts"]

COMMANDS = {
    "convert": ("--kv-heads", 1, "--steps", 0, "--tokens", 700, "--length", 50),
    "mla": ("--mla", "23+10", "--tokens", 700, "--length", 50),
    "prune": ("--heads", 3, "--score", "magnitude", "--tokens", 700, "--length", 50),
    "uptrain": ("--tokens", 164, "--batch", 4, "--length", 41, "--held-out", 5, "--points", 1),
    "verify": ("--tokens", 93, "--length", 31, "--no-speed"),
    "study": ("--count", 8, "--length", 41, "--null-draws", 3, "--leaders", 2),
}


@pytest.fixture(scope="module")
def copied(texts, tmp_path_factory) -> Path:
    """The same texts, one of them three times and another twice."""
    folder = tmp_path_factory.mktemp("copied") / "all"
    shutil.copytree(texts, folder)
    for name, number in (("x", 11), ("y", 11), ("z", 5)):
        shutil.copy(folder / f"text{number:02}.txt", folder / f"{name}.md")
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    """A model with other weights."""
    return tiny.save_llama(tmp_path_factory.mktemp("other") / "llama", seed=1)


def typed(name: str, models: tuple[Path, Path], documents: Path, out: Path) -> list[object]:
    command = "convert" if name == "mla" else name
    model, other = models
    others: dict[str, tuple[object, ...]] = {"verify": (other,), "uptrain": ("--teacher", other)}
    where = () if name == "verify" else ("--out", out)
    return [command, model, *others.get(name, ()), "--documents", documents, *COMMANDS[name], *where]


def numbers(name: str, told: dict[str, Any], out: Path) -> Any:
    """What copies of documents must not change."""
    if name == "verify":
        return [corpus["by_document"] for corpus in told["corpora"]]
    if name == "study":
        return json.loads((out / "manifest.json").read_bytes())["baselines"]
    return told["loss"]


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_left_out_is_said_once_counted_and_changes_nothing(run, tmp_path, model, other, texts, copied, name):
    out = tmp_path / "out"
    out.mkdir()  # empty, as some make it first
    done = run(*typed(name, (model, other), copied, out), "--json")
    assert done.returncode == 0, done.stderr
    note = f"note: {copied}: 3 identical documents were left out, since others have the same text"
    assert [line for line in done.stderr.splitlines() if "identical" in line] == [note]
    told = json.loads(done.stdout)
    if name == "study":
        source = json.loads((out / "manifest.json").read_bytes())["documents"]["source"]
        assert source == f"{copied}, 3 identical left out"
    else:
        (counted,) = told["corpora"] if name == "verify" else (told,)
        assert counted["identical_left_out"] == 3
    alone = run(*typed(name, (model, other), texts, tmp_path / "alone"), "--json")
    assert "identical" not in alone.stderr
    assert numbers(name, json.loads(alone.stdout), tmp_path / "alone") == numbers(name, told, out)


@pytest.mark.parametrize("name", ["convert", "verify"])
def test_beside_a_table_it_is_said_once_too(run, tmp_path, model, other, copied, name):
    done = run(*typed(name, (model, other), copied, tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert (done.stderr.count("identical"), done.stdout.count("identical")) == (1, 0)


def test_each_corpus_of_verify_is_counted_by_itself(run, model, texts, copied):
    words = ["verify", model, model, "--documents", texts, "--documents", copied, *COMMANDS["verify"], "--json"]
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert [corpus["identical_left_out"] for corpus in json.loads(done.stdout)["corpora"]] == [0, 3]
    assert done.stderr.count("identical") == 1


def test_of_several_processes_one_speaks(tmp_path, model, copied, monkeypatch, capsys):
    """The others are stopped when they open the model, after they have read the documents."""
    monkeypatch.setattr("headwise.models.load", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    for rank, lines in (("0", 1), ("1", 0)):
        for name, value in {"RANK": rank, "TORCHELASTIC_RUN_ID": "test"}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(KeyboardInterrupt):
            run_uptrain((str(model), str(model)), tmp_path / "p", copied, None, (False, None, False))  # type: ignore[arg-type]
        assert capsys.readouterr().err.count("identical") == lines


@pytest.mark.parametrize(
    ("count", "path", "line"),
    [
        (0, "texts", ""),
        (1, "texts", "note: texts: 1 identical document was left out, since others have the same text\n"),
        (1_234, "t.jsonl", "note: t.jsonl: 1,234 identical documents were left out, since others have the same text\n"),
        (1, None, ""),
    ],
)
def test_the_line(count, path, line, capsys):
    """What comes with Python has such documents too, which nobody can mend."""
    tell_identical(count, path)
    assert capsys.readouterr() == ("", line)
