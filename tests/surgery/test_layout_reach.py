"""What `inspect` says can be made of a model is what `convert` and `degroup` do make of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwise.errors import UserError
from headwise.models.checkpoint import Checkpoint
from headwise.models.packing import PACKINGS
from headwise.surgery.convert import Recipe, convert
from headwise.surgery.export import check_exportable, export
from headwise.surgery.gauge import degroup
from headwise.surgery.layout_reach import reach_of
from headwise.surgery.sharing.methods import METHODS
from tests.models import tiny
from tests.surgery.decoders import SHARING, decoder, rows
from tests.surgery.resized import resized, whole

EVERY = tiny.DECODERS | tiny.ENCODERS
TYPES = {name: tiny.build(make).config.model_type for name, make in EVERY.items()}
KNOWN = [name for name, kind in TYPES.items() if kind in PACKINGS]
MORE = [name for name in SHARING if name not in EVERY]
RESIZED = {
    "layers of 2, 4 and 2": ("llama", 4, 4, [1]),
    "layers of 2, 3 and 3": ("llama", 6, 3, [1, 2]),
    "gpt2 with heads removed": ("gpt2", 4, 4, [0, 1, 2]),
    "one KV head already": ("llama", 6, 1, [0, 1, 2]),
    "a gpt2 of one head": ("gpt2", 1, 1, [0, 1, 2]),
}


def opened(name: str) -> Checkpoint:
    if name in RESIZED:
        return resized(*RESIZED[name])
    return decoder(name) if name in MORE else whole(name)


def written(checkpoint: Checkpoint, number: int, method: str, folder: Path) -> bool:
    """Whether the model can be converted and saved, as the command does it."""
    try:
        check_exportable(checkpoint, [(layout.num_heads, number) for layout in checkpoint.layouts])
        converted = convert(checkpoint, number, rows=rows(), recipe=Recipe(method, steps=0))
        export(converted, folder)
    except UserError:
        return False
    return True


def raised(checkpoint: Checkpoint, number: int) -> bool:
    try:
        made = degroup(checkpoint, number)
    except UserError:
        return False
    return any(new.num_kv_heads > old.num_kv_heads for new, old in zip(made.layouts, checkpoint.layouts, strict=True))


@pytest.mark.parametrize("name", [*KNOWN, *MORE, *RESIZED])
def test_what_is_told_is_what_is_made(name, tmp_path):
    checkpoint = opened(name)
    reach, numbers = reach_of(checkpoint), range(checkpoint.max_heads + 2)
    for method in METHODS:
        made = [number for number in numbers if written(checkpoint, number, method, tmp_path / f"{method}-{number}")]
        assert reach.fewer.get(method, []) == made, method
    assert reach.more == [number for number in numbers if raised(checkpoint, number)]
    assert (reach.refusal is None) == bool(reach.fewer)


def test_all_architectures_that_can_be_reshaped_are_among_them():
    assert {TYPES[name] for name in KNOWN} == set(PACKINGS)


@pytest.mark.parametrize("name", sorted(set(EVERY) - set(KNOWN)))
def test_others_are_converted_to_nothing(name, tmp_path):
    assert not any(written(whole(name), number, "first", tmp_path / str(number)) for number in (1, 2))


def test_reasons():
    assert reach_of(whole("qwen3")).fewer == {"first": [1]}
    assert set(reach_of(whole("gpt2")).fewer["pca"]) == {1}
    told = {name: reach_of(opened(name)).refusal for name in ("bert", "gpt-neox", *list(RESIZED)[2:4])}
    assert told["bert"].startswith("expected a decoder, got an encoder")
    assert told["gpt-neox"].startswith("expected an architecture that can share KV heads, got gpt_neox")
    assert "gpt_bigcode" in told["gpt2 with heads removed"] or "gpt2" in told["gpt2 with heads removed"]
    assert told["one KV head already"] == "expected fewer KV heads than it has, got 1, which every layer has already"
