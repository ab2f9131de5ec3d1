"""Scores against the whole map: what the study reports is what a person would compute from eager weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.models.documents import Piece
from headwise.study.samples import repeated_samples, text_samples
from headwise.study.scores import delimiter_ids, repeated_relations, score_sample, text_relations


def _maps(checkpoint, tokens):
    """Eager attention weights [layers, B, H, L, L], from transformers itself."""
    checkpoint.model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            return torch.stack(checkpoint.model(tokens, output_attentions=True).attentions)
    finally:
        checkpoint.model.set_attn_implementation("headwise")


def test_delimiters_are_punctuation_and_the_separator(llama, bert):
    assert llama.tokenizer.convert_ids_to_tokens(sorted(delimiter_ids(llama.tokenizer))) == [".", ","]
    assert bert.tokenizer.convert_ids_to_tokens(sorted(delimiter_ids(bert.tokenizer))) == ["[SEP]", ".", ","]


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_scores_on_text_equal_loops_over_the_eager_map(name, request):
    checkpoint = request.getfixturevalue(name)
    generator = torch.Generator().manual_seed(3)
    rows = torch.randint(5, 19, (2, 29), generator=generator)  # few different tokens, so that many repeat
    pieces = [Piece(str(index), tuple(row.tolist())) for index, row in enumerate(rows)]
    (sample,) = text_samples(pieces, batch=2)
    delimiters = delimiter_ids(checkpoint.tokenizer)
    tables = score_sample(checkpoint, sample, text_relations(sample.tokens, delimiters, seed=0))
    maps = _maps(checkpoint, sample.tokens)
    for document, row in enumerate(rows.tolist()):
        expected = {kind: _by_hand(maps[:, document], row, kind, checkpoint.causal, delimiters) for kind in _KINDS}
        for kind, (mass, uniform) in expected.items():
            np.testing.assert_allclose(tables[kind][document], mass, atol=2e-6, err_msg=kind)
            np.testing.assert_allclose(tables[f"{kind} (uniform)"][document], uniform, atol=2e-6, err_msg=kind)
    entropy = torch.special.entr(maps).sum(-1).mean(-1).transpose(0, 1)  # [B, layers, H]
    np.testing.assert_allclose(tables["entropy"], entropy, atol=1e-5)


_KINDS = ("previous", "duplicate", "induction", "first", "delimiter")


def _by_hand(weights, tokens, kind, causal, delimiters):
    """Mean mass and mean uniform share over queries for which the relation is neither empty nor everything."""
    masses, uniforms = [], []
    for query in range(len(tokens)):
        visible = range(query + 1 if causal else len(tokens))
        keys = [key for key in visible if _belongs(tokens, query, key, kind, delimiters)]
        if 0 < len(keys) < len(visible):
            masses.append(weights[:, :, query, keys].sum(-1))
            uniforms.append(len(keys) / len(visible))
    return torch.stack(masses).mean(0), sum(uniforms) / len(uniforms)


def _belongs(tokens, query, key, kind, delimiters):
    if kind == "previous":
        return key == query - 1
    if kind == "duplicate":
        return key != query and tokens[key] == tokens[query]
    if kind == "induction":
        return key >= 1 and key - 1 != query and tokens[key - 1] == tokens[query]
    if kind == "first":
        return key == 0
    return key > 0 and tokens[key] in delimiters


def test_scores_on_repeated_tokens_read_the_exact_places(llama):
    (sample,) = repeated_samples(llama.tokenizer, llama.model.config, 2, 2, seed=1)
    tables = score_sample(llama, sample, repeated_relations(sample))
    maps = _maps(llama, sample.tokens)
    queries = torch.arange(51, 101)
    np.testing.assert_allclose(
        tables["induction"], maps[:, :, :, queries, queries - 49].mean(-1).transpose(0, 1), atol=2e-6
    )
    np.testing.assert_allclose(
        tables["duplicate"], maps[:, :, :, queries, queries - 50].mean(-1).transpose(0, 1), atol=2e-6
    )


def test_shuffled_relations_keep_the_counts_and_break_the_places():
    tokens = torch.tensor([[9, 5, 6, 7, 5, 8, 5, 6, 7, 9, 6, 5, 8]])
    relations = {relation.name: relation for relation in text_relations(tokens, frozenset({5}), seed=0)}
    queries = torch.arange(13)[None]
    plain, shuffled = relations["delimiter"].keys(queries, 13), relations["delimiter (shuffled)"].keys(queries, 13)
    assert plain[0, 0].sum() == shuffled[0, 0].sum() == 4
    assert not torch.equal(plain, shuffled)
    assert not plain[..., 0].any()
    assert not shuffled[..., 0].any()
    real, mixed = relations["duplicate"], relations["duplicate (shuffled)"]
    assert sorted(real.tokens[0, 1:].tolist()) == sorted(mixed.tokens[0, 1:].tolist())
    assert not torch.equal(real.tokens, mixed.tokens)
