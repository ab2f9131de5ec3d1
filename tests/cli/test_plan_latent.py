"""`headwise plan` of what `headwise convert --mla` writes, which has no config.json."""

from __future__ import annotations

import pytest

from headwise.surgery.mla.checkpoint import save_latent
from headwise.surgery.mla.convert import convert_to_latent
from tests.cli.typed import run
from tests.surgery.decoders import decoder, rows

__all__ = ["run"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    checkpoint = convert_to_latent(decoder("llama"), rank=11, rope=6, rows=rows())
    return save_latent(checkpoint, tmp_path_factory.mktemp("latent") / "latent")


@pytest.mark.parametrize("words", [(), ("--json",), ("--compare", "mqa"), ("--weights", "model")])
def test_it_is_refused_with_what_to_do(run, folder, words):
    done = run("plan", folder, *words)
    error = " ".join(done.stderr.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{folder.name}: expected a model folder, got a model with latent attention; open it with" in error
    assert "headwise.surgery.mla.checkpoint.load_latent, or plan the model that it was made from with" in error
    assert "--compare mla:RANK+ROPE" in error
