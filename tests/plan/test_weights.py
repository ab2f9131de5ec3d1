"""Bytes of weights: from headers and indices, against what the files hold."""

from __future__ import annotations

import json
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from headwise.plan.errors import PlanError
from headwise.plan.gguf import read_header
from headwise.plan.source import demo_file
from headwise.plan.weights import INDEX, weight_bytes
from tests.plan.headers import MINIMAL, write

A = {"a": np.zeros((3, 5), np.float32), "b": np.zeros(7, np.float16)}
B = {"c": np.zeros((11, 13), np.int8)}
BYTES_A, BYTES_B = 3 * 5 * 4 + 7 * 2, 11 * 13


def refusal(model: Any) -> str:
    with pytest.raises(PlanError) as refused:
        weight_bytes(model)
    return str(refused.value)


def parts(folder: Path, total: Any = 1000) -> Path:
    """A folder with two files and their index."""
    save_file(A, folder / "model-1.safetensors", metadata={"format": "pt"})
    save_file(B, folder / "model-2.safetensors")
    places = {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}))
    return folder


def test_one_file(tmp_path):
    save_file(A, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert weight_bytes(tmp_path / "model.safetensors") == weight_bytes(tmp_path) == BYTES_A
    (tmp_path / "config.json").write_text("{}")
    assert weight_bytes(str(tmp_path / "config.json")) == BYTES_A


def test_several_files_count_by_what_they_hold(tmp_path):
    parts(tmp_path)
    assert weight_bytes(tmp_path) == BYTES_A + BYTES_B
    # A file that the index doesn't name is another form of the same model.
    save_file(A, tmp_path / "consolidated.safetensors")
    assert weight_bytes(tmp_path) == BYTES_A + BYTES_B
    assert weight_bytes(tmp_path / INDEX) == 1000


def test_the_index_alone_says_how_many(tmp_path):
    parts(tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    assert weight_bytes(tmp_path) == 1000
    (tmp_path / INDEX).write_text((tmp_path / INDEX).read_text().replace("1000", "1000.0"))
    assert weight_bytes(tmp_path) == 1000


def test_some_files_of_several_are_no_model(tmp_path):
    parts(tmp_path)
    (tmp_path / "model-2.safetensors").unlink()
    assert refusal(tmp_path) == (
        f"{tmp_path}: expected all parts that the index names, model-2.safetensors is missing; copy it there"
    )


def test_a_gguf_file():
    """The header's own test holds these bytes to what the package gguf counts."""
    assert weight_bytes("demo") == weight_bytes(demo_file()) == read_header(demo_file()).tensor_bytes > 90_000_000


def test_a_gguf_model_in_several_files_counts_with_all(tmp_path):
    for number, array in enumerate([np.zeros((2, 32), np.float32), np.zeros((3, 32), np.float16)], 1):
        write(tmp_path / f"model-{number:05}-of-00002.gguf", "llama", MINIMAL, {f"t{number}": array})
    assert weight_bytes(tmp_path / "model-00001-of-00002.gguf") == 2 * 32 * 4 + 3 * 32 * 2
    assert weight_bytes(tmp_path / "model-00002-of-00002.gguf") == 2 * 32 * 4 + 3 * 32 * 2
    (tmp_path / "model-00002-of-00002.gguf").unlink()
    first = tmp_path / "model-00001-of-00002.gguf"
    assert refusal(first) == (
        f"{first}: expected all 2 parts beside it, {tmp_path / 'model-00002-of-00002.gguf'} is missing; copy it there"
    )


def raw(header: bytes, data: int = 0) -> bytes:
    return struct.pack("<Q", len(header)) + header + bytes(data)


def offsets(*pair: Any) -> bytes:
    return json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": list(pair)}}).encode()


DAMAGED = "expected a whole safetensors file, got one that is damaged or cut short; copy it again"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", DAMAGED),
        (b"1234567", DAMAGED),
        (struct.pack("<Q", 2**63), DAMAGED),
        (struct.pack("<Q", 9) + b"{}", DAMAGED),
        (raw(offsets(0, 4), 3), DAMAGED),
        (raw(offsets(4, 0), 4), DAMAGED),
        (raw(offsets(-1, 4), 4), DAMAGED),
        (raw(offsets(0, 4.0), 4), DAMAGED),
        (raw(offsets(False, True), 4), DAMAGED),
        (raw(offsets(0), 4), DAMAGED),
        (raw(b'{"a": 7}', 4), DAMAGED),
        (raw(b"[]", 4), "expected an object in braces, got a list"),
        (raw(b"\xff", 4), "expected JSON in UTF-8, got the byte 0xff in it"),
        (raw(b'{"a": NaN}', 4), DAMAGED),
    ],
    ids=range(14),
)
def test_a_damaged_safetensors_file_is_refused(tmp_path, data, text):
    file = tmp_path / "model.safetensors"
    file.write_bytes(data)
    assert refusal(file) == f"{file}: {text}"


