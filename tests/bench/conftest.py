from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headwise.models import Checkpoint, load
from headwise.models.weights import copy_of, heads_of, replace_heads
from tests.fixtures import one_thread
from tests.study.tiny import save_bert, save_llama

__all__ = ["one_thread"]


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory) -> Path:
    return save_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="session")
def llama(llama_folder) -> Checkpoint:
    """Three layers of six query heads on two KV heads. Whoever changes it puts it back."""
    return load(llama_folder, check=False)


@pytest.fixture(scope="session")
def pooled(llama) -> Checkpoint:
    """The same with the mean of both KV heads in their place."""
    smaller = copy_of(llama)
    for layer in range(smaller.num_layers):
        weights = heads_of(smaller, layer)
        means = {name: getattr(weights, name).mean(0, keepdim=True) for name in ("key", "value")}
        replace_heads(smaller, {layer: replace(weights, **means)})
    smaller.name = "pooled"
    return smaller


@pytest.fixture(scope="session")
def bert(tmp_path_factory) -> Checkpoint:
    return load(save_bert(tmp_path_factory.mktemp("models") / "bert"), check=False)


@pytest.fixture
def broken_cache(monkeypatch) -> None:
    """A cache whose newest value is that of another place."""
    from transformers import DynamicCache

    from headwise.bench.verification import caches

    class Broken(DynamicCache):
        def update(self, key: torch.Tensor, value: torch.Tensor, *args, **options):
            return super().update(key, value.roll(1, dims=1), *args, **options)

    monkeypatch.setattr(caches, "new_cache", lambda checkpoint: Broken(config=checkpoint.model.config))
