"""Results as folders: written beside and renamed when whole, and refused at once where they could not be.

Standard library only.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headwise.errors import UserError

__all__ = [
    "REQUEST", "check_free", "check_partial", "claim_partial", "drop_partial", "finish_partial", "partial_of",
    "write_atomically", "written_beside",
]  # fmt: skip

REQUEST = "request.json"
_WRITING = ".writing"


def check_free(folder: Path, overwrite: bool, *, kind: str = "study", marker: str = "scores.parquet") -> None:
    """Refuse at once, before any work, what could not be written at the end.

    A folder that is not there, or is there and empty, is free.

    Args:
        folder: to be written.
        overwrite: whether one that exists may be replaced.
        kind: what is written, for messages.
        marker: the file that tells a folder of this kind; others are never removed.

    Raises:
        UserError: the folder has content (and is not to be overwritten, or is of no such kind), it is a link, a file or
            a mount point, the current folder lies in it, or it or its parent cannot be read or written.
    """
    try:
        _check_name(folder, kind)
        full = _check_content(folder, kind, marker)
        _check_parent(folder)
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be looked into ({error.strerror or type(error).__name__}); give another --out"
        ) from None
    if full and not overwrite:  # last, since --overwrite is advice only where nothing else stands in its way
        raise UserError(f"{folder}: exists already; give another --out, or --overwrite to replace it")


def _check_name(folder: Path, kind: str) -> None:
    """What is replaced needs a name of its own, and must not be what the command runs in."""
    place, here = Path(os.path.realpath(folder)), Path.cwd()
    if place == here:
        raise UserError(f"--out: got the current folder, or nothing; name a new folder for the {kind}")
    if place in here.parents:
        raise UserError(f"--out: got {folder}, in which the current folder lies; name a new folder for the {kind}")
    if folder.name == "..":
        raise UserError(f"--out: expected a path that ends in a name, got {folder}; give {place}, or another")


def _check_content(folder: Path, kind: str, marker: str) -> bool:
    """Whether there is something to be replaced, which then can be."""
    if folder.is_symlink():
        raise UserError(
            f"{folder}: a symbolic link (to {os.readlink(folder)}), which is never replaced; give the folder that is "
            "meant, or another --out"
        )
    if not folder.exists():
        return False
    if not folder.is_dir():
        raise UserError(f"{folder}: a file of that name exists; give another --out")
    full = any(folder.iterdir())
    if full and not (folder / marker).is_file():
        reason = f"its {marker} is no file" if os.path.lexists(folder / marker) else f"no {marker}"
        raise UserError(
            f"{folder}: exists already and is not what headwise writes as a {kind} ({reason}), so not even "
            "--overwrite replaces it; give another --out"
        )
    if os.path.ismount(folder):
        raise UserError(f"{folder}: a mount point, which cannot be replaced; give a new folder in it as --out")
    return full


def _check_parent(folder: Path) -> None:
    parent = folder.absolute().parent
    while not parent.exists():
        if parent.is_symlink():
            raise UserError(
                f"{folder}: cannot be written ({parent} is a symbolic link that leads nowhere); give another --out"
            )
        parent = parent.parent
    try:
        # Asking for permissions says nothing about file systems that take no folders; trying does. The name is as long
        # as any that is written beside.
        tempfile.TemporaryDirectory(prefix=f"..{folder.name}-headwise-", dir=parent).cleanup()
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be written ({parent}: {error.strerror or 'no writable folder'}); give another --out"
        ) from None


def write_atomically(file: Path, content: bytes) -> None:
    """Write beside and rename, so that a file is whole or not there; a failed write leaves nothing behind."""
    beside = file.with_name(file.name + _WRITING)
    try:
        beside.write_bytes(content)
        beside.replace(file)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


@contextmanager
def written_beside(folder: Path) -> Iterator[Path]:
    """A new folder to write into, which takes the place of ``folder`` when the block ends, and is gone if it fails.

    Call :func:`check_free` first: what stands at ``folder`` then is replaced.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield beside
        beside.chmod(0o755)  # mkdtemp makes folders for its user alone
        if folder.exists():
            shutil.rmtree(folder)
        beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def partial_of(folder: Path) -> Path:
    """Where what takes long is kept until ``folder`` is whole."""
    return folder.with_name(folder.name + ".partial")


