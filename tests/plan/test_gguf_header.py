"""The header of GGUF files: as the package gguf reads it, and whatever is wrong with the file."""

from __future__ import annotations

import os
import random
import struct
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.plan.errors import PlanError
from headwise.plan.gguf import read_header
from headwise.plan.source import demo_file
from tests.plan.headers import MINIMAL, bare, pair, tensor, text, write

ARCHITECTURE = pair("general.architecture", 8, text("llama"))


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Path:
    """A file with a value of each kind, written by the package."""
    values = {
        **MINIMAL,
        "general.name": "someone's model",
        "rope.freq_base": 10000.5,
        "flag": True,
        "lists": [3, 5, 7],
        "marks": [True, False],
        "tokenizer.ggml.tokens": ["a", "bc", "d" * 300],
        "tokenizer.chat_template": "{{ nothing of ours }}" * 90,
        "tokenizer.ggml.scores": [0.5, 0.25],
    }
    tensors = {
        "blk.0.attn_q.weight": np.zeros((96, 96), np.float16),
        "blk.0.attn_q.bias": np.zeros(96, np.float32),
        "blk.1.attn_q.bias": np.zeros(96, np.float32),
    }
    return write(tmp_path_factory.mktemp("gguf") / "small.gguf", "llama", values, tensors)


def refusal(path: Path) -> str:
    with pytest.raises(PlanError) as refused:
        read_header(path)
    assert "\n" not in str(refused.value)
    return str(refused.value).removeprefix(f"{path}: ")


def refused_bytes(folder: Path, data: bytes) -> str:
    (folder / "wrong.gguf").write_bytes(data)
    return refusal(folder / "wrong.gguf")


def test_the_demo_model_as_the_package_reads_it():
    header, theirs = read_header(demo_file()), gguf.GGUFReader(demo_file())
    assert header.tensors == len(theirs.tensors)
    assert header.tensor_bytes == sum(int(tensor.n_bytes) for tensor in theirs.tensors)
    names = {tensor.name for tensor in theirs.tensors}
    assert header.first_block == {name.removeprefix("blk.0.") for name in names if name.startswith("blk.0.")}
    kept = {key: value for key, value in header.metadata.items() if not isinstance(value, tuple)}
    assert len(kept) > 15
    for key, value in kept.items():
        assert value == theirs.fields[key].contents(), key


def test_every_kind_of_value(small):
    header = read_header(small)
    own = {key.removeprefix("llama."): value for key, value in header.metadata.items()}
    assert {name: own[name] for name in MINIMAL} == MINIMAL
    assert (own["general.architecture"], own["general.name"]) == ("llama", "someone's model")
    assert (own["rope.freq_base"], own["flag"], own["lists"]) == (10000.5, True, (3, 5, 7))
    assert own["marks"] == (True, False)
    assert header.first_block == {"attn_q.weight", "attn_q.bias"}
    assert (header.tensors, header.tensor_bytes) == (3, 96 * 96 * 2 + 2 * 96 * 4)


def test_vocabularies_and_templates_are_skipped(small):
    assert not {"tokenizer.ggml.tokens", "tokenizer.chat_template", "tokenizer.ggml.scores"} & set(
        read_header(small).metadata
    )


def test_the_other_byte_order(tmp_path):
    file = tmp_path / "big.gguf"
    pairs = (
        pair("general.architecture", 8, text("llama", ">"), ">"),
        pair("llama.block_count", 4, struct.pack(">I", 7), ">"),
        pair("llama.list", 9, struct.pack(">IQ3H", 2, 3, 1, 2, 300), ">"),
    )
    file.write_bytes(bare(*pairs, tensors=(tensor("blk.0.x", (32, 3), 8, 0, ">"),), data=3 * 34, order=">"))
    header = read_header(file)
    assert header.metadata == {"general.architecture": "llama", "llama.block_count": 7, "llama.list": (1, 2, 300)}
    assert header.tensor_bytes == 3 * 34


def test_every_number_of_bytes_but_all_is_cut_short(small, tmp_path):
    """Also where only tensors are missing, since what is left of a download is no model."""
    whole = small.read_bytes()
    file = tmp_path / "cut.gguf"
    header = len(whole) - 96 * 96 * 2 - 3 * 96 * 4
    for length in [*range(500), *range(500, header + 40, 17), *range(header + 40, len(whole) - 64, 911)]:
        file.write_bytes(whole[:length])
        assert "cut short" in refusal(file), length


@settings(max_examples=200)
@given(data=st.data())
def test_a_damaged_header_is_read_or_refused(small, tmp_path_factory, data):
    """Bytes set at random: a PlanError, or some header, never anything else."""
    damaged = bytearray(small.read_bytes())
    end = len(damaged) - 96 * 96 * 2
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, end - 9))
        kind = data.draw(st.sampled_from(["byte", "count"]))
        if kind == "byte":
            damaged[place] = data.draw(st.integers(0, 255))
        else:
            damaged[place : place + 8] = struct.pack("<Q", data.draw(st.integers(0, 2**64 - 1)))
    file = tmp_path_factory.getbasetemp() / "damaged.gguf"
    file.write_bytes(damaged)
    with suppress(PlanError):
        read_header(file)


@settings(max_examples=200)
@given(data=st.binary(max_size=400), version=st.sampled_from([2, 3]))
def test_anything_behind_the_first_letters_is_read_or_refused(tmp_path_factory, data, version):
    file = tmp_path_factory.getbasetemp() / "anything.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<I", version) + data)
    with suppress(PlanError):
        read_header(file)


