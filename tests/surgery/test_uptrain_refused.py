"""Re-training that would go wrong later on, or in silence, is refused before any work."""

from __future__ import annotations

import pytest
import torch

from headwise.errors import UserError
from headwise.models.corpus import cut_rows
from headwise.models.weights import copy_of
from headwise.surgery import uptrain as module
from headwise.surgery.latent import convert_to_latent
from headwise.surgery.uptrain import uptrain
from tests.surgery.uptrain_models import BATCH, FAST, LENGTH, open_pair, save


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    save(folder)
    return open_pair(folder)


@pytest.fixture
def untrained(monkeypatch) -> None:
    monkeypatch.setattr(module, "_train", lambda *_: pytest.fail("it was trained"))


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize("trained", ["student", "teacher"])
def test_what_is_trained_needs_float32(pair, trained):
    """The teacher as well, where it is trained on the same text to compare with."""
    models = dict(zip(("student", "teacher"), pair, strict=False))
    models[trained] = copy_of(models[trained])
    models[trained].name = trained
    models[trained].model.to(torch.bfloat16)
    with pytest.raises(UserError, match=rf"{trained}: expected float32 weights, .* got bfloat16; load it with"):
        uptrain(models["student"], models["teacher"], pair[2], BATCH * LENGTH, control=True, **FAST)


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize("trained", ["student", "teacher"])
def test_latent_attention_is_not_trained(pair, tmp_path, trained):
    models = dict(zip(("student", "teacher"), pair, strict=False))
    rows = cut_rows(pair[2].working, pair[1].tokenizer, tokens=500, length=50, seed=0, what="the test")
    models[trained] = convert_to_latent(pair[1], rank=19, rope=8, rows=rows)
    models[trained].name = trained
    options = FAST | {"control": True, "partial": tmp_path / "partial"}
    with pytest.raises(UserError, match=f"{trained}: expected heads with keys and values to train, got latent"):
        uptrain(models["student"], models["teacher"], pair[2], BATCH * LENGTH, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_teacher_that_is_only_asked_may_have_fewer_bits(pair):
    half = copy_of(pair[1])
    half.model.to(torch.bfloat16)
    assert uptrain(pair[0], half, pair[2], BATCH * LENGTH, **FAST).record["tokens"] == BATCH * LENGTH


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize("short", ["student", "teacher"])
def test_rows_beyond_the_positions_of_either_are_refused(pair, short):
    models = dict(zip(("student", "teacher"), pair, strict=False))
    models[short] = copy_of(models[short])
    models[short].name = short
    models[short].model.config.max_position_embeddings = LENGTH - 1
    with pytest.raises(UserError, match=f"{short}: expected rows of at most 40 tokens, .* got 41; ask for shorter"):
        uptrain(models["student"], models["teacher"], pair[2], BATCH * LENGTH, **FAST)
