"""What one command wrote, no other command replaces: `--overwrite` is for a result of the same kind."""

from __future__ import annotations

import itertools

import pytest

from headwise.cli.main import main

# What a finished folder of each kind holds.
FILES = {
    "study": ["manifest.json", "scores.parquet", "importance.parquet", "effects.parquet", "report.html"],
    "bench": ["manifest.json", "bench.json", "bench.csv", "bench.png"],
    "experiment": ["manifest.json", "runs.jsonl", "summary.json", "figure.png"],
    "model": ["headwise.json", "config.json", "model.safetensors"],
    "latent": ["latent.json", "config.json", "model.safetensors"],
}
WRITERS = {
    "study": ["study", "demo"],
    "bench": ["bench"],
    "experiment": ["experiment", "heads"],
    "model": ["convert", "demo", "--kv-heads", "1"],
    "latent": ["convert", "demo", "--mla", "64+16"],
}


@pytest.mark.parametrize(("kind", "other"), [pair for pair in itertools.product(WRITERS, FILES) if len(set(pair)) == 2])
def test_a_result_of_another_kind_is_not_overwritten(capsys, tmp_path, kind, other):
    folder = tmp_path / "result"
    folder.mkdir()
    for name in FILES[other]:
        (folder / name).write_text("kept")
    assert main([*WRITERS[kind], "--out", str(folder), "--overwrite"]) == 2
    assert "exists already and is not what headwise writes as a" in capsys.readouterr().err
    assert {file.name: file.read_text() for file in folder.iterdir()} == dict.fromkeys(FILES[other], "kept")
