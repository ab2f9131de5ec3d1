"""`headwise uptrain` as it is typed: what comes out, and how wrong input and Ctrl-C end."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from headwise import models
from headwise.cli import uptrain as command
from headwise.cli.main import main
from headwise.models import load
from headwise.report import uptrain_figure
from headwise.surgery.export import export
from headwise.surgery.training import loop as uptrain_loop
from tests.cli.typed import changed
from tests.surgery.uptrain_models import open_pair, save

told = uptrain_figure._share_told
FAST = ("--batch", "4", "--length", "41", "--held-out", "7", "--rate", "0.003")
TOKENS = 5 * 4 * 41


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("uptrain")
    save(place)
    export(open_pair(place)[0], place / "student")
    return place


@pytest.fixture
def run(capsys, folder) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command in this process, which saves the seconds that importing torch and transformers takes."""

    def inside(*words: object, student: object = "student", tokens: int = TOKENS) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        typed = ["uptrain", folder / str(student), "--teacher", folder / "teacher", "--tokens", tokens]
        code = main([*map(str, (*typed, *changed(("--documents", folder / "texts", *FAST), words)))])
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    return inside


def _one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The error's one line: stages may stand before it, a traceback nowhere."""
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr.strip().splitlines()[-1]


def test_the_folder_holds_a_model_its_curve_and_a_picture_and_a_table_is_shown(run, tmp_path):
    done = run("--out", tmp_path / "new", "--control")
    assert done.returncode == 0, done.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["new"]
    record = json.loads((tmp_path / "new" / "uptrain.json").read_text(encoding="utf-8"))
    assert [point["tokens"] for point in record["curve"]] == [0, 164, 328, 656, 820]
    assert len(record["steps"]) == 5
    picture = (tmp_path / "new" / "uptrain.png").read_bytes()
    assert struct.unpack(">II", picture[16:24])[0] > 1000
    step = load(tmp_path / "new").history[-1]
    assert (step["operation"], step["tokens"], step["held_out"]) == ("uptrain", TOKENS, record["held_out"])
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
    losses = {row[0]: row[1] for row in rows}
    assert losses == {
        "student before": f"{record['loss']['start']['value']:.3f}",
        "student after": f"{record['loss']['end']['value']:.3f}",
        "teacher": f"{record['loss']['teacher']['value']:.3f}",
        "teacher, trained alike": f"{record['control']['loss']['end']['value']:.3f}",
    }
    # The student is random, and no worse than its teacher on some of the documents.
    assert "note: no gap to close: the student's loss was not shown" in " ".join(done.stdout.split())
    assert f"model: {tmp_path / 'new'}" in done.stdout


def test_the_share_of_the_gap_is_told_with_its_interval(run, tmp_path, capsys):
    assert run("--out", tmp_path / "new", tokens=164).returncode == 0
    record = json.loads((tmp_path / "new" / "uptrain.json").read_text(encoding="utf-8"))
    record["share_closed"] = {"value": 0.71, "low": 0.6, "high": 0.8, "reason": None}
    command._show(SimpleNamespace(record=record), tmp_path)  # type: ignore[arg-type]
    assert "Gap to the teacher closed: 71% (60% to 80%)" in capsys.readouterr().out
    assert told(record["share_closed"]) == "gap closed: 71% (60% to 80%)"


