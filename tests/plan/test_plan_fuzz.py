"""Whatever stands in a file: an answer or one line that says what is wrong, never a traceback, and at once."""

from __future__ import annotations

import contextlib
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwise.cli.main import main
from headwise.plan import PlanError, plan
from headwise.plan.architectures.registry import FAMILIES
from tests.plan.complete import COMPLETE, ENCODER
from tests.plan.headers import MINIMAL, write

# Seconds of processor time: longer than any of these takes, shorter than what grows with a number of a config.
AT_ONCE = 8.0
RUNTIMES = ("logical", "transformers", "vllm", "llamacpp", "sglang")


def run(*words: str) -> tuple[int, str]:
    """The exit code and what was said; anything but an answer or one line of advice fails here."""
    output, errors, started = io.StringIO(), io.StringIO(), time.process_time()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main(["plan", *words])
    said = errors.getvalue()
    assert "bug in headwise" not in said, said
    assert (code == 0) == (said == ""), said
    assert code in (0, 2)
    if code:
        assert said.startswith("headwise: ")
        assert said.count("\n") == 1
        assert len(said) < 1_500, "a value of the file was told whole"
    assert time.process_time() - started < AT_ONCE
    return code, output.getvalue()


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "config.json"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=20), inner, max_size=5),
    max_leaves=20,
)
absurd: st.SearchStrategy[Any] = st.one_of(
    anything,
    st.sampled_from(
        [-1, 0, 1, 2, 3, 7, 10**18, -(10**18), 10**400, 1 << 63, 1e308, -0.0, 1.5, float("nan"), float("inf"), "", "8",
         "x" * 100_000, [], {}, [[]], [None], True, False, None, [1] * 100_000, ["full_attention"] * 100_000,
         ["sliding_attention", "full_attention"], {"model_type": "llama"}]
    ),
)  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=anything)
def test_any_json_is_answered_or_refused(file, value):
    file.write_text(json.dumps(value))
    run(str(file), "--json")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200))
@pytest.mark.parametrize("suffix", [".json", ".gguf", ".safetensors", ""])
def test_any_bytes_are_refused(file, suffix, data):
    path = file.with_name(f"bytes{suffix}")
    path.write_bytes(data)
    run(str(path))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"model_type": "llama", "hidden_size": ' + "9" * 100_000 + "}",
        '{"model_type": "llama", "hidden_size": 1e999}',
        '{"model_type": "llama", "model_type": "gpt2"}',
        '{"model_type": NaN}',
        '"\\ud800"',
        "\ufeff{}",
    ],
)
def test_texts_that_break_readers_are_refused(file, text):
    file.write_text(text, encoding="utf-8")
    assert run(str(file))[0] == 2


NAMES = sorted({name for fields in COMPLETE.values() for name in fields} | {"layer_types", "text_config", "head_dim"})


def test_most_of_these_configs_are_whole():
    """Else what follows would try nothing but what is missing."""
    whole = []
    for model_type, fields in COMPLETE.items():
        with contextlib.suppress(PlanError):
            whole.append((model_type, plan(fields, context=100, **ENCODER[model_type])))
    assert len(whole) > 0.85 * len(FAMILIES)


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
@settings(max_examples=12)
@given(drawn=st.data(), value=absurd, runtime=st.sampled_from(RUNTIMES))
def test_every_family_under_absurd_fields(model_type, drawn, value, runtime):
    """One field at a time, drawn again for each family, through the whole plan."""
    name = drawn.draw(st.sampled_from([*COMPLETE[model_type], *NAMES]))
    started = time.process_time()
    with contextlib.suppress(PlanError):
        made = plan(COMPLETE[model_type] | {name: value}, context=4_099, batch=3, runtime=runtime,
                    budget="80GB", weights="3GB", device="h200", **ENCODER[model_type])  # fmt: skip
        json.dumps(made.as_dict(), allow_nan=False)
        assert made.total >= 0
        assert made.per_token >= made.growth >= 0
    assert time.process_time() - started < AT_ONCE


