"""A whole comparison: rows, JSON, CSV, and the notes that say what a number does not show."""

from __future__ import annotations

import csv
import io
import itertools
import json
from dataclasses import replace

import pytest

from headwise.bench.layouts import run
from headwise.bench.layouts.costs import Load
from headwise.bench.layouts.memory import Peak
from headwise.bench.layouts.notes import find_notes, peak_noise
from headwise.bench.layouts.result import LayoutComparison, Ratio
from headwise.bench.layouts.run import compare_layouts
from tests.bench.layouts import DEVICE, LOAD, settings
from tests.fixtures import one_thread

__all__ = ["one_thread"]


def compared(words: str = "mha,gqa:2,mla:11+4,window:7,mha/3", **options) -> LayoutComparison:
    """With speeds that are made up, and a clock that ticks at every look."""
    ticks = itertools.count()
    patch = pytest.MonkeyPatch()
    patch.setattr(run, "measured_device", lambda dtype: DEVICE)
    patch.setattr(run, "measure_peak", lambda spec, load, *, repeats, **_: Peak(100, 200 + 50 * repeats, 300))
    try:
        return compare_layouts(settings(words, **options), clock=lambda: 1e-3 * next(ticks))
    finally:
        patch.undo()


@pytest.fixture(scope="module")
def result() -> LayoutComparison:
    return compared(memory=True)


def test_rows_follow_the_words_and_what_repeats_follows_its_layout(result):
    assert [row.name for row in result.rows] == ["mha", "gqa:2", "gqa:2 repeated", "mla:11+4", "window:7", "mha/3"]
    assert [row.name for row in result.layouts] == ["mha", "gqa:2", "mla:11+4", "window:7", "mha/3"]
    assert [result.repeated(row) is None for row in result.layouts] == [True, False, True, True, True]
    assert all(row.allocated == row.cost.planned for row in result.rows)
    assert all(row.check.agrees for row in result.rows)


def test_times_are_those_of_the_clock(result):
    """Two looks lie between putting back and the run's end, which is what a tick of the clock counts."""
    for row in result.rows:
        for latency, tokens in ((row.prefill, 93), (row.decode, 3)):
            assert len(latency.seconds) == 5
            assert latency.median > 0
            assert latency.tokens_per_second == tokens / latency.median
            assert latency.share == latency.least / latency.median
    assert result.rows[0].decode.to_first == Ratio(1.0, 1.0, 1.0)
    assert [row.decode.to_own is not None for row in result.rows] == [False, False, True, False, False, False]


def test_json_holds_all_of_it(result):
    record = json.loads(json.dumps(result.record(), allow_nan=False))
    assert list(record) == ["settings", "layouts", "repeating", "device", "notes", "environment", "seconds"]
    assert record["settings"] == {
        "layouts": ["mha", "gqa:2", "mla:11+4", "window:7", "mha/3"], "width": 23, "like": None, "batch": 3,
        "context": 31, "dtype": "float32", "backend": None, "rounds": 5, "seed": 0, "layers": 1,
    }  # fmt: skip
    assert record["device"] == {"bandwidth": 7_000_000_000, "flop_rate": 11_000_000_000, "source": "made up"}
    _, grouped, latent, window, fewer = record["layouts"]
    assert list(grouped) == [
        "name", "layout", "repeats_keys_and_values", "heads", "kv_heads", "head_dim", "latent_dim", "rope_dim",
        "local_heads", "window_keys", "parameters", "cache_bytes", "flops", "softmax_elements", "latent_form",
        "prefill", "decode", "peak_bytes", "check",
    ]  # fmt: skip
    assert list(grouped["decode"]) == [
        "median_seconds", "lower_quartile_seconds", "upper_quartile_seconds", "seconds", "tokens_per_second",
        "least_seconds", "roofline_share", "over_first", "over_own",
    ]  # fmt: skip
    assert grouped["parameters"] == {"query": 1380, "key": 460, "value": 460, "output": 1380, "total": 3680}
    assert grouped["cache_bytes"] == dict.fromkeys(("needed", "planned", "allocated"), 3 * 31 * 2 * 20 * 4)
    assert (latent["latent_dim"], latent["rope_dim"], window["window_keys"], window["local_heads"]) == (11, 4, 7, 6)
    held = 3 * 6 * 80  # batch, heads, bytes of a token of a head
    assert window["cache_bytes"] == {"needed": 7 * held, "planned": 23 * held, "allocated": 23 * held}
    assert (fewer["heads"], fewer["head_dim"], fewer["parameters"]["total"]) == (3, 20, 4 * 23 * 60)
    (repeated,) = record["repeating"]
    assert (repeated["name"], repeated["layout"]) == ("gqa:2 repeated", "gqa:2")
    assert repeated["peak_bytes"] == {
        "before": 100,
        "decode": 250,
        "prefill": 300,
        "decode_rise": 150,
        "prefill_rise": 200,
    }
    assert set(repeated["decode"]["over_own"]) == {"median", "lower_quartile", "upper_quartile"}


