"""What `inspect` says was done to a model: every operation that leaves a trace, in words."""

from __future__ import annotations

import json

import pytest

from headwise.cli.inspect_history import step_words
from headwise.surgery.convert import Recipe, convert
from headwise.surgery.export import export
from headwise.surgery.gauge import degroup, fold_value_bias, permute, rotate
from headwise.surgery.mla.convert import convert_to_latent
from headwise.surgery.prune import prune
from headwise.surgery.uptrain import uptrain
from tests.cli.typed import run
from tests.surgery.decoders import decoder, rows
from tests.surgery.uptrain_models import BATCH, FAST, LENGTH, open_pair, save

__all__ = ["run"]


@pytest.fixture(scope="module")
def llama():
    return decoder("llama")


def last(checkpoint) -> dict:
    """As it is read again from a file."""
    return json.loads(json.dumps(checkpoint.history[-1]))


def test_conversions(llama):
    step = last(convert(llama, 1, recipe=Recipe("mean")))
    step["seconds"] = 1234.5
    assert step_words(step) == (
        "KV heads of a layer 2 → 1; method mean, adjacent groups; without text; seed 0, 1,234 s"
    )
    step = last(convert(llama, 1, rows=rows(), recipe=Recipe(steps=3, rate=0.05, seed=7)))
    step |= {"kv_heads_before": [2, 4, 2], "seconds": 2.0}
    step["documents"][-3:] = [f"random tokens, seed 7, row {row}" for row in range(3)]
    assert step_words(step) == (
        "KV heads of a layer 2 to 4 → 1; method pca, chosen groups, output refitted, each layer fitted in 3 steps, "
        "rate 0.05; 408 tokens of 21 documents and 3 rows of random tokens; seed 7, 2 s"
    )
    assert step_words(last(convert_to_latent(llama, rank=11, rope=6, rows=rows()))) == (
        "keys and values → latents of rank 11 with 6 rotary dimensions; 408 tokens of 24 documents; seed 0"
    )


def test_removals(llama):
    step = last(prune(llama, heads=6, score="magnitude", unit="head", compensate=False, seed=3))
    layers = f"{len(step['removed'])} layer{'s' * (len(step['removed']) != 1)}"
    assert step_words(step) == (
        f"6 query heads removed from {layers}; those query heads that score least by magnitude, seed 3; not "
        "compensated; without text"
    )
    named = last(prune(llama, rows(), keep={1: [0, 1, 3, 4]}))
    share = f"{named['recovered']['1']['share']:.0%}"
    assert step_words(named) == (
        "2 query heads removed from 1 layer; as they were named; compensated, which recovers "
        f"{share} of what they gave (mean of the layers); 408 tokens of 24 documents"
    )
    uniform = last(prune(llama, score="random", heads=9, unit="group", uniform=True, compensate=False))
    assert "9 query heads removed from 3 layers; those KV groups that score least by random, as many from" in (
        step_words(uniform)
    )


def test_a_line_for_each_operation(run, llama, tmp_path, monkeypatch):
    """Of a model that was converted, exported, opened and pruned."""
    half = convert(llama, 1, recipe=Recipe("first"))
    folder = export(prune(half, keep={2: [0, 1]}, compensate=False), tmp_path / "model")
    monkeypatch.setenv("COLUMNS", "150")
    lines = [line.rstrip() for line in run("inspect", folder).stdout.splitlines()]
    place = lines.index("What was done to it")
    first, second, after = lines[place + 1 : place + 4]
    assert first.startswith(
        "1  convert  KV heads of a layer 2 → 1; method first, adjacent groups; without text; seed 0, "
    )
    assert second == (
        "2  prune    4 query heads removed from 1 layer; as they were named; not compensated; without text"
    )
    assert after == ""
    assert json.loads(run("inspect", folder, "--json").stdout)["history"][1]["removed"] == {"2": [2, 3, 4, 5]}


def test_same_functions(llama):
    told = {
        "heads in another order, the same function; at random, seed 3": permute(llama, seed=3),
        "heads in another order, the same function; orders given": permute(llama, {1: [3, 4, 5, 0, 1, 2]}),
        "heads in other bases, the same function; maps given": rotate(llama, {}),
        "bases of queries and keys and of values and outputs changed, the same function; rotations only, at random, "
        "seed 5": rotate(llama, seed=5),
        "bases of values and outputs changed, the same function; stretched too, at random, seed 0": rotate(
            llama, keys=False, general=True
        ),
        "KV heads of a layer → one for each query head, the same function": degroup(llama),
        "KV heads of a layer → 6, the same function": degroup(llama, 6),
        "value biases → output biases, the same function": fold_value_bias(decoder("llama, biases")),
    }
    for words, checkpoint in told.items():
        assert step_words(last(checkpoint)) == words


def uptrained() -> dict:
    """As `uptrain` writes it, but for what is not told here."""
    spread = {name: {"value": value} for name, value in (("start", 4.5), ("end", 3.9126), ("teacher", 3.75))}
    return {
        "operation": "uptrain", "settings": {"params": "attention", "loss": "kl", "rate": 1e-3, "batch": 8, "seed": 11},
        "teacher": {"name": "SmolLM2"}, "tokens": 40960, "documents": ["a"] * 53, "loss": spread,
        "seconds": 611.4,
    }  # fmt: skip


def test_training():
    assert step_words(uptrained()) == (
        "attention's weights trained against SmolLM2 by kl; 40,960 tokens of 53 documents in batches of 8, rate "
        "0.001, seed 11; held-out loss 4.500 → 3.913 (−0.587), the teacher's 3.750; 611 s"
    )


def test_training_as_it_is_recorded(tmp_path):
    save(tmp_path)
    student, teacher, texts = open_pair(tmp_path)
    record = last(uptrain(student, teacher, texts, BATCH * LENGTH, **FAST).checkpoint)
    loss = {name: f"{told['value']:.3f}" for name, told in record["loss"].items()}
    assert step_words(record).startswith(
        f"attention's weights trained against teacher by kl; 164 tokens of {len(record['documents'])} documents in "
        f"batches of 4, rate 0.003, seed 0; held-out loss {loss['start']} → {loss['end']} ("
    )
    assert f"), the teacher's {loss['teacher']}; " in step_words(record)


@pytest.mark.parametrize(
    "spoilt", [{"loss": None}, {"loss": {}}, {"settings": {"params": "other"}}, {"tokens": "many"}, {"documents": 3}]
)
def test_what_is_written_otherwise_is_told_field_by_field(spoilt):
    told = step_words(uptrained() | spoilt)
    assert told.startswith("settings (")
    assert told.endswith("seconds 611.4")


def test_what_headwise_does_not_know_is_told_field_by_field():
    step = {"operation": "graft", "layers": [1, 2], "headwise": "9", "note": "a b\nc", "long": "x" * 99}
    assert step_words(step) == f"layers (2), note a b c, long {'x' * 59}…"
    assert step_words({"layers": [1]}) == "layers (1)"
