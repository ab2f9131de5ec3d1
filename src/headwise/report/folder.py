"""Reads a finished study folder, and says in one line what is wrong with one that isn't.

A page built from half a study would look like a result. So everything the page rests on is checked here, once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Study", "read_study"]

SCORE_COLUMNS = (
    "layer head score probe value low high null_uniform null_random null_random_high null_shuffled null "
    "p_value q_value finding primary"
).split()
IMPORTANCE_COLUMNS = "layer head task value low high".split()
EFFECT_COLUMNS = (
    "condition heads leaders score role kind mode task baseline loss delta low high "
    "control_delta excess_low excess_high"
).split()
EXAMPLE_KEYS = "layer head score document query tokens weights".split()


@dataclass(frozen=True)
class Study:
    """What a study found. `importance`, `effects` and `examples` are empty where nothing was measured."""

    folder: Path
    manifest: dict[str, Any]
    scores: pd.DataFrame
    importance: pd.DataFrame
    effects: pd.DataFrame
    examples: list[dict[str, Any]]

    @property
    def layers(self) -> list[dict[str, Any]]:
        """One layout per layer, as the manifest has it."""
        return self.manifest["layers"]

    @property
    def num_heads(self) -> int:
        """Query heads of the whole model."""
        return sum(int(layer["num_heads"]) for layer in self.layers)


def read_study(folder: Path) -> Study:
    """Read and check `folder`.

    Raises:
        UserError: the folder is missing, isn't finished, or doesn't hold what a study writes.
    """
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing there"
        raise UserError(f"report: expected a study folder at {folder}, got {found}; make one with {_advice(folder)}")
    for name in ("manifest.json", "scores.parquet"):
        if not (folder / name).is_file():
            raise UserError(f"report: {folder} isn't a finished study: {name} is missing; run {_advice(folder)}")
    study = Study(
        folder=folder,
        manifest=_manifest(folder),
        scores=_table(folder, "scores.parquet", SCORE_COLUMNS),
        importance=_table(folder, "importance.parquet", IMPORTANCE_COLUMNS),
        effects=_table(folder, "effects.parquet", EFFECT_COLUMNS),
        examples=_examples(folder),
    )
    _check_heads(study)
    return study


def _advice(folder: Path) -> str:
    return f"`headwise study MODEL --out {folder}`"


def _json(folder: Path, name: str) -> Any:
    try:
        return json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"report: {folder / name} can't be read as JSON ({error}); run {_advice(folder)} again"
        ) from error


def _manifest(folder: Path) -> dict[str, Any]:
    manifest = _json(folder, "manifest.json")
    found = manifest if isinstance(manifest, dict) else {}
    missing = [key for key in ("model", "layers", "documents") if not found.get(key)]
    if missing:
        raise UserError(
            f"report: {folder / 'manifest.json'} lacks {', '.join(missing)}; "
            f"was it written by a study? Run {_advice(folder)}"
        )
    return manifest


def _table(folder: Path, name: str, columns: list[str]) -> pd.DataFrame:
    """The table `name`, or an empty one where a study had nothing to write."""
    import pandas as pd

    path = folder / name
    if not path.is_file():
        return pd.DataFrame(columns=columns)
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise UserError(f"report: {path} can't be read ({error}); run {_advice(folder)} again") from error
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise UserError(
            f"report: {path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; "
            f"it comes from another version, so run {_advice(folder)} again"
        )
    return table


def _examples(folder: Path) -> list[dict[str, Any]]:
    if not (folder / "examples.json").is_file():
        return []
    examples = _json(folder, "examples.json")
    for example in examples:
        missing = ", ".join(key for key in EXAMPLE_KEYS if key not in example)
        if missing:
            raise UserError(f"report: {folder / 'examples.json'} lacks {missing}; run {_advice(folder)} again")
    return examples


def _check_heads(study: Study) -> None:
    """Every row must name a head that the manifest's layers have."""
    if study.scores.empty:
        raise UserError(f"report: {study.folder / 'scores.parquet'} holds no rows; run {_advice(study.folder)} again")
    counts = [int(layer["num_heads"]) for layer in study.layers]
    for name, table in (("scores", study.scores), ("importance", study.importance)):
        for layer, head in table[["layer", "head"]].drop_duplicates().itertuples(index=False):
            if not (0 <= layer < len(counts) and 0 <= head < counts[int(layer)]):
                raise UserError(
                    f"report: {study.folder / name}.parquet names L{layer}.H{head}, which manifest.json doesn't have; "
                    f"the files come from different studies, so run {_advice(study.folder)} again"
                )