def test_csv_gives_back_what_json_says(result):
    lines = list(csv.DictReader(io.StringIO(result.csv())))
    records = {each["name"]: each for key in ("layouts", "repeating") for each in result.record()[key]}
    assert [line["name"] for line in lines] == [row.name for row in result.rows]
    for line in lines:
        for name, word in line.items():
            value = records[line["name"]]
            for part in name.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            # A column that another layout has, or a value that there is not, is empty.
            assert word == ("" if value is None else str(value)), name
            if isinstance(value, float):
                assert float(word) == value
    assert not {"decode.over_own", "latent_form", "peak_bytes"} & set(lines[0])
    assert "decode.over_first.median" in lines[0]
    assert "parameters.key value up" in lines[0]


def notes_of(result: LayoutComparison, start: str) -> list[str]:
    return [note for note in find_notes(result.rows, result.load) if note.startswith(start)]


def with_ratio(result: LayoutComparison, name: str, phase: str, ratio: Ratio) -> LayoutComparison:
    rows = [
        replace(row, **{phase: replace(getattr(row, phase), to_first=ratio)}) if row.name == name else row
        for row in result.rows
    ]
    return replace(result, rows=tuple(rows))


def all_equal(result: LayoutComparison) -> LayoutComparison:
    for row in result.rows:
        for phase in ("prefill", "decode"):
            result = with_ratio(result, row.name, phase, Ratio(1.0, 0.9, 1.1))
    return result


EQUAL = "equal projection counts do not mean equal latency"


def test_equal_parameters_are_told_only_where_times_differ(result):
    same = all_equal(result)
    assert notes_of(same, EQUAL) == []
    # Another number of weights is another matter, and so is one whose quartiles hold 1.
    assert notes_of(with_ratio(same, "gqa:2", "decode", Ratio(0.5, 0.4, 0.6)), EQUAL) == []
    (told,) = notes_of(with_ratio(same, "mha/3", "decode", Ratio(0.5, 0.4, 0.6)), EQUAL)
    assert told == (
        f"{EQUAL}: of the same 5,520 as mha, and of its time (quartiles): mha/3 0.50 x (0.40 to 0.60) for a token"
    )


def test_a_smaller_cache_that_is_no_faster_is_told(result):
    start = "a smaller cache does not mean a faster token"
    faster = all_equal(result)
    for name in ("gqa:2", "mla:11+4", "window:7"):
        faster = with_ratio(faster, name, "decode", Ratio(0.5, 0.4, 0.6))
    assert notes_of(faster, start) == []
    (told,) = notes_of(with_ratio(faster, "gqa:2", "decode", Ratio(1.2, 1.1, 1.3)), start)
    assert told.endswith(
        ": beside mha, and of its time (quartiles): gqa:2 0.33 x the bytes still read, 1.20 x (1.10 to 1.30)"
    )
    # A window allocates more than is read of it, 23 slots and not 7 of 31, which is another column of the table.
    (told,) = notes_of(with_ratio(faster, "window:7", "decode", Ratio(1.2, 1.1, 1.3)), start)
    assert told.endswith(": window:7 0.23 x the bytes still read, 1.20 x (1.10 to 1.30)")


