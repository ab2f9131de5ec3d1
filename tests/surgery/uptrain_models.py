"""A student and its teacher, tiny, for the tests of re-training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from headwise.models import Checkpoint, load
from headwise.models.corpus import Corpus, read_corpus
from headwise.models.interface import NAME, register
from headwise.models.weights import copy_of, heads_of, replace_heads
from tests.models import tiny as every
from tests.study import tiny

LENGTH, BATCH, HELD_OUT = 41, 4, 7
# Small enough for a test, large enough for something to be learnt.
FAST: dict[str, Any] = {"batch": BATCH, "length": LENGTH, "held_out": HELD_OUT, "rate": 3e-3}


def save(folder: Path) -> tuple[Path, Path]:
    """The folders of a teacher and of texts."""
    return tiny.save_llama(folder / "teacher"), tiny.write_texts(folder / "texts", count=47, length=131)


def open_pair(folder: Path, **options: Any) -> tuple[Checkpoint, Checkpoint, Corpus]:
    """Student, teacher and documents of :func:`save`."""
    teacher = load(folder / "teacher", **options)
    return pooled(teacher), teacher, read_corpus(folder / "texts")


def pooled(teacher: Checkpoint) -> Checkpoint:
    """With one KV head, the mean of the teacher's."""
    student, layers = copy_of(teacher), {}
    for layer in range(student.num_layers):
        heads = heads_of(student, layer)
        layers[layer] = replace(heads, key=heads.key.mean(0, keepdim=True), value=heads.value.mean(0, keepdim=True))
    replace_heads(student, layers)
    return student


def built(name: str) -> Checkpoint:
    """A tiny model of an architecture, with random weights and without a tokenizer."""
    register()
    model = every.build((every.DECODERS | every.ENCODERS)[name])
    model.set_attn_implementation(NAME)
    return Checkpoint(model, None, name=name, source=name, objective="next")
