"""Someone else's JSON: what is read, and what is refused in one line."""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.plan.errors import PlanError
from headwise.plan.strict_json import MOST_BYTES, parse_object, read_object

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**39), 10**39) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), VALUES, max_size=6))
def test_any_object_is_read_as_json_reads_it(fields):
    assert parse_object(json.dumps(fields).encode(), "x") == fields


def test_a_mark_of_byte_order_is_nothing(tmp_path):
    file = tmp_path / "config.json"
    file.write_text('{"a": "\ufeff"}', encoding="utf-8-sig")
    assert file.read_bytes()[:3] == b"\xef\xbb\xbf"
    assert read_object(file) == {"a": "\ufeff"}


def test_numbers_that_are_none_are_left_to_who_asks_for_them():
    """Real configs hold them in fields of no interest here."""
    read = parse_object(b'{"time_step_limit": [0.0, Infinity], "x": NaN, "y": 1e999}', "x")
    assert read["time_step_limit"] == [0.0, math.inf]
    assert math.isnan(read["x"])
    assert read["y"] == math.inf


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "expected JSON, got an empty file"),
        (b" \n", "expected JSON, got an empty file"),
        (b"\xef\xbb\xbf", "expected JSON, got an empty file"),
        (b"x", "expected JSON, got a mistake in line 1, column 1 (Expecting value)"),
        (b'{"a": 1,\n}', "expected JSON, got a mistake: trailing comma"),
        (b'{"a"', "expected JSON, got a mistake in line 1, column 5 (Expecting ':' delimiter)"),
        (b"[1]", "expected an object in braces, got a list"),
        (b"7", "expected an object in braces, got a number"),
        (b"null", "expected an object in braces, got null"),
        (b"true", "expected an object in braces, got true or false"),
        (b'"text"', "expected an object in braces, got a text"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "expected each key once, got 'c' again"),
        (b'{"a": "\xff"}', "expected JSON in UTF-8, got the byte 0xff in it"),
        (b"[" * 200_000, "expected JSON, got lists or objects nested too deeply"),
        (b'{"a":' * 200_000, "expected JSON, got lists or objects nested too deeply"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "expected numbers of at most 40 digits, got one of 5001"),
    ],
    ids=range(16),
)
def test_what_is_no_object_is_refused(data, text):
    with pytest.raises(PlanError) as refused:
        parse_object(data, "config.json")
    line = str(refused.value)
    # Python words the trailing comma in two ways.
    assert line == f"config.json: {text}" or (
        "trailing comma" in text and "expected JSON, got a mistake in line " in line
    )


@settings(max_examples=200)
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    with suppress(PlanError):
        parse_object(data, "x")


def test_a_file_of_any_size_costs_bounded_memory(tmp_path):
    file = tmp_path / "config.json"
    file.write_bytes(b"{}")
    os.truncate(file, 2**40)
    with pytest.raises(PlanError) as refused:
        read_object(file)
    assert str(refused.value) == f"{file}: expected at most {MOST_BYTES} bytes of JSON, got more"


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    for path, text in [
        (tmp_path / "none.json", "expected a JSON file, got none that can be read (No such file or directory)"),
        (tmp_path, "expected a JSON file, got no regular file"),
        (tmp_path / "pipe.json", "expected a JSON file, got no regular file"),
        (Path("/dev/zero"), "expected a JSON file, got no regular file"),
        ("a\0b", "expected a JSON file, got none that can be read (its name holds what no file name can)"),
    ]:
        with pytest.raises(PlanError) as refused:
            read_object(path)
        assert str(refused.value) == f"{path}: {text}"