ABSURD = 2**62
LINES = [
    (b"", "expected a whole GGUF header, got one that is cut short; copy the file again"),
    (b"PK\3\4" * 9, "expected a GGUF file, got one that does not start with the letters GGUF"),
    (bare(version=1), "expected version 2 or 3 of GGUF, got 1; convert the model anew"),
    (bare(version=4), "expected version 2 or 3 of GGUF, got 4; convert the model anew"),
    (
        b"GGUF" + struct.pack("<IQQ", 3, ABSURD, 0) + bytes(100),
        f"expected at most 1048576 tensors, got {ABSURD}; the file may be damaged",
    ),
    (
        b"GGUF" + struct.pack("<IQQ", 3, 0, ABSURD) + bytes(100),
        f"expected at most 65536 pairs of metadata, got {ABSURD}; the file may be damaged",
    ),
    (
        bare(struct.pack("<Q", ABSURD) + bytes(40)),
        f"expected at most 65535 bytes in the name of a key of metadata, got {ABSURD}; the file may be damaged",
    ),
    (
        bare(pair("a", 8, struct.pack("<Q", ABSURD)) + bytes(40)),
        "expected a whole GGUF header, got one that is cut short; copy the file again",
    ),
    (
        bare(pair("a", 9, struct.pack("<IQ", 4, ABSURD)) + bytes(40)),
        "expected a whole GGUF header, got one that is cut short; copy the file again",
    ),
    (
        bare(pair("a", 9, struct.pack("<IQ", 8, ABSURD)) + bytes(40)),
        f"expected at most 8388608 texts in lists, got {ABSURD}; the file may be damaged",
    ),
    (bare(pair("a", 13, bytes(8))), "expected a known type for 'a', got 13; the file may be damaged"),
    (
        bare(pair("a", 9, struct.pack("<IQ", 9, 1) + bytes(40))),
        "expected a list of numbers or texts for 'a', got type 9",
    ),
    (
        bare(ARCHITECTURE, pair("a", 0, b"\1"), pair("a", 0, b"\1")),
        "expected each key of metadata once, got 'a' again",
    ),
    (
        bare(ARCHITECTURE, tensors=(tensor("x", (1, 1, 1, 1, 1), 0, 0),), data=4),
        "expected at most 4 dimensions of 'x', got 5; the file may be damaged",
    ),
    (
        bare(ARCHITECTURE, tensors=(tensor("x", (2**33, 2**33), 0, 0),), data=4),
        f"expected at most {2**40} elements of 'x', got {2**66}; the file may be damaged",
    ),
    (bare(ARCHITECTURE, tensors=(tensor("x", (32,), 4, 0),), data=64), "expected a known type for tensor 'x', got 4"),
    (bare(ARCHITECTURE, tensors=(tensor("x", (33,), 8, 0),), data=64), "expected rows in blocks of 32 for 'x', got 33"),
    (
        bare(pair("general.alignment", 4, bytes(4))),
        "expected general.alignment to be a small whole number, got 0",
    ),
    (
        bare(ARCHITECTURE, tensors=(tensor("x", (32,), 0, 64),), data=128),
        "expected at least 320 bytes, got 256; it is cut short, copy it again",
    ),
]


@pytest.mark.parametrize(("data", "text"), LINES, ids=range(len(LINES)))
def test_what_is_no_model_is_refused_in_one_line(tmp_path, data, text):
    assert refused_bytes(tmp_path, data) == text


def test_what_is_no_file_is_refused(tmp_path):
    assert refusal(tmp_path / "none.gguf") == (
        "expected a GGUF file, got none that can be read (No such file or directory)"
    )
    assert refusal(tmp_path) == "expected a GGUF file, got no regular file"
    assert refusal(Path("/dev/zero")) == "expected a GGUF file, got no regular file"


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    assert refusal(tmp_path / "pipe.gguf") == "expected a GGUF file, got no regular file"


def test_no_more_memory_than_the_header(tmp_path):
    """A megabyte of vocabulary and a file that claims a gigabyte of tensors: a few kilobytes are kept."""
    words = b"".join(text(str(number)) for number in range(100_000))
    vocabulary = pair("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 100_000) + words)
    file = tmp_path / "large.gguf"
    file.write_bytes(bare(ARCHITECTURE, vocabulary, tensors=(tensor("x", (2**28,), 0, 0),)))
    os.truncate(file, file.stat().st_size + 2**30)  # a hole, no gigabyte on the disk
    tracemalloc.start()
    started = time.monotonic()
    header = read_header(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert header.tensor_bytes == 2**30
    assert peak < 300_000
    assert time.monotonic() - started < 20


def test_counts_that_no_model_has_are_refused_before_they_cost_time(tmp_path):
    file = tmp_path / "sparse.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair("a", 9, struct.pack("<IQ", 8, 2**27)))
    os.truncate(file, 2**31)
    assert refusal(file) == f"expected at most {2**23} texts in lists, got {2**27}; the file may be damaged"


def test_random_files_of_the_demo_model_are_read_or_refused(tmp_path):
    """The real header with one byte changed, at places drawn once and for all."""
    whole = demo_file().read_bytes()[:4096]
    size = demo_file().stat().st_size
    draw = random.Random(11)
    for _ in range(50):
        damaged = bytearray(whole)
        damaged[draw.randrange(4, 1500)] = draw.randrange(256)
        file = tmp_path / "damaged.gguf"
        file.write_bytes(damaged)
        os.truncate(file, size)
        with suppress(PlanError):
            read_header(file)