@settings(max_examples=100)
@given(data=st.data())
def test_safetensors_with_bytes_set_at_random_are_read_or_refused(tmp_path_factory, data):
    file = tmp_path_factory.getbasetemp() / "random.safetensors"
    save_file(A, file)
    damaged = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) :]
    file.write_bytes(damaged)
    with suppress(PlanError):
        assert weight_bytes(file) >= 0


@pytest.mark.parametrize(
    ("index", "text"),
    [
        ({}, "expected weight_map to name .safetensors files beside it"),
        ({"weight_map": []}, "expected weight_map to name .safetensors files beside it"),
        ({"weight_map": {"a": 7}}, "expected weight_map to name .safetensors files beside it"),
        ({"weight_map": {"a": "../x.safetensors"}}, "expected weight_map to name .safetensors files beside it"),
        ({"weight_map": {"a": "x.bin"}}, "expected weight_map to name .safetensors files beside it"),
        *(
            (
                {"weight_map": {"a": "x.safetensors"}, "metadata": metadata},
                "expected metadata.total_size to be a number of bytes; say --weights as a size, such as 16GiB",
            )
            for metadata in (None, {}, {"total_size": "many"}, {"total_size": -1}, {"total_size": True},
                             {"total_size": 2**61}, {"total_size": 1.5})
        ),
    ],
    ids=range(12),
)  # fmt: skip
def test_an_index_that_says_nothing_is_refused(tmp_path, index, text):
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert refusal(tmp_path) == f"{tmp_path / INDEX}: {text}"


def test_what_holds_no_weights_is_refused(tmp_path):
    (tmp_path / "readme.txt").write_text("none")
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "empty").mkdir()
    for model, text in [
        (
            tmp_path / "empty",
            f"{tmp_path}/empty: expected *.safetensors or their index, got none; say --weights as a size, such as "
            "16GiB",
        ),
        (
            tmp_path / "readme.txt",
            f"{tmp_path}/readme.txt: expected weights, which are a folder, a .safetensors, .index.json or .gguf file, "
            "and got none; say --weights as a size, such as 16GiB",
        ),
        (
            tmp_path / "pipe.safetensors",
            f"{tmp_path}/pipe.safetensors: expected a safetensors file, got no regular file",
        ),
        ({}, "--weights: expected a size, or a folder or file to read it from, got dict"),
        (
            "no/such/model",
            "no/such/model: no such folder or file; check the spelling (a hub id has the form org/name)",
        ),
    ]:
        assert refusal(model) == text


def test_the_hub_gives_the_index(monkeypatch):
    from headwise.plan import hub

    files: dict[str, Any] = {INDEX: {"metadata": {"total_size": 7777}}}
    monkeypatch.setattr(hub, "read_hub_object", lambda hub_id, name: files.get(name))
    assert weight_bytes("org/name") == 7777
    files.clear()
    assert refusal("org/name") == (
        f"org/name: no {INDEX} on the hub, its weights may lie in one file; say --weights as a size, such as 16GiB"
    )


def test_no_weight_is_read(tmp_path):
    """A file of a terabyte, all hole: only its header counts."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(raw(offsets(0, 2**40)))
    os.truncate(file, file.stat().st_size + 2**40)
    assert weight_bytes(file) == 2**40
