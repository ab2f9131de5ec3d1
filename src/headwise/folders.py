"""Results as folders: written beside and renamed when whole, and refused at once where they could not be.

Standard library only.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headwise.errors import UserError

__all__ = ["REQUEST", "check_free", "claim_partial", "write_atomically", "written_beside"]

REQUEST = "request.json"


def check_free(folder: Path, overwrite: bool, *, kind: str = "study", marker: str = "manifest.json") -> None:
    """Refuse at once, before any work, what could not be written at the end.

    Args:
        folder: to be written.
        overwrite: whether one that exists may be replaced.
        kind: what is written, for messages.
        marker: the file that tells a folder of this kind; others are never removed.

    Raises:
        UserError: the folder exists (and is not to be overwritten, or is of no such kind), or its parent
            cannot be written.
    """
    if folder.resolve() == Path.cwd():
        raise UserError(f"--out: got the current folder, or nothing; name a new folder for the {kind}")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: a file of that name exists; give another --out")
    if folder.exists() and not overwrite:
        raise UserError(f"{folder}: exists already; give another --out, or --overwrite to replace it")
    if folder.exists() and any(folder.iterdir()) and not (folder / marker).is_file():
        raise UserError(f"{folder}: not a {kind} (no {marker}), so --overwrite will not remove it; give another --out")
    parent = folder.absolute().parent
    while not parent.exists():
        parent = parent.parent
    try:
        # Asking for permissions says nothing about file systems that take no folders; trying does.
        tempfile.TemporaryDirectory(prefix=".headwise-", dir=parent).cleanup()
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be written ({parent}: {error.strerror or 'no writable folder'}); give another --out"
        ) from None


def write_atomically(file: Path, content: bytes) -> None:
    """Write beside and rename, so that a file is whole or not there; a failed write leaves nothing behind."""
    beside = file.with_name(file.name + ".writing")
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
        UserError: another request's folder lies there, and is not to be overwritten.
    """
    wanted = json.loads(json.dumps(dict(request)))
    earlier = _read_request(partial / REQUEST)
    if earlier is not None and earlier != wanted:
        if not overwrite:
            differing = sorted(key for key in wanted.keys() | earlier.keys() if wanted.get(key) != earlier.get(key))
            raise UserError(
                f"{partial}: a half-finished {kind} with other settings ({', '.join(differing)}) lies there; "
                "repeat the earlier command to finish it, or give --overwrite to drop it"
            )
        shutil.rmtree(partial)
        earlier = None
    partial.mkdir(parents=True, exist_ok=True)
    if earlier is None:
        write_atomically(partial / REQUEST, json.dumps(wanted, indent=2).encode())
    return earlier is not None


def _read_request(file: Path) -> dict[str, Any] | None:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except json.JSONDecodeError:
        return {}
