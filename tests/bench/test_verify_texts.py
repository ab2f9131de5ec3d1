"""The texts of a verification, and pairs of models that have no logits in common."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from headwise.bench.verification import texts
from headwise.bench.verification.pair import check_pair, max_positions
from headwise.bench.verification.settings import Settings
from headwise.bench.verification.texts import docstrings, held_out_rows, read_corpora
from headwise.errors import UserError
from headwise.models.corpus import cut_rows, fingerprint
from headwise.models.weights import copy_of
from headwise.surgery.mla.convert import convert_to_latent
from tests.study.tiny import tokenizer, write_texts

SETTINGS = Settings(tokens=100, length=23)


@pytest.fixture
def words(tmp_path):
    (named,) = read_corpora([write_texts(tmp_path / "words", count=29)])
    return named


def test_two_corpora_come_with_python():
    corpora = read_corpora()
    assert [named.name for named in corpora] == ["python help", "python docstrings"]
    for named in corpora:
        assert len(named.corpus.held_out) >= 12
        # Four characters a token, and twice what is asked for by default.
        assert sum(len(text.text) for text in named.corpus.held_out) > 2 * 4 * Settings().tokens
        assert not {fingerprint(text) for text in named.corpus.held_out} & {
            fingerprint(text) for text in named.corpus.working
        }


def test_docstrings_are_what_modules_say_of_themselves(monkeypatch, tmp_path):
    (tmp_path / "textwrap.py").write_text(
        '"""Wraps."""\ndef f():\n    """Does it."""\n    x = "code"\nclass A:\n    pass\n'
    )
    (tmp_path / "heapq.py").write_text("x = 1\n")
    (tmp_path / "not_of_the_library.py").write_text('"""Strange."""\n')
    monkeypatch.setattr(texts.sysconfig, "get_path", lambda _: str(tmp_path))
    assert [(text.name, text.text) for text in docstrings()] == [("textwrap", "Wraps.\n\nDoes it.")]


def test_a_library_without_source_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(texts.sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(UserError, match=r"expected the source of Python's standard library.*--documents"):
        docstrings()


def test_rows_are_of_held_out_documents_alone(llama, pooled, words):
    rows, notes = held_out_rows(words, llama, pooled, SETTINGS)
    assert rows.tokens.shape == (5, 23)
    assert not torch.equal(rows.tokens, held_out_rows(words, llama, pooled, replace(SETTINGS, seed=1))[0].tokens)
    assert set(rows.documents) <= {fingerprint(text) for text in words.corpus.held_out}
    assert notes == ()


@pytest.mark.parametrize("place", [0, 1])
def test_what_either_model_was_made_with_is_left_out_and_said_to_be(llama, words, place):
    used = [fingerprint(text) for text in words.corpus.held_out[:2]]
    other = copy_of(llama)
    other.history = ({"operation": "prune", "documents": used[:1]}, {"operation": "uptrain", "documents": used[1:]})
    pair = (other, llama) if place == 0 else (llama, other)
    rows, notes = held_out_rows(words, *pair, Settings(tokens=23 * 3, length=23))
    assert not set(rows.documents) & set(used)
    count = len(words.corpus.held_out)
    assert notes == (f"{words.name}: 2 of {count} held-out documents were calibrated or trained on and are left out",)
    other.history = ({"documents": [fingerprint(text) for text in words.corpus.held_out]},)
    with pytest.raises(UserError, match="expected documents that neither model was calibrated or trained on, got none"):
        held_out_rows(words, *pair, SETTINGS)


def test_too_little_text_says_how_much_there_is(llama, pooled, words):
    with pytest.raises(UserError, match=r"documents: expected 9,016 tokens in rows of 23 for .*words, got "):
        held_out_rows(words, llama, pooled, Settings(tokens=9_000, length=23))


def test_a_tokenizer_that_cuts_otherwise_is_refused(llama, words):
    other = copy_of(llama)
    other.name = "other"
    other.tokenizer = copy.deepcopy(llama.tokenizer)
    from tokenizers.normalizers import Replace

    other.tokenizer.backend_tokenizer.normalizer = Replace("ba", "xu")
    check_pair(llama, other)
    with pytest.raises(UserError, match=r"verify: other: expected the tokenizer of llama, got one that cuts .*words"):
        held_out_rows(words, llama, other, SETTINGS)


def test_models_that_cannot_be_compared_are_named(llama, bert):
    with pytest.raises(UserError, match="verify: bert: expected a causal language model as llama is, got a masked"):
        check_pair(llama, bert)
    headless = copy_of(llama)
    headless.name, headless.objective = "headless", None
    with pytest.raises(UserError, match="verify: headless: expected a language model, got LlamaForCausalLM without"):
        check_pair(llama, headless)


def test_latent_attention_is_refused_by_name(llama, words):
    rows = cut_rows(words.corpus.working, llama.tokenizer, tokens=300, length=23, seed=0, what="the test")
    latent = convert_to_latent(llama, rank=19, rope=8, rows=rows)
    latent.name = "latent"
    with pytest.raises(UserError, match="verify: latent: expected attention over keys and values, got latent"):
        check_pair(llama, latent)


def test_other_vocabularies_are_refused_by_name(llama):
    other = copy_of(llama)
    other.name, other.tokenizer = "other", swapped(llama.tokenizer)
    with pytest.raises(
        UserError, match=r"verify: other: expected the vocabulary of llama, .*got ',' as token 5 instead"
    ):
        check_pair(llama, other)
    padded = copy_of(llama)
    padded.model.resize_token_embeddings(219)
    with pytest.raises(UserError, match="got 219 logits instead of 216"):
        check_pair(llama, padded)


def swapped(_: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """The full stop and the comma have changed places."""
    import json

    from tokenizers import Tokenizer

    told = json.loads(tokenizer(wrapped=False).backend_tokenizer.to_str())
    vocabulary = told["model"]["vocab"]
    vocabulary["."], vocabulary[","] = vocabulary[","], vocabulary["."]
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(told)), bos_token="[CLS]")


def test_positions_are_those_that_both_have(llama):
    assert max_positions(llama, llama) == 2_048
    shorter = copy_of(llama)
    shorter.model.config.max_position_embeddings = 53
    assert max_positions(llama, shorter) == max_positions(shorter, llama) == 53