LLAMA = {
    "model_type": "llama",
    "hidden_size": 96,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 64,
}
numbers = st.one_of(
    st.integers(-(10**30), 10**30).map(str), st.integers(-3, 300).map(str), st.text(max_size=5), st.just("9" * 5_000)
).filter(lambda word: not word.startswith("-") or word[1:].isdigit())
STORAGES = st.sampled_from(["int4", "q4_0", "x"])
LAYOUTS = st.sampled_from(["mha,mqa", "window:1", "mla:1099511627776+1", "gqa:3,,", ","])
OPTIONS = st.sampled_from(["block_size=0", "block_size=[1]", "n_ubatch=1e9", "a"])
FIELDS = st.sampled_from(["hidden_size=-1", "head_dim=1e18", "num_hidden_layers=[]", "=", "a=NaN"])
NUMBERED = """--context --batch --tp --encoder-length --speculative --shared-prefix --budget --weights --bandwidth
    --flop-rate --threads""".split()
words = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(NUMBERED), numbers),
        st.tuples(st.sampled_from(["--kv-dtype", "--state-dtype", "--value-dtype"]), STORAGES),
        st.tuples(st.just("--runtime"), st.sampled_from(RUNTIMES)),
        st.tuples(st.just("--compare"), LAYOUTS),
        st.tuples(st.just("--runtime-option"), OPTIONS),
        st.tuples(st.just("--set"), FIELDS),
        st.tuples(st.sampled_from(["--json", "--provenance"])),
    ),
    max_size=5,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(options=words)
def test_any_words_are_answered_or_refused(file, options):
    file.write_text(json.dumps(LLAMA))
    run(str(file), *(word for option in options for word in option))


def test_the_largest_numbers_that_are_taken_are_answered(file):
    most = str(1 << 40)
    file.write_text(json.dumps(LLAMA))
    for runtime in RUNTIMES:
        words = ["--context", most, "--batch", most, "--runtime", runtime, "--budget", "1048576TiB"]
        code, text = run(str(file), *words, "--json")
        assert code == 0
        assert json.loads(text)["kv_bytes"] >= (1 << 80) * 3 * 2 * 2 * 16 * 2
        assert run(str(file), *words)[0] == 0
        layouts = "mha,mqa,mla:512+64" + (",window:7" if runtime != "llamacpp" else "")
        assert run(str(file), *words, "--compare", layouts)[0] == 0


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "deepseek_v3", "qwen3_next"])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_most_layers_that_are_taken_are_answered_at_once(model_type, runtime):
    started = time.process_time()
    made = plan(COMPLETE[model_type] | {"num_hidden_layers": 10_000}, context=4_099, batch=3, runtime=runtime,
                budget="1000TB")  # fmt: skip
    assert len(made.architecture.layers) == 10_000
    assert made.max_batch > 3
    assert time.process_time() - started < AT_ONCE
    with pytest.raises(PlanError, match="from 1 to 10000, got 10001"):
        plan(COMPLETE[model_type] | {"num_hidden_layers": 10_001})


@pytest.fixture(scope="module")
def header(tmp_path_factory) -> bytes:
    return write(tmp_path_factory.mktemp("gguf") / "model.gguf", "llama", MINIMAL).read_bytes()


def test_a_gguf_file_is_planned(tmp_path, header):
    path = tmp_path / "model.gguf"
    path.write_bytes(header)
    code, text = run(str(path), "--json", "--weights", "model", "--budget", "1GiB")
    assert code == 0
    assert json.loads(text)["kv_bytes_per_token"] == 3 * 2 * 2 * 16 * 2


def test_a_gguf_file_cut_off_anywhere_is_refused_or_whole(tmp_path, header):
    path = tmp_path / "model.gguf"
    end = header.index(b"token_embd.weight")
    for length in range(0, end, 3):
        path.write_bytes(header[:length])
        assert run(str(path))[0] == 2


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=st.data())
def test_a_gguf_file_with_wrong_bytes_is_answered_or_refused(tmp_path_factory, header, drawn):
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    data = bytearray(header)
    for _ in range(drawn.draw(st.integers(1, 4))):
        at = drawn.draw(st.integers(0, len(data) - 9))
        data[at : at + 8] = (
            drawn.draw(st.sampled_from([b"\xff" * 8, bytes(8), b"\x00" * 7 + b"\x7f"]))
            if drawn.draw(st.booleans())
            else drawn.draw(st.binary(min_size=8, max_size=8))
        )
    path.write_bytes(data)
    run(str(path))