def with_peaks(result: LayoutComparison, **peaks: Peak) -> LayoutComparison:
    named = {name.replace("_", " ").replace("gqa2", "gqa:2"): peak for name, peak in peaks.items()}
    rows = [replace(row, peak=named.get(row.name, Peak(1000, 1400, 1800))) for row in result.rows]
    return replace(result, rows=tuple(rows))


def test_repeated_keys_are_told_only_where_the_peak_is_higher_than_processes_differ(result):
    start = "a smaller cache does not mean less peak memory"
    equal = with_peaks(result, gqa2_repeated=Peak(1100, 1600, 1800))
    assert peak_noise(equal.rows) == 100
    assert notes_of(equal, start) == []
    (told,) = notes_of(with_peaks(result, gqa2_repeated=Peak(1100, 1601, 1800)), start)
    assert told == (
        f"{start}: gqa:2 repeated keeps the cache of gqa:2 (14.53 KiB), yet its peak while decoding rises by 501 B, "
        "that of gqa:2 by 400 B: no less than mha, 400 B"
    )
    missing = replace(result, rows=(replace(result.rows[0], peak=None), *result.rows[1:]))
    assert notes_of(missing, start) == []


@pytest.mark.parametrize(
    ("rise", "of_first", "told"),
    [
        (500, 499, ": no less than mha, 499 B"),
        (500, 500, ": no less than mha, 500 B"),
        (
            500,
            501,
            ": not clearly less than mha, 501 B, since processes differed by up to 83 B before they began",
        ),
        (
            500,
            583,
            ": not clearly less than mha, 583 B, since processes differed by up to 83 B before they began",
        ),
        (500, 584, ""),
    ],
)
def test_a_peak_beside_the_first_is_told_as_its_numbers_are(result, rise, of_first, told):
    """What is less by no more than processes differ is not called no less."""
    peaks = with_peaks(
        result, gqa2_repeated=Peak(1000, 1000 + rise, 1), mha=Peak(1000, 1000 + of_first, 1), gqa2=Peak(917, 1317, 1)
    )
    assert peak_noise(peaks.rows) == 83
    (note,) = notes_of(peaks, "a smaller cache does not mean less peak memory")
    assert note.endswith(f"yet its peak while decoding rises by 500 B, that of gqa:2 by 400 B{told}")


def test_windows_say_what_they_keep_besides_and_what_they_hide(result):
    (told,) = notes_of(result, "window:7: ")
    free = 3 * 6 * 16 * 80 / 1024  # batch, heads, slots, bytes of a token of a head
    assert told == (
        f"window:7: {free:.2f} KiB of its cache are free slots behind the windows, so that they move once in 16 "
        "tokens; that move is not in the median of a token"
    )
    (told,) = notes_of(compared("mha,window:7", load=Load(2, 7, "float32")), "window:7: ")
    assert told == "window:7: the window hides nothing from a context of 7 tokens"


def test_what_is_faster_than_memory_is_told(result):
    fast = replace(result.rows[0], decode=replace(result.rows[0].decode, least=1.0, seconds=(0.5,) * 5))
    (told,) = notes_of(replace(result, rows=(fast, *result.rows[1:])), "beyond the roofline")
    assert told.startswith("beyond the roofline: mha (decode)")


def test_what_was_not_measured_is_said(monkeypatch):
    monkeypatch.setattr(run, "measured_device", lambda dtype: "there is no compiled part")
    monkeypatch.setattr(run, "measure_peak", lambda *a, **o: "it ended with code -9")
    made = compare_layouts(settings("mha,mqa", memory=True, notes=("said before",)))
    assert made.notes[0] == "said before"
    assert made.notes[-2:] == (
        "no share of the roofline: there is no compiled part",
        "peak memory was not measured: mha: it ended with code -9",
    )
    record = made.record()
    assert record["device"] is None
    assert [each["peak_bytes"] for each in record["layouts"]] == [None, None]
    assert [each["decode"]["roofline_share"] for each in record["layouts"]] == [None, None]
    assert made.load == LOAD
