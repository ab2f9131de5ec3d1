"""The folder of a study: steps are kept, half-written things are never found, nothing is overwritten unasked."""

from __future__ import annotations

import errno
import json

import numpy as np
import pytest

from headwise import folders as folders_module
from headwise.errors import UserError
from headwise.folders import check_free, write_atomically
from headwise.study import store as store_module
from headwise.study.store import Store

REQUEST = {"weights": "abc", "seed": 7}


def _never():
    raise AssertionError("a finished step was computed again")


def test_a_finished_step_is_read_back_and_not_computed_again(tmp_path):
    first = Store(tmp_path / "study", REQUEST)
    first.step("scores/text/0", lambda: {"a": np.arange(5.0), "b": np.ones((2, 3), np.float32)})
    assert not first.resumed
    again = Store(tmp_path / "study", REQUEST)
    kept = again.step("scores/text/0", _never)
    assert again.resumed
    np.testing.assert_array_equal(kept["a"], np.arange(5.0))
    assert kept["b"].dtype == np.float32


def test_steps_with_names_too_long_for_a_file_stay_apart(tmp_path):
    store = Store(tmp_path / "study", REQUEST)
    names = ["losses/" + "+".join(f"L{layer}.H{head}" for layer in range(60)) for head in (1, 2)]
    for value, name in enumerate(names):
        store.step(name, lambda value=value: {"a": np.array([value])})
    assert [store.step(name, _never)["a"][0] for name in names] == [0, 1]


def test_a_step_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    store = Store(tmp_path / "study", REQUEST)
    before = sorted(tmp_path.rglob("*"))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store_module.Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        store.step("scores/text/0", lambda: {"a": np.ones(3)})
    monkeypatch.undo()
    assert sorted(tmp_path.rglob("*")) == before
    store.step("scores/text/0", lambda: {"a": np.ones(3)})


def test_finishing_renames_the_folder_and_drops_the_steps(tmp_path):
    store = Store(tmp_path / "study", REQUEST)
    store.step("x", lambda: {"a": np.ones(1)})
    write_atomically(store.partial / "manifest.json", b"{}")
    assert store.finish() == tmp_path / "study"
    assert [file.name for file in (tmp_path / "study").iterdir()] == ["manifest.json"]
    assert not store.partial.exists()


def test_other_settings_do_not_continue_a_half_finished_study(tmp_path):
    Store(tmp_path / "study", REQUEST).step("x", lambda: {"a": np.ones(1)})
    with pytest.raises(UserError, match=r"half-finished study with other settings \(seed\)"):
        Store(tmp_path / "study", {**REQUEST, "seed": 8})
    fresh = Store(tmp_path / "study", {**REQUEST, "seed": 8}, overwrite=True)
    assert fresh.step("x", lambda: {"a": np.zeros(1)})["a"][0] == 0


def test_a_request_that_was_cut_off_does_not_count(tmp_path):
    store = Store(tmp_path / "study", REQUEST)
    (store.partial / "request.json").write_text('{"weights": "a', encoding="utf-8")
    with pytest.raises(UserError, match="half-finished study with other settings"):
        Store(tmp_path / "study", REQUEST)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_something_else_is_not_taken_for_a_half_finished_study(tmp_path, overwrite):
    partial = tmp_path / "study.partial"
    partial.mkdir()
    (partial / "chapter1.tex").write_text("years of work", encoding="utf-8")
    with pytest.raises(
        UserError, match="expected a half-finished study, which is kept there, or nothing, got a folder"
    ):
        Store(tmp_path / "study", REQUEST, overwrite)
    assert [file.name for file in partial.iterdir()] == ["chapter1.tex"]


def test_killed_while_it_finishes_it_is_still_known_as_half_finished(tmp_path, monkeypatch):
    store = Store(tmp_path / "study", REQUEST)
    store.step("x", lambda: {"a": np.ones(1)})
    write_atomically(store.partial / "scores.parquet", b"{}")

    def killed(*_):
        raise KeyboardInterrupt

    for call in ("rename", "unlink"):
        with monkeypatch.context() as patched:
            patched.setattr(store_module.Path, call, killed)
            with pytest.raises(KeyboardInterrupt):
                store.finish()
        if call == "rename":
            store = Store(tmp_path / "study", REQUEST)
            assert store.resumed
    with pytest.raises(UserError, match="exists already; give another --out, or --overwrite"):
        Store(tmp_path / "study", REQUEST)


def test_an_existing_study_is_kept_until_the_new_one_is_whole(tmp_path):
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "scores.parquet").write_text(json.dumps({"old": True}), encoding="utf-8")
    with pytest.raises(UserError, match=r"exists already; give another --out, or --overwrite"):
        Store(folder, REQUEST)
    store = Store(folder, REQUEST, overwrite=True)
    assert (folder / "scores.parquet").is_file()
    write_atomically(store.partial / "scores.parquet", b"{}")
    store.finish()
    assert json.loads((folder / "scores.parquet").read_text(encoding="utf-8")) == {}


def test_overwrite_never_removes_a_folder_that_is_no_study(tmp_path):
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter1.tex").write_text("years of work", encoding="utf-8")
    with pytest.raises(UserError, match=r"is not what headwise writes as a study \(no scores.parquet\)"):
        check_free(folder, overwrite=True)
    file = tmp_path / "file"
    file.write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match="a file of that name exists"):
        check_free(file, overwrite=True)
    with pytest.raises(UserError, match="cannot be written"):
        check_free(file / "study", overwrite=False)


def test_an_unwritable_place_is_refused_before_any_work(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(folders_module.tempfile, "mkdtemp", refuse)
    monkeypatch.setattr(folders_module.tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(UserError, match=rf"cannot be written \({tmp_path}: Permission denied\); give another --out"):
        check_free(tmp_path / "study", overwrite=False)


def test_a_file_system_that_takes_no_folders_is_refused_and_nothing_is_left_elsewhere(tmp_path):
    with pytest.raises(UserError, match=r"^/proc/study: cannot be written \(/proc: "):
        check_free(store_module.Path("/proc/study"), overwrite=False)
    check_free(tmp_path / "new" / "study", overwrite=False)
    assert list(tmp_path.iterdir()) == []


def test_the_current_folder_is_no_place_for_a_study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in ("", ".", str(tmp_path)):
        with pytest.raises(UserError, match="--out: got the current folder, or nothing; name a new folder"):
            check_free(store_module.Path(place), overwrite=True)
