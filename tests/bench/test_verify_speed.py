"""Latency by turns: what is timed, what is left out and said to be, and the sentences. No clock decides a test."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from headwise.bench import PairedTimes
from headwise.bench.verification import caches, speed
from headwise.bench.verification.caches import CacheBytes
from headwise.bench.verification.memory import MemoryUse, measure_memory
from headwise.bench.verification.result import speed_sentences
from headwise.bench.verification.settings import Settings
from headwise.bench.verification.speed import (
    Timing,
    available_bytes,
    contexts_within,
    rounds_to_win,
    time_decode,
    time_prefill,
)
from headwise.errors import UserError

TOKEN = 480  # bytes in the cache of the tiny model
SIZES = (
    CacheBytes(7, 7 * TOKEN, 7 * TOKEN, TOKEN, "float32"),
    CacheBytes(7, 7 * TOKEN // 2, 7 * TOKEN // 2, TOKEN // 2, "float32"),
)
FAST = Settings(batches=(3, 1), contexts=(19, 41), rounds=5, prefill_tokens=60)


def timing(*ratios: float, phase: str = "decode", batch: int = 1, context: int = 512, cache: bool = True) -> Timing:
    times = PairedTimes({"a": (2.0,) * len(ratios), "b": tuple(2 * ratio for ratio in ratios)})
    told = ((100, 50), ("float32", "bfloat16")) if cache else ()
    return Timing(phase, batch, context, times, *told)  # type: ignore[arg-type]


def clock():
    """Time that passes by one second a look."""
    ticks = itertools.count()
    return lambda: float(next(ticks))


def test_decoding_ends_at_the_context_and_both_take_the_same_steps(llama, pooled):
    timings, notes = time_decode(llama, pooled, (19, 41), FAST, SIZES, clock=clock())
    assert [(each.batch, each.context) for each in timings] == [(1, 19), (1, 41), (3, 19), (3, 41)]
    assert notes == []
    for each in timings:
        assert each.cache == (each.batch * each.context * TOKEN, each.batch * each.context * TOKEN // 2)
        assert each.cache_dtypes == ("float32", "float32")
        assert each.times.seconds == {"a": (1.0,) * 5, "b": (1.0,) * 5}
        assert each.ratio == 1
        assert not each.faster


def test_prefill_is_timed_within_its_budget_and_the_rest_is_named(llama, pooled):
    timings, notes = time_prefill(llama, pooled, (19, 41), FAST, clock=clock())
    assert [(each.phase, each.batch, each.context) for each in timings] == [
        ("prefill", 1, 19), ("prefill", 1, 41), ("prefill", 3, 19),
    ]  # fmt: skip
    assert notes == ["prefill of more than 60 tokens was not timed: batch 3, context 41"]


def test_times_are_those_of_the_model_that_they_are_told_of(monkeypatch, llama, pooled):
    """A second passes with every call of A, and three with every call of B."""
    now = [0.0]
    real = caches.advance

    def advance(checkpoint, *given, **options):
        now[0] += 1.0 if checkpoint is llama else 3.0
        return real(checkpoint, *given, **options)

    monkeypatch.setattr(caches, "advance", advance)
    settings = replace(FAST, batches=(1,), prefill_rounds=7)
    (prefill,), _ = time_prefill(llama, pooled, (19,), settings, clock=lambda: now[0])
    (decode,), _ = time_decode(llama, pooled, (19,), settings, SIZES, clock=lambda: now[0])
    assert prefill.times.seconds == {"a": (1.0,) * 7, "b": (3.0,) * 7}
    assert decode.times.seconds == {"a": (1.0,) * 5, "b": (3.0,) * 5}
    assert prefill.ratio == decode.ratio == 3


def test_prefill_computes_the_logits_of_the_last_token_alone(monkeypatch, llama):
    """As serving does; the head is a fifth of a small model's work."""
    shapes = []
    real = caches.advance

    def advance(*given, **options):
        logits = real(*given, **options)
        shapes.append(tuple(logits.shape))
        return logits

    monkeypatch.setattr(caches, "advance", advance)
    time_prefill(llama, llama, (19,), replace(FAST, batches=(2,)), clock=clock())
    assert set(shapes) == {(2, 1, 216)}


