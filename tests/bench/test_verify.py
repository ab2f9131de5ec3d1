"""A whole verification of tiny models: what it holds, what it leaves out, and its limits."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from headwise.bench import PairedTimes
from headwise.bench import verify as module
from headwise.bench.verification.caches import CacheBytes
from headwise.bench.verification.limits import Limits, find_shortfalls
from headwise.bench.verification.memory import MemoryUse
from headwise.bench.verification.settings import Settings
from headwise.bench.verification.speed import Timing
from headwise.bench.verification.texts import read_corpora
from headwise.bench.verify import verify
from headwise.errors import UserError
from headwise.models.weights import copy_of
from headwise.progress import Silent
from headwise.study import samples
from tests.study.tiny import write_texts

SETTINGS = Settings(tokens=300, length=31, copies=3, batches=(1, 3), contexts=(19, 29), rounds=5)
QUIET = replace(SETTINGS, speed=False)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    return read_corpora([write_texts(folder / name, count=40, seed=seed) for seed, name in enumerate(("one", "two"))])


def strict(text: str):
    def refuse(word: str):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_everything_is_measured_and_json_holds_it(monkeypatch, llama, pooled, corpora):
    asked = []
    uses = {"first": MemoryUse(1, 2, 3), "second": MemoryUse(5, 7, 11)}

    def measured(source, **options):
        asked.append((source, options))
        return uses[source]

    monkeypatch.setattr(module, "measure_memory", measured)
    result = verify(llama, pooled, corpora, settings=SETTINGS, sources=("first", "second"))
    record = strict(json.dumps(result.summary()))
    assert record["a"]["heads"] == [[6, 2]] * 3
    assert record["b"]["heads"] == [[6, 1]] * 3
    assert record["a"]["weight_bytes"] == 4 * llama.parameters
    assert [corpus["name"] for corpus in record["corpora"]] == [named.name for named in corpora]
    for corpus in record["corpora"]:
        assert corpus["documents"] == len(corpus["by_document"]) >= 2
        assert corpus["kl"]["low"] > 0
        assert corpus["positions"] == 10 * 30
    assert record["cache"]["a"]["each_further_token"] == 2 * record["cache"]["b"]["each_further_token"] == 480
    assert record["cache"]["a"]["tokens"] == 30
    assert {record["cache"][label]["dtype"] for label in "ab"} == {"float32"}
    assert record["decoding"]["a"]["agrees"]
    assert len(record["speed"]) == 8
    taken = {"a": vars(uses["first"]), "b": vars(uses["second"])}
    assert record["memory"] == {"batch": 3, "context": 29} | taken
    assert [source for source, _ in asked] == ["first", "second"]
    assert {(options["batch"], options["context"], options["dtype"]) for _, options in asked} == {(3, 29, "float32")}
    assert result.notes == ()
    assert record["copying"]["positions"] == 3 * 49
    assert record["settings"]["tokens"] == 300


def test_a_model_beside_itself_shows_no_difference(llama, corpora):
    result = verify(llama, copy_of(llama), corpora, settings=QUIET)
    for quality in (*result.corpora, result.copying):
        assert vars(quality.loss_difference) == {"value": 0.0, "low": 0.0, "high": 0.0}
        assert quality.of("agreement").value == 1
        assert quality.of("kl").value == quality.each.largest_change == 0
    assert find_shortfalls(result, Limits(max_loss_increase=0, min_agreement=1, max_kl=0)) == []
    assert result.sentences == ()
    assert result.notes == ("latency and peak memory were not measured, as was asked for",)


def test_the_same_seed_gives_the_same_numbers_and_another_one_others(llama, pooled, corpora):
    first, again, other = (
        verify(llama, pooled, corpora[:1], settings=replace(QUIET, seed=seed)).summary()["corpora"]
        for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other


def test_a_wrong_cache_is_said_plainly(llama, pooled, corpora, broken_cache):
    result = verify(llama, pooled, corpora, settings=QUIET)
    # With one KV head there is no other place for a value, so only A is wrong.
    (said,) = result.sentences
    assert said.startswith("A: decoding with a cache is not what the model says without one: logits differ by ")


def test_encoders_have_losses_and_no_cache(bert, corpora):
    result = verify(bert, copy_of(bert), corpora, settings=QUIET)
    assert result.decoding is result.cache is None
    assert "encoders keep no cache: decoding and cache bytes were not measured" in result.notes
    assert strict(json.dumps(result.summary()))["cache"] is None


def test_a_cache_that_is_full_is_told(monkeypatch, llama, pooled, corpora):
    full, growing = CacheBytes(30, 480, 480, 0, "float32"), CacheBytes(30, 240, 240, 80, "float32")
    sizes = iter([full, growing, full, full])
    monkeypatch.setattr(module, "cache_bytes", lambda *_: next(sizes))
    rest = "a further token adds nothing to the cache, since after 30 tokens the window of every layer is full"
    for full in ("A", "A and B"):
        assert f"{full}: {rest}" in verify(llama, pooled, corpora[:1], settings=QUIET).notes


def test_few_positions_leave_copying_out_and_refuse_long_rows(llama, corpora):
    short = copy_of(llama)
    short.model.config.max_position_embeddings = 53
    result = verify(llama, short, corpora, settings=QUIET)
    assert result.copying is None
    assert "copying was not measured: it takes 101 tokens, and the models have 53 positions" in result.notes
    assert strict(json.dumps(result.summary()))["copying"] is None
    with pytest.raises(UserError, match=r"expected rows of at most 53 tokens, .* got 59; ask for shorter ones"):
        verify(llama, short, corpora, settings=replace(QUIET, length=59))


def test_rows_and_copies_may_fill_all_positions(llama, corpora):
    full = copy_of(llama)
    full.model.config.max_position_embeddings = 31
    assert verify(llama, full, corpora[:1], settings=QUIET).corpora[0].each.positions == 10 * 30
    full.model.config.max_position_embeddings = 101
    copying = verify(llama, full, corpora[:1], settings=QUIET).copying
    assert copying is not None
    assert copying.each.positions == 3 * 49


def test_a_vocabulary_too_small_for_copying_is_a_note(monkeypatch, llama, corpora):
    monkeypatch.setattr(samples, "PERIOD", 120)
    result = verify(llama, llama, corpora, settings=QUIET)
    assert result.copying is None
    told = "copying was not measured: repeated tokens: a vocabulary of 212 tokens is too small, 240 are needed"
    assert told in result.notes


def test_peak_memory_that_was_not_taken_is_a_note(monkeypatch, llama, corpora):
    monkeypatch.setattr(module, "measure_memory", lambda source, **_: f"no memory for {source}")
    settings = replace(SETTINGS, batches=(1,), contexts=(19,))
    told = verify(llama, llama, corpora, settings=settings, sources=("x", "y"))
    assert told.memory is None
    assert told.notes == ("peak memory was not measured: A: no memory for x",)
    assert verify(llama, llama, corpora, settings=settings).notes == (
        "peak memory was not measured: there is nothing that a fresh process could open or run",
    )


def test_peak_memory_of_an_accelerator_is_not_that_of_a_process(monkeypatch, llama, corpora):
    monkeypatch.setattr(module, "measure_memory", lambda source, **_: pytest.fail("of a CPU"))
    timing = Timing("prefill", 1, 19, PairedTimes({"a": (1.0,) * 5, "b": (1.0,) * 5}))
    run = module._Run(llama, llama, SETTINGS, Silent())
    monkeypatch.setattr(type(llama), "device", property(lambda _: torch.device("cuda")))
    assert run.memory([timing], ("x", "y")) is None
    assert run.notes == ["peak memory was not measured: processes are watched on a CPU only, not cuda"]


def test_limits_that_are_not_kept_are_named_by_corpus(llama, pooled, corpora):
    result = verify(llama, pooled, corpora, settings=QUIET)
    kl, other = (corpus.of("kl").value for corpus in result.corpora)
    between = (kl + other) / 2
    (short,) = find_shortfalls(result, Limits(max_kl=between))
    worst = result.corpora[0 if kl > other else 1]
    assert str(short) == f"{worst.name}: expected KL of at most {between:g}, got {max(kl, other):.4g}"
    assert short.record()["limit"] == between
    agreement = find_shortfalls(result, Limits(min_agreement=0.99))
    assert [each.corpus for each in agreement] == [corpus.name for corpus in result.corpora]
    assert "expected top-1 agreement of at least 0.99, got " in str(agreement[0])
    losses = [corpus.loss_difference.value for corpus in result.corpora]
    assert len(find_shortfalls(result, Limits(max_loss_increase=min(losses) - 1e-6))) == 2
    assert find_shortfalls(result, Limits(max_loss_increase=max(losses))) == []
    assert find_shortfalls(result, Limits()) == []


@pytest.mark.parametrize("name", ["max_loss_increase", "min_agreement", "max_kl"])
@pytest.mark.parametrize("limit", ["nan", "inf"])
def test_a_limit_that_is_no_number_is_refused(name, limit):
    told = f"--{name.replace('_', '-')}: expected a finite number, got {limit}"
    with pytest.raises(UserError, match=f"^{told}$"):
        Limits(**{name: float(limit)})


def test_no_value_keeps_no_limit(llama, pooled, corpora):
    result = verify(llama, pooled, corpora[:1], settings=QUIET)
    (corpus,) = result.corpora
    each = replace(corpus.each, kl=corpus.each.kl * float("nan"), agreement=corpus.each.kl * float("nan"))
    spoilt = replace(result, corpora=(replace(corpus, each=each),))
    assert len(find_shortfalls(spoilt, Limits(max_kl=9e9, min_agreement=0))) == 2