def test_a_narrow_terminal_splits_no_number(run, tmp_path, monkeypatch):
    shown = []
    for columns in (120, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        done = run("--out", tmp_path / str(columns), "--control", tokens=164)
        lines = [line for line in done.stdout.splitlines() if "│" in line]
        assert max(map(len, lines)) <= columns
        shown.append({word for line in lines for word in line.replace("│", " ").split()})
    assert shown[0] - shown[1] == set()


def test_json_is_one_object_and_nothing_else(run, tmp_path):
    done = run("--out", tmp_path / "new", "--json", "--seed", 3, "--params", "all", "--loss", "ce")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["settings"]["seed"] == 3
    assert (told["settings"]["params"], told["settings"]["loss"]) == ("all", "ce")
    assert told["folder"] == str(tmp_path / "new")
    assert told["tokens_per_second"] > 0
    assert set(told["curve"][0]) == {"step", "tokens", "loss", "divergence"}


def test_a_training_that_made_it_worse_says_so_and_is_written(run, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(uptrain_figure, "_share_told", lambda share: drawn.append(told(share)) or drawn[-1])
    done = run("--out", tmp_path / "new", "--rate", 3, "--params", "all")
    assert done.returncode == 0, done.stderr
    assert "note: training made it worse: it rose by" in (shown := " ".join(done.stdout.split()))
    assert "Gap to the teacher" not in shown
    record = json.loads((tmp_path / "new" / "uptrain.json").read_text(encoding="utf-8"))
    assert record["share_closed"]["value"] is None
    assert record["notes"][0] == record["share_closed"]["reason"]
    assert drawn == ["training made it worse"]


def test_an_existing_folder_is_refused_and_replaced_on_request(run, tmp_path):
    out = tmp_path / "new"
    assert run("--out", out, tokens=164).returncode == 0
    assert _one_line(run("--out", out)).endswith("exists already; give another --out, or --overwrite to replace it")
    before = load(out).weights_sha256
    assert run("--out", out, "--overwrite").returncode == 0
    assert load(out).weights_sha256 != before
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work", encoding="utf-8")
    for more in ((), ("--overwrite",)):
        told = "not what headwise writes as a model (no headwise.json), so not even --overwrite replaces it"
        assert told in _one_line(run("--out", tmp_path / "thesis", *more))


@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_a_folder_where_a_half_finished_training_is_kept_is_not_removed(run, tmp_path, monkeypatch, more):
    (tmp_path / "new.partial").mkdir()
    (tmp_path / "new.partial" / "important").write_text("years of work", encoding="utf-8")
    monkeypatch.setattr("headwise.models.load", lambda name: pytest.fail("refused only after loading"))
    assert "new.partial: expected a half-finished training, which is kept there, or nothing, got a folder" in _one_line(
        run("--out", tmp_path / "new", *more)
    )
    assert [file.name for file in tmp_path.rglob("*")] == ["new.partial", "important"]


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(run, tmp_path, monkeypatch):
    whole = run("--out", tmp_path / "whole", "--save-every", 1, "--json")
    step, seen = uptrain_loop.Training._step, []

    def interrupted(self, number):
        seen.append(number)
        if number == 3:
            raise KeyboardInterrupt
        step(self, number)

    monkeypatch.setattr(uptrain_loop.Training, "_step", interrupted)
    done = run("--out", tmp_path / "new", "--save-every", 1)
    assert done.returncode == 130
    assert done.stdout == ""
    assert f"what is finished is kept in {tmp_path / 'new.partial'}; the same command goes on" in done.stderr
    assert not (tmp_path / "new").exists()
    other = run("--out", tmp_path / "new", "--save-every", 1, "--seed", 1)
    assert "half-finished training with other settings" in _one_line(other)
    seen.clear()
    monkeypatch.setattr(uptrain_loop.Training, "_step", lambda self, number: seen.append(number) or step(self, number))
    again = run("--out", tmp_path / "new", "--save-every", 1, "--json")
    assert seen == [3, 4]
    assert json.loads(again.stdout)["curve"] == json.loads(whole.stdout)["curve"]
    assert load(tmp_path / "new").weights_sha256 == load(tmp_path / "whole").weights_sha256


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--rate", "0"), "uptrain: expected rate above 0, got 0.0"),
        (("--params", "heads"), "uptrain: expected params to be attention or all, got 'heads'"),
        (("--engine", "fsdp"), "uptrain: expected what fsdp needs, got one process; start it with torchrun"),
        (("--held-out", "900"), "documents: expected 36,900 tokens in rows of 41 for 900 held-out rows, got"),
        (("--documents", "nothing.txt"), "nothing.txt: no such file or folder"),
    ],
)
def test_wrong_input_ends_with_one_line_and_leaves_nothing(run, tmp_path, words, told):
    assert told in _one_line(run("--out", tmp_path / "new", *words))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("out", ["", ".", "..", "/"])
def test_a_folder_that_cannot_be_the_result_is_refused_before_any_work(run, tmp_path, monkeypatch, out):
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    monkeypatch.setattr(models, "load", lambda _: pytest.fail("a model was opened before that"))
    assert "give another --out" in (told := _one_line(run("--out", out))) or "name a new folder" in told
    assert [*map(str, tmp_path.rglob("*"))] == [str(tmp_path / "inner")]


def test_a_number_that_another_launcher_gave_is_none_of_torchruns(run, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    done = run("--out", tmp_path / "new", "--json", tokens=164)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["folder"] == str(tmp_path / "new")
    assert [file.name for file in tmp_path.iterdir()] == ["new"]


def test_tokens_teacher_and_out_are_asked_for(capsys):
    assert main(["uptrain", "demo", "--tokens", "5000", "--out", "x"]) == 2
    assert "Missing option '--teacher'" in capsys.readouterr().err


def test_help_shows_examples_and_every_option(capsys):
    assert main(["uptrain", "--help"]) == 0
    shown = capsys.readouterr().out
    for word in ("Examples", "torchrun", "--teacher", "--tokens", "--control", "--params", "--seed", "--json"):
        assert word in shown
