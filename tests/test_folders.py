"""Which folders are taken as ``--out``, and how the others are refused before any work."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headwise import folders
from headwise.errors import UserError
from headwise.folders import check_free, check_partial, claim_partial, drop_partial, written_beside

BOTH = pytest.mark.parametrize("overwrite", [False, True])


def refused(folder: Path, overwrite: bool) -> str:
    """The message; nothing in the folder above may have changed."""
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(UserError) as told:
        check_free(folder, overwrite, kind="model", marker="headwise.json")
    assert sorted(folder.parent.rglob("*")) == before
    return str(told.value)


def full(folder: Path, name: str = "chapter1.tex") -> Path:
    folder.mkdir()
    (folder / name).write_text("years of work", encoding="utf-8")
    return folder


@BOTH
@pytest.mark.parametrize("place", ["out", "new/out"])
def test_a_folder_that_is_not_there_is_taken(tmp_path, place, overwrite):
    check_free(tmp_path / place, overwrite)
    assert list(tmp_path.iterdir()) == []


@BOTH
def test_an_empty_folder_is_taken_and_written(tmp_path, overwrite):
    out = tmp_path / "out"
    out.mkdir()
    check_free(out, overwrite)
    assert list(tmp_path.iterdir()) == [out]
    with written_beside(out) as beside:
        (beside / "model").write_text("whole", encoding="utf-8")
    assert [file.relative_to(tmp_path).as_posix() for file in sorted(tmp_path.rglob("*"))] == ["out", "out/model"]


def test_overwrite_is_advised_where_it_then_works(tmp_path):
    out = full(tmp_path / "out", "headwise.json")
    assert refused(out, False) == f"{out}: exists already; give another --out, or --overwrite to replace it"
    check_free(out, True, kind="model", marker="headwise.json")


@BOTH
def test_overwrite_is_not_advised_where_it_would_be_refused(tmp_path, overwrite):
    out = full(tmp_path / "out")
    assert refused(out, overwrite) == (
        f"{out}: exists already and is not what headwise writes as a model (no headwise.json), so not even "
        "--overwrite replaces it; give another --out"
    )


@BOTH
@pytest.mark.parametrize("make", [Path.mkdir, lambda marker: marker.symlink_to("nowhere")])
def test_a_marker_that_is_no_file_marks_nothing(tmp_path, make: Callable[[Path], None], overwrite):
    out = full(tmp_path / "out")
    make(out / "headwise.json")
    assert "not what headwise writes as a model (its headwise.json is no file), so not even" in refused(out, overwrite)


@BOTH
@pytest.mark.parametrize("target", ["nowhere", "link", "empty", "file", "model"])
def test_a_symbolic_link_is_never_replaced(tmp_path, target, overwrite):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x", encoding="utf-8")
    full(tmp_path / "model", "headwise.json")
    (tmp_path / "link").symlink_to(target)
    assert refused(tmp_path / "link", overwrite) == (
        f"{tmp_path / 'link'}: a symbolic link (to {target}), which is never replaced; give the folder that is meant, "
        "or another --out"
    )


def test_a_link_above_the_folder_is_followed_and_must_lead_somewhere(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    check_free(tmp_path / "link" / "out", False)
    (tmp_path / "disk").rmdir()
    for out in (tmp_path / "link" / "out", tmp_path / "link" / "new" / "out"):
        with pytest.raises(UserError, match=r"cannot be written \(.*/link is a symbolic link that leads nowhere\)"):
            check_free(out, False)


@BOTH
@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_what_is_no_folder_is_refused(tmp_path, kind, overwrite):
    out = tmp_path / "out"
    os.mkfifo(out) if kind == "pipe" else out.write_text("x", encoding="utf-8")
    assert refused(out, overwrite) == f"{out}: a file of that name exists; give another --out"


@BOTH
def test_a_mount_point_cannot_be_replaced(tmp_path, monkeypatch, overwrite):
    """Volumes of containers are: they would be refused only when all the work is done."""
    monkeypatch.setattr(folders.os.path, "ismount", lambda path: Path(path).name == "volume")
    for out in (tmp_path / "volume", full(tmp_path / "in") / "volume"):
        out.mkdir()
        assert refused(out, overwrite) == (
            f"{out}: a mount point, which cannot be replaced; give a new folder in it as --out"
        )
        check_free(out / "new", overwrite)
    (out / "headwise.json").write_text("{}", encoding="utf-8")
    assert "a mount point" in refused(out, overwrite), "--overwrite is no help there"


@BOTH
def test_a_folder_that_cannot_be_read_is_refused(tmp_path, monkeypatch, overwrite):
    out = full(tmp_path / "out", "headwise.json")

    def refuse(_: Path):
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", refuse)
        assert refused(out, overwrite) == f"{out}: cannot be looked into (Permission denied); give another --out"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("mode", [0o000, 0o444, 0o111])
def test_permissions_are_told(tmp_path, mode):
    out = full(tmp_path / "out", "headwise.json")
    out.chmod(mode)
    try:
        for place in (out, out / "in"):
            with pytest.raises(UserError, match=r"give another --out$"):
                check_free(place, True, kind="model", marker="headwise.json")
    finally:
        out.chmod(0o755)


@BOTH
def test_overwrite_is_not_advised_where_the_parent_cannot_be_written(tmp_path, monkeypatch, overwrite):
    out = full(tmp_path / "out", "headwise.json")

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(folders.tempfile, "TemporaryDirectory", refuse)
    assert refused(out, overwrite) == f"{out}: cannot be written ({tmp_path}: Permission denied); give another --out"


@BOTH
@pytest.mark.parametrize("length", [240, 251, 255, 256, 5_000])
def test_a_name_that_is_too_long_is_refused(tmp_path, length, overwrite):
    """Also one that is short enough itself, but not with what is written beside."""
    with pytest.raises(UserError, match=r"\(.*File name too long\); give another --out"):
        check_free(tmp_path / ("n" * length), overwrite)


def test_the_longest_name_that_is_taken_can_be_written(tmp_path):
    out = tmp_path / ("n" * 235)
    check_free(out, False)
    with written_beside(out) as beside, written_beside(beside) as within:
        (within / "model").write_text("whole", encoding="utf-8")
    assert [file.name for file in out.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (".", "--out: got the current folder, or nothing; name a new folder for the model"),
        ("in/..", "--out: got the current folder, or nothing; name a new folder for the model"),
        ("..", "--out: got .., in which the current folder lies; name a new folder for the model"),
        ("/", "--out: got /, in which the current folder lies; name a new folder for the model"),
        ("../other/in/..", "--out: expected a path that ends in a name, got ../other/in/..; give {}/other, or another"),
    ],
)
@BOTH
def test_what_the_command_runs_in_and_paths_without_a_name_are_refused(tmp_path, monkeypatch, place, told, overwrite):
    """Replacing a folder from within it, or by way of one of its own, would remove the result too."""
    full(tmp_path / "here", "headwise.json")
    (tmp_path / "headwise.json").write_text("{}", encoding="utf-8")
    full(tmp_path / "other", "headwise.json")
    for name in ("here", "other"):
        (tmp_path / name / "in").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UserError) as refusal:
        check_free(Path(place), overwrite, kind="model", marker="headwise.json")
    assert str(refusal.value) == told.format(tmp_path)


def test_a_current_folder_that_is_gone_is_told(tmp_path):
    """In a process of its own, since this one must stand somewhere."""
    gone = tmp_path / "gone"
    gone.mkdir()
    code = (
        "import os, pathlib; os.rmdir(os.getcwd()); from headwise.errors import UserError; "
        "from headwise.folders import check_free\n"
        "try:\n    check_free(pathlib.Path('out'), False)\nexcept UserError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=gone, capture_output=True, text=True)
    assert done.stdout == "out: cannot be looked into (No such file or directory); give another --out\n", done.stderr


SEEDED = {"experiment": "heads", "seed": 7}


def _everything(folder: Path) -> list[tuple[str, bytes]]:
    files = sorted(folder.rglob("*"))
    return [(str(file), file.read_bytes() if file.is_file() else b"") for file in files]


FOREIGN = {
    "folder": lambda at: full(at, "important"),
    "folder beside a half-written request": lambda at: (full(at), (at / "request.json.writing").write_text("{")),
    "request that is a folder": lambda at: (at / "request.json").mkdir(parents=True),
    "file": lambda at: at.write_text("x", encoding="utf-8"),
    "pipe": lambda at: os.mkfifo(at),
    "link to nothing": lambda at: at.symlink_to("nowhere"),
    "link to an empty folder": lambda at: ((at.parent / "else").mkdir(), at.symlink_to("else")),
    "link to ours": lambda at: (claim_partial(at.parent / "else", SEEDED, False), at.symlink_to("else")),
    "request of something else": lambda at: (full(at), (at / "request.json").write_text('{"url": "somewhere"}')),
}


@BOTH
@pytest.mark.parametrize("kind", FOREIGN)
def test_nothing_is_removed_that_stands_where_a_half_finished_thing_is_kept_and_is_none(tmp_path, kind, overwrite):
    partial = tmp_path / "q.partial"
    FOREIGN[kind](partial)
    before = _everything(tmp_path)
    with pytest.raises(UserError) as told:
        claim_partial(partial, SEEDED, overwrite, kind="experiment")
    assert _everything(tmp_path) == before
    assert str(told.value).startswith(
        f"{partial}: expected a half-finished experiment, which is kept there, or nothing, got a "
    )
    assert str(told.value).endswith(", which not even --overwrite replaces; move it away, or give another --out")
    if kind != "request of something else":  # what is asked for isn't known before the models are
        with pytest.raises(UserError) as early:
            check_partial(partial, kind="experiment")
        assert str(early.value) == str(told.value)


@BOTH
def test_a_half_finished_thing_is_not_kept_at_a_mount_point(tmp_path, monkeypatch, overwrite):
    monkeypatch.setattr(folders.os.path, "ismount", lambda path: True)
    claimed = tmp_path / "q.partial"
    claimed.mkdir()
    with pytest.raises(UserError, match=r"got a mount point, which not even --overwrite"):
        claim_partial(claimed, SEEDED, overwrite)


def test_a_half_finished_folder_that_cannot_be_read_is_told(tmp_path, monkeypatch):
    full(tmp_path / "q.partial")

    def refuse(_: Path):
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", refuse)
        with pytest.raises(UserError, match=r"cannot be looked into \(Permission denied\); give another --out"):
            check_partial(tmp_path / "q.partial")


@BOTH
@pytest.mark.parametrize("left", ["nothing", "an empty folder", "a request that was being written"])
def test_what_was_killed_before_its_request_was_whole_is_claimed(tmp_path, left, overwrite):
    partial = tmp_path / "new" / "q.partial"
    if left != "nothing":
        partial.mkdir(parents=True)
    if left == "a request that was being written":
        (partial / "request.json.writing").write_text('{"experim', encoding="utf-8")
    assert not claim_partial(partial, SEEDED, overwrite)
    assert [file.name for file in partial.iterdir()] == ["request.json"]
    assert claim_partial(partial, SEEDED, overwrite)


@pytest.mark.parametrize("content", [b"", b'{"seed": 7', b"\xff\xfe{", b"[1, 2]", b"7", b"null", b"{}"])
def test_a_request_that_is_none_counts_as_another_one(tmp_path, content):
    partial = full(tmp_path / "q.partial", "step")
    (partial / "request.json").write_bytes(content)
    with pytest.raises(UserError, match=r"a half-finished study with other settings \(experiment, seed\) lies there"):
        claim_partial(partial, SEEDED, False)
    assert (partial / "step").exists()
    assert not claim_partial(partial, SEEDED, True)
    assert [file.name for file in partial.iterdir()] == ["request.json"]


@pytest.mark.parametrize("how", ["when it is finished", "for another request"])
def test_killed_while_it_is_removed_it_is_still_known_as_half_finished(tmp_path, monkeypatch, how):
    partial = tmp_path / "q.partial"
    claim_partial(partial, SEEDED, False)
    for name in ("a", "z"):
        (partial / name).mkdir()
        (partial / name / "step").write_text("x", encoding="utf-8")
    other = {**SEEDED, "seed": 8}
    removed = folders.shutil.rmtree

    for kills_at in range(1, 4):
        calls: list[Path] = []

        def killed(path: Path, calls=calls, at=kills_at) -> None:
            calls.append(path)
            if len(calls) == at:
                raise KeyboardInterrupt
            removed(path)

        with monkeypatch.context() as patched:
            patched.setattr(folders.shutil, "rmtree", killed)
            with pytest.raises(KeyboardInterrupt):
                drop_partial(partial) if how == "when it is finished" else claim_partial(partial, other, True)
        check_partial(partial)
        assert json.loads((partial / "request.json").read_text(encoding="utf-8")) == SEEDED
        for name in ("a", "z"):
            (partial / name).mkdir(exist_ok=True)
    drop_partial(partial)
    assert not partial.exists()
