"""The whole study on tiny models: what is written, what is found, what survives an interruption."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
import torch

from headwise.errors import UserError
from headwise.models import load
from headwise.study import Settings, measure, read_documents, study
from tests.study import tiny

SETTINGS = Settings(
    documents=9, length=41, repeated=7, unrelated=5, null_draws=24, effect_documents=5, effect_length=23
)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return read_documents(tiny.write_texts(tmp_path_factory.mktemp("texts") / "all"))


def test_random_weights_yield_no_findings(tmp_path, texts):
    # Not one model but several, of other spreads: at a rate of 5 % a wrong null would show in ten.
    for seed, spread in enumerate((0.02, 0.05, 0.1, 0.2, 0.3, 0.5)):
        checkpoint = load(tiny.save_llama(tmp_path / f"model{seed}", seed=seed, spread=spread))
        result = study(checkpoint, texts, tmp_path / f"study{seed}", settings=SETTINGS)
        assert result.findings.empty, f"spread {spread}"
        assert result.effects.empty
        assert "no head survived, so no head was ablated" in result.manifest["notes"]
        assert result.summary()["findings"] == []


def test_the_folder_holds_what_the_readme_says(tmp_path, llama, texts, monkeypatch):
    tiny.everything_is_a_finding(monkeypatch)
    result = study(llama, texts, tmp_path / "study", settings=SETTINGS, documents_source="random words")
    assert sorted(file.name for file in result.folder.iterdir()) == [
        "arrays.safetensors", "documents.parquet", "effect_documents.parquet", "effects.parquet", "examples.json",
        "importance.parquet", "manifest.json", "scores.parquet",
    ]  # fmt: skip
    manifest = json.loads((result.folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["model"]["weights_sha256"] == llama.weights_sha256
    assert manifest["documents"] == {"source": "random words", "count": 9, "tokens": 9 * 41}
    assert len(manifest["checks"]) >= 5
    assert all(check["passed"] for check in manifest["checks"])
    scores = pd.read_parquet(result.folder / "scores.parquet")
    assert len(scores) == 18 * (5 + 3 + 4 + 3)
    pd.testing.assert_frame_equal(scores, result.scores)
    raw = pd.read_parquet(result.folder / "documents.parquet")
    merged = raw.groupby(["score", "probe", "layer", "head"])["value"].mean()
    stored = scores.set_index(["score", "probe", "layer", "head"])["value"]
    np.testing.assert_allclose(merged[stored.index], stored, rtol=1e-5)
    effects = pd.read_parquet(result.folder / "effects.parquet")
    losses = pd.read_parquet(result.folder / "effect_documents.parquet")
    deltas = (losses["loss"] - losses["baseline"]).groupby(losses["condition"]).mean()
    np.testing.assert_allclose(deltas, effects["delta"])
    importance = pd.read_parquet(result.folder / "importance.parquet")
    assert len(importance) == 2 * 18
    assert (importance["value"] >= 0).all()


def test_nulls_and_findings_of_the_table_are_consistent(tmp_path, llama, texts):
    scores = study(llama, texts, tmp_path / "study", settings=SETTINGS).scores
    primary = scores[scores["primary"]]
    assert primary.groupby("score")["probe"].unique().map(list).to_dict() == {
        "delimiter": ["text"], "duplicate": ["repeated"], "first": ["text"], "induction": ["repeated"],
        "previous": ["repeated"],
    }  # fmt: skip
    nulls = primary[["null_uniform", "null_random", "null_shuffled"]]
    np.testing.assert_allclose(primary["null"], nulls.max(axis=1))
    content = primary["score"].isin(["duplicate", "induction", "delimiter"])
    assert primary["null_shuffled"].notna().equals(content)
    assert (primary["q_value"] >= primary["p_value"] - 1e-12).all()
    assert scores.loc[~scores["primary"], "q_value"].isna().all()
    # On repeated samples uniform attention has a closed form: one key among the i + 1 that query i sees.
    induction = primary[primary["score"] == "induction"]
    np.testing.assert_allclose(induction["null_uniform"], np.mean([1 / (i + 1) for i in range(51, 101)]), rtol=1e-5)


def test_the_same_seed_gives_the_same_study_and_another_seed_another(tmp_path, llama, texts):
    first = study(llama, texts, tmp_path / "a", settings=SETTINGS).scores
    again = study(llama, texts, tmp_path / "b", settings=SETTINGS).scores
    other = study(llama, texts, tmp_path / "c", settings=dataclasses.replace(SETTINGS, seed=1)).scores
    pd.testing.assert_frame_equal(first, again)
    assert not np.allclose(first["value"], other["value"])


def test_an_interrupted_study_goes_on_where_it_stopped(tmp_path, llama, texts, monkeypatch):
    tiny.everything_is_a_finding(monkeypatch)
    whole = study(llama, texts, tmp_path / "whole", settings=SETTINGS)
    calls = {"count": 0}
    real = measure.TaskRunner.losses

    def counted(self, heads=(), mode="zero"):
        calls["count"] += 1
        if calls["count"] == 17:
            raise KeyboardInterrupt
        return real(self, heads, mode)

    monkeypatch.setattr(measure.TaskRunner, "losses", counted)
    with pytest.raises(KeyboardInterrupt):
        study(llama, texts, tmp_path / "study", settings=SETTINGS)
    assert not (tmp_path / "study").exists()
    scored = []
    monkeypatch.setattr(measure, "score_sample", lambda *_: scored.append(1))
    result = study(llama, texts, tmp_path / "study", settings=SETTINGS)
    assert not scored, "scores that were finished were computed again"
    assert calls["count"] == 17 + len(set(_keys(whole))) + 2 - 16
    pd.testing.assert_frame_equal(result.effects, whole.effects)
    pd.testing.assert_frame_equal(result.scores, whole.scores)
    assert any("continued after an interruption" in note for note in result.manifest["notes"])
    assert not (tmp_path / "study.partial").exists()


def _keys(result):
    table = result.effects
    return zip(table["task"], table["mode"], table["heads"].map(sorted).map(tuple), strict=True)


def test_an_encoder_is_read_in_both_directions_with_its_own_loss(tmp_path, bert, texts, monkeypatch):
    tiny.everything_is_a_finding(monkeypatch)
    result = study(bert, texts, tmp_path / "study", settings=SETTINGS)
    assert result.manifest["model"]["causal"] is False
    assert set(result.effects["task"]) == {"text", "repeated"}
    assert np.isfinite(result.effects["delta"]).all()
    examples = json.loads((result.folder / "examples.json").read_text(encoding="utf-8"))
    assert any(len(example["tokens"]) > example["query"] + 1 for example in examples)


def test_an_encoder_without_a_language_head_is_scored_and_says_so(tmp_path, bert, texts):
    headless = dataclasses.replace(bert, objective=None)
    result = study(headless, texts, tmp_path / "study", settings=SETTINGS)
    assert any("no language head" in note for note in result.manifest["notes"])
    assert result.effects.empty
    assert len(result.scores)


def test_examples_hold_the_weights_of_the_query_they_name(tmp_path, llama, texts, monkeypatch):
    tiny.everything_is_a_finding(monkeypatch)
    folder = study(llama, texts, tmp_path / "study", settings=SETTINGS).folder
    examples = json.loads((folder / "examples.json").read_text(encoding="utf-8"))
    assert {example["score"] for example in examples} >= {"previous", "first", "duplicate"}
    for example in examples:
        assert len(example["tokens"]) == len(example["weights"]) == example["query"] + 1
        assert sum(example["weights"]) == pytest.approx(1, abs=1e-3)
        if example["score"] == "previous":
            assert example["weights"][-2] == pytest.approx(example["mass"], abs=1e-4)


def test_progress_tells_all_work_before_it_starts_and_ends_at_the_total(tmp_path, llama, texts, monkeypatch):
    tiny.everything_is_a_finding(monkeypatch)

    class Ledger:
        planned = done = 0.0
        first = None

        def plan(self, tokens):
            self.planned += tokens

        def stage(self, text):
            pass

        def advance(self, tokens):
            self.first = self.first or self.planned
            self.done += tokens

    ledger = Ledger()
    study(llama, texts, tmp_path / "study", settings=SETTINGS, progress=ledger)
    assert ledger.done == pytest.approx(ledger.planned)
    assert ledger.first == pytest.approx(ledger.planned, rel=0.25)


def test_texts_of_tokens_join_to_the_text_with_its_spaces(llama):
    from headwise.study.examples import token_texts

    tokens = llama.tokenizer("bade , bafi bago .")["input_ids"]
    texts = token_texts(llama.tokenizer, tokens)
    assert texts == ["bade", " ,", " bafi", " bago", " ."]
    assert "".join(texts) == llama.tokenizer.decode(tokens)


def test_one_piece_of_text_is_too_little(tmp_path, llama):
    from headwise.models.documents import Text

    with pytest.raises(UserError, match="only one piece of text"):
        study(llama, [Text("one", " ".join(tiny.words()[2:30]))], tmp_path / "study", settings=SETTINGS)
    assert not (tmp_path / "study.partial").exists()


def test_gradients_and_hooks_are_left_as_they_were(tmp_path, llama, texts):
    def hooks():
        return [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in llama.model.modules()]

    before = hooks()
    study(llama, texts, tmp_path / "study", settings=SETTINGS)
    assert hooks() == before
    assert all(parameter.grad is None for parameter in llama.model.parameters())
    assert torch.is_grad_enabled()