def check_partial(partial: Path, *, kind: str = "study") -> None:
    """Refuse at once, before any work, what stands where a half-finished thing is kept and is none: it isn't removed.

    Args:
        partial: see :func:`claim_partial`; not there, or an empty folder, is free.
        kind: what is made, for messages.

    Raises:
        UserError: a link, a file or a mount point, a folder with content but without a request, or one that can't be
            read.
    """
    try:
        found = _foreign(partial)
    except OSError as error:
        raise UserError(
            f"{partial}: cannot be looked into ({error.strerror or type(error).__name__}); give another --out"
        ) from None
    if found:
        raise _refusal(partial, kind, found)


def _foreign(partial: Path) -> str:
    """What stands there, if it was not left by something half-finished: there the request comes first and goes last."""
    if partial.is_symlink():
        return f"a symbolic link to {os.readlink(partial)}"
    if not partial.exists():
        return ""
    if not partial.is_dir():
        return "a file"
    if os.path.ismount(partial):
        return "a mount point"
    names = {file.name for file in partial.iterdir()}
    if REQUEST in names:
        return "" if (partial / REQUEST).is_file() else f"a folder whose {REQUEST} is no file"
    # Killed while the request was written, this is all that there is.
    return f"a folder with content but no {REQUEST}" if names - {REQUEST + _WRITING} else ""


def _refusal(partial: Path, kind: str, found: str) -> UserError:
    return UserError(
        f"{partial}: expected a half-finished {kind}, which is kept there, or nothing, got {found}, which not even "
        "--overwrite replaces; move it away, or give another --out"
    )


def claim_partial(partial: Path, request: Mapping[str, Any], overwrite: bool, *, kind: str = "study") -> bool:
    """Open the folder of something that takes long, and is gone on with if it is killed.

    Args:
        partial: where finished parts lie until the whole is done.
        request: all that decides the numbers, as JSON can hold it; only the same request goes on with the same folder.
        overwrite: drop what another request has left.
        kind: what is made, for messages.

    Returns:
        Whether there is something to go on with.

    Raises:
        UserError: another request's folder lies there, and is not to be overwritten, or something else does.
    """
    check_partial(partial, kind=kind)
    wanted = json.loads(json.dumps(dict(request)))
    earlier = _read_request(partial / REQUEST)
    if earlier and not earlier.keys() & wanted.keys():
        raise _refusal(partial, kind, f"a folder whose {REQUEST} is that of something else")
    if earlier is not None and earlier != wanted:
        if not overwrite:
            differing = sorted(key for key in wanted.keys() | earlier.keys() if wanted.get(key) != earlier.get(key))
            raise UserError(
                f"{partial}: a half-finished {kind} with other settings ({', '.join(differing)}) lies there; "
                "repeat the earlier command to finish it, or give --overwrite to drop it"
            )
        drop_partial(partial)
        earlier = None
    partial.mkdir(parents=True, exist_ok=True)
    if earlier is None:
        write_atomically(partial / REQUEST, json.dumps(wanted, indent=2).encode())
    return earlier is not None


def finish_partial(partial: Path, result: Path, folder: Path) -> None:
    """Put a ``result`` that is whole, and lies in ``partial``, into the place of ``folder``, and drop the rest."""
    if folder.exists():
        shutil.rmtree(folder)
    result.rename(folder)
    drop_partial(partial)


def drop_partial(partial: Path) -> None:
    """Remove what was claimed, its request last: if this is killed too, the rest is still known as half-finished."""
    for each in partial.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        elif each.name != REQUEST:
            each.unlink()
    shutil.rmtree(partial)


def _read_request(file: Path) -> dict[str, Any] | None:
    """None without one; empty, so equal to none that is asked for, if it is no JSON object."""
    try:
        request = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:  # no JSON, or no UTF-8
        return {}
    return request if isinstance(request, dict) else {}
