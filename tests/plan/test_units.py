from __future__ import annotations

import re
from fractions import Fraction

import pytest

from headwise.plan.errors import PlanError
from headwise.plan.units import bytes_text, count_text, parse_bytes, parse_tokens, percent_text, seconds_text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 << 30),
        ("0.625 GiB", 671_088_640),
        ("80GB", 80 * 10**9),
        ("1.5kb", 1500),
        ("1048576", 1 << 20),
        ("4000000000", 4 * 10**9),
        (7, 7),
        ("0", 0),
        ("3B", 3),
        ("3KiB", 3 << 10),
        ("5mib", 5 << 20),
        ("7MB", 7 * 10**6),
        ("1TB", 10**12),
        ("2 tib", 2 << 40),
    ],
)
def test_sizes_are_read_exactly(text, size):
    assert parse_bytes(text, "--budget") == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "-1GiB",
        "1e9",
        "1.0000001kb",
        "nan",
        "24 Gib ib",
        "9" * 400,
        "1048577TiB",
        True,
        1.5,
        "²GiB",
        "24G",
        "24Gb",
        "24 Kb",
        "24Mib",
        "24TIb",
    ],
)
def test_what_is_no_size_is_refused(text):
    shown = repr(text) if len(repr(text)) <= 60 else f"{repr(text)[:57]}..."
    message = (
        f"--budget: expected a size in whole bytes, such as 24GiB or 80GB, got {shown}; units are B, KiB, MiB, GiB, "
        "TiB (times 1,024) and KB, MB, GB, TB (times 1,000)"
    )
    with pytest.raises(PlanError, match=f"^{re.escape(message)}$"):
        parse_bytes(text, "--budget")


@pytest.mark.parametrize("text", ["24", "1", "0.5", "1048575", " 80 "])
def test_a_small_number_without_a_unit_was_meant_in_another(text):
    meant = text.strip()
    message = (
        f"--budget: expected a size with its unit, got {text!r}; did you mean {meant}GiB? {meant}B is so many bytes"
    )
    with pytest.raises(PlanError, match=f"^{re.escape(message)}$"):
        parse_bytes(text, "--budget")


@pytest.mark.parametrize(
    ("text", "tokens"), [("8192", 8192), ("8k", 8192), ("128K", 131_072), ("1m", 1 << 20), ("0", 0), ("-1", -1)]
)
def test_tokens_are_read_as_model_cards_write_them(text, tokens):
    assert parse_tokens(text, "--context") == tokens


@pytest.mark.parametrize("text", ["", "k", "8kk", "1.5k", "8 k", "8g", "8_192", "1e6", "²", "9" * 19])
def test_what_is_no_number_of_tokens_is_refused(text):
    message = f"--context: expected a number of tokens, such as 8192, 8k (8 x 1,024) or 1m, got {text!r}"
    with pytest.raises(PlanError, match=f"^{re.escape(message)}$"):
        parse_tokens(text, "--context")


def test_numbers_are_written_for_people():
    assert [bytes_text(size) for size in (0, 1023, 1024, 671_088_640, 5 << 30, 3 << 49, 1023 << 20, 1 << 81)] == [
        "0 B", "1,023 B", "1.00 KiB", "640.00 MiB", "5.00 GiB", "1.50 PiB", "1,023 MiB", "2.00 YiB"
    ]  # fmt: skip
    assert [count_text(number) for number in (999_999, 1_048_576, 10**12, 12 * 10**30, 123 * 10**400)] == [
        "999,999", "1.05 M", "1.00 T", "12.00 Q", "1.23e402"
    ]  # fmt: skip
    shares = [Fraction(1, 4), Fraction(1, 32), Fraction(1), Fraction(1, 3)]
    assert [percent_text(share) for share in shares] == ["25 %", "3.125 %", "100 %", "33.333 %"]
    assert [seconds_text(each) for each in (2.5, 1.5e-3, 2e-6, 3e-9, 0.0)] == [
        "2.50 s", "1.50 ms", "2.00 µs", "3.00 ns", "0.00 ns"
    ]  # fmt: skip
