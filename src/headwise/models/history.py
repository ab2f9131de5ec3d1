"""What was done to a model since its makers published it: read from ``headwise.json`` beside its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwise.errors import UserError
from headwise.models.refusal import one_line, refusing
from headwise.models.source import Source

__all__ = ["MANIFEST", "documents_of", "read_history"]

MANIFEST = "headwise.json"


def read_history(source: Source) -> tuple[dict[str, Any], ...]:
    """The steps, oldest first; none where there is no manifest.

    Raises:
        UserError: there is one, but it can't be read.
    """
    file = _file(source)
    if file is None:
        return ()
    try:
        told = json.loads(file.read_bytes())
        steps = told["history"]
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
            raise ValueError("its history is no list of objects")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{source.name}: cannot read {MANIFEST} ({one_line(error)}), which says what was done to the model; copy "
            "it again, or delete it and lose that"
        ) from error
    return tuple(steps)


def documents_of(step: Mapping[str, Any]) -> set[str]:
    """Fingerprints of the documents that a step was calibrated or trained on; none where it names none."""
    named = step.get("documents")
    return {one for one in named if isinstance(one, str)} if isinstance(named, list | tuple) else set()


def _file(source: Source) -> Path | None:
    folder = Path(source.location)
    if folder.is_dir():
        return folder / MANIFEST if (folder / MANIFEST).exists() else None
    from transformers.utils import cached_file

    with refusing(source.name, MANIFEST):
        found = cached_file(
            source.location,
            MANIFEST,
            local_files_only=not source.online,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )
    return None if found is None else Path(found)