def test_every_time_ends_when_the_device_has_finished(monkeypatch, llama, pooled):
    finished, looks = [], []
    monkeypatch.setattr(speed, "_finish", finished.append)

    def look() -> float:
        looks.append(len(finished))
        return float(len(looks))

    time_prefill(llama, pooled, (19,), FAST, clock=look)
    time_decode(llama, pooled, (19,), FAST, SIZES, clock=look)
    # Of both models, two batches: 6 rounds of prefill and 7 of decoding, the untimed ones with them.
    assert [end - start for start, end in zip(looks[::2], looks[1::2], strict=True)] == [1] * (2 * 2 * (6 + 7))


def test_accelerators_are_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    for name in ("cpu", "cuda:1"):
        speed._finish(torch.device(name))
    assert waited == [torch.device("cuda:1")]


def test_an_encoder_is_timed_too(bert):
    timings, _ = time_prefill(bert, bert, (19,), FAST, clock=clock())
    assert [each.batch for each in timings] == [1, 3]
    assert timings[0].cache is None


def test_what_there_is_no_memory_for_is_left_out(monkeypatch, llama, pooled):
    monkeypatch.setattr(speed, "available_bytes", lambda: 2 * 3 * 41 * TOKEN * 3 // 2 - 1)
    timings, notes = time_decode(llama, pooled, (19, 41), FAST, SIZES, clock=clock())
    assert len(timings) == 3
    assert notes == [
        "decoding was not timed where both caches would take more than half of the memory: batch 3, context 41"
    ]


def test_a_cache_of_other_states_is_not_made_up(monkeypatch, llama, pooled):
    from transformers import DynamicCache

    def with_state(checkpoint):
        cache = DynamicCache(config=checkpoint.model.config)
        cache.layers[1].recurrent_states = torch.ones(3)
        return cache

    monkeypatch.setattr(caches, "new_cache", with_state)
    timings, notes = time_decode(llama, pooled, (19,), FAST, SIZES, clock=clock())
    assert timings == []
    assert notes == ["decoding was not timed: llama keeps more than keys and values"]


def test_memory_is_told_here():
    available = available_bytes()
    assert available is not None
    assert 2**20 < available < 2**50


def test_contexts_beyond_the_positions_are_shortened():
    assert contexts_within(Settings(), None) == ((512, 4_096, 8_192), [])
    contexts, notes = contexts_within(Settings(), 2_048)
    assert contexts == (512, 2_048)
    assert notes == ["contexts are at most 2,048 tokens, for which the models have positions"]
    assert contexts_within(Settings(contexts=(53, 31, 53)), 53) == ((31, 53), [])
    with pytest.raises(UserError, match=r"expected more positions than the 11 tokens that are decoded .* got 11"):
        contexts_within(Settings(), 11)


@pytest.mark.parametrize(
    ("ratios", "faster"),
    [((0.9,) * 5, True), ((0.9,) * 4 + (1.1,), False), ((0.9,) * 8 + (1.1,), True), ((0.9,) * 7 + (1.1,) * 2, False)],
)
def test_faster_is_what_chance_would_seldom_give(ratios, faster):
    """5 of 5: 1/32; 4 of 5: 6/32; 8 of 9: 10/512; 7 of 9: 46/512."""
    assert timing(*ratios).faster == faster


def test_a_tie_is_won_by_none():
    """Four rounds to one and a tie are neither side's five."""
    for ratio in (0.9, 1.1):
        told = timing(*(ratio,) * 4, 1.0)
        assert not told.faster
        assert not told.slower
    equal = timing(*(1.0,) * 5)
    assert (equal.won, equal.faster, equal.slower) == (0, False, False)


COPIED = "decode: with transformers' DynamicCache, which copies all keys and values at every token"


def test_the_sentences_name_every_place_where_b_is_not_faster():
    timings = [
        timing(*(0.8, 0.9, 1.0, 1.1, 1.2, 0.99), phase="prefill", cache=False),
        timing(1.2, 1.3, 1.4, 1.3, 1.3, batch=8, context=4_096),
        timing(0.5, 0.6, 0.7, 0.5, 0.5, batch=8, context=8_192),
    ]
    assert speed_sentences(timings, weight_bytes=300) == [
        "prefill: B is not shown to be faster at batch 1, context 512: paired ratio 0.99 (0.92 to 1.08), 3 of 6 rounds "
        "won",
        "decode: B is slower at batch 8, context 4,096: paired ratio 1.30 (1.30 to 1.30), 0 of 5 rounds won; the cache "
        "is 25% of what a step of A reads",
        COPIED,
        "faster, or slower: by a sign test over the rounds at 5 %, which takes 5 of 5 and 6 of 6 rounds won",
    ]
    assert speed_sentences(timings[2:], 300) == [
        "decode: B is faster wherever it was timed, paired ratio 0.50",
        COPIED,
        "faster, or slower: by a sign test over the rounds at 5 %, which takes 5 of 5 rounds won",
    ]
    two = [*timings[2:], timing(*(0.6,) * 5)]
    assert speed_sentences(two, 300)[0] == "decode: B is faster wherever it was timed, paired ratios 0.50 to 0.60"
    assert COPIED not in speed_sentences(timings[:1], 300)
    assert speed_sentences([], 300) == []


@pytest.mark.parametrize("rounds", [5, 6, 9, 25, 101])
def test_the_rounds_to_win_are_what_a_fair_coin_seldom_gives(rounds):
    from scipy.stats import binom

    needed = rounds_to_win(rounds)
    assert binom.sf(needed - 1, rounds, 0.5) <= 0.05 < binom.sf(needed - 2, rounds, 0.5)


def test_quartiles_on_one_side_are_no_verdict():
    """Four of five rounds agree: too few to call B faster, or slower."""
    for ratio in (0.9, 1.1):
        told = timing(*(ratio,) * 4, 2 - ratio)
        assert not told.faster
        assert not told.slower
        assert speed_sentences([told], 300)[0].startswith(
            "decode: B is not shown to be faster at batch 1, context 512:"
        )


def test_times_as_json():
    assert timing(0.5, 1.0, 1.0, 1.0, 2.0).record() == {
        "phase": "decode", "batch": 1, "context": 512, "median_seconds": {"a": 2.0, "b": 2.0},
        "b_over_a": {"median": 1.0, "lower_quartile": 1.0, "upper_quartile": 1.0}, "b_is_faster": False, "rounds": 5,
        "rounds_won_by_b": 1, "cache_bytes": {"a": 100, "b": 50}, "cache_dtype": {"a": "float32", "b": "bfloat16"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"rounds": 4}, "rounds of at least 5, got 4"),
        ({"batches": (1, 0)}, "batches of at least 1 sequence, got 1, 0"),
        ({"batches": ()}, "batches of at least 1 sequence, got none"),
        ({"contexts": (512, 11)}, "contexts of more than 11 tokens, .* got 512, 11; ask for longer contexts"),
        ({"length": 15}, "length of at least 16, got 15"),
    ],
)
def test_settings_out_of_range_are_refused(options, told):
    with pytest.raises(UserError, match=f"verify: expected {told}"):
        Settings(**options)


def test_peak_memory_is_that_of_the_model_and_not_of_who_asks(llama_folder):
    ballast = torch.ones(200 << 20)  # 800 MiB, which a child would count as its own in getrusage
    batch, context = 71, 2_003
    use = measure_memory(str(llama_folder), dtype="float32", batch=batch, context=context, threads=1)
    assert isinstance(use, MemoryUse), use
    assert 2**26 < use.imported < ballast.nbytes
    assert use.imported <= use.loaded < use.peak
    cache = batch * context * TOKEN
    assert cache < use.peak - use.loaded < 4 * cache


def test_a_process_that_fails_is_told_in_words(monkeypatch):
    import subprocess

    def ended(*_, **__):
        return subprocess.CompletedProcess([], -9, "", "")

    monkeypatch.setattr(subprocess, "run", ended)
    assert measure_memory("m", dtype="float32", batch=1, context=9, threads=1) == "it ended with code -9"

    def slow(*_, **__):
        raise subprocess.TimeoutExpired([], 3)

    monkeypatch.setattr(subprocess, "run", slow)
    told = measure_memory("m", dtype="float32", batch=1, context=9, threads=1, timeout=3)
    assert told == "the process took longer than 3 s"
