"""What no architecture reads: unknown types, missing and contradictory fields, and anything else a file may hold."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.plan.architectures import FAMILIES, REFUSED, WRAPPERS, architecture_of
from headwise.plan.config import Config
from headwise.plan.defaults import CLASS_DEFAULTS, ESSENTIAL
from headwise.plan.errors import PlanError
from headwise.plan.layers import Architecture
from tests.plan.complete import COMPLETE
from tests.plan.golden import GOLDEN

CONFIGS = Path(__file__).parent / "configs"
FILES = sorted(path.name for path in CONFIGS.glob("*--*.json"))


def _read(fields: dict[str, Any], **overrides: Any) -> Architecture:
    return architecture_of(Config(fields, overrides=overrides))


def _file(name: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((CONFIGS / name).read_text())
    return fields


def _golden(name: str) -> dict[str, Any]:
    return next(model.fields for model in GOLDEN if model.name == name)


LLAMA = _golden("meta-llama/Meta-Llama-3-8B")


def _refusal(fields: dict[str, Any], **overrides: Any) -> str:
    with pytest.raises(PlanError) as caught:
        _read(fields, **overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_an_unknown_architecture_is_refused_with_those_near_it() -> None:
    text = _refusal({**LLAMA, "model_type": "lama"})
    assert text.startswith(
        "model_type: expected an architecture that headwise plan knows, got 'lama'; near it are llama"
    )
    assert "none of the known ones is near it" in _refusal({**LLAMA, "model_type": "xyzzy-quux"})


def test_a_config_without_a_type_is_refused() -> None:
    fields = {name: value for name, value in LLAMA.items() if name != "model_type"}
    text = "model_type: expected a string, the config has none and its class has no default"
    assert _refusal(fields) == text


@pytest.mark.parametrize("model_type", REFUSED)
def test_what_would_give_a_wrong_number_is_refused(model_type: str) -> None:
    assert _refusal({**LLAMA, "model_type": model_type}).startswith(f"model_type: {model_type} can't be planned: ")


@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_a_missing_size_is_named_and_never_taken_from_another_model(name: str) -> None:
    fields = {field: value for field, value in LLAMA.items() if field != name}
    assert _refusal(fields) == (
        f"{name}: expected a whole number, the config has none and the default of LlamaConfig of transformers 5.24.0 "
        f"is not taken for a size that makes up a model; say it with --set {name}=N"
    )


def test_no_refusal_says_that_a_class_lacks_a_default_that_it_has() -> None:
    met = set()
    for model_type, fields in COMPLETE.items():
        known = CLASS_DEFAULTS[model_type][1] if model_type in CLASS_DEFAULTS else {}
        for name in ESSENTIAL & known.keys():
            try:
                _read({field: value for field, value in fields.items() if field != name})
            except PlanError as refusal:
                text = str(refusal)
                blamed = text.split(":")[0]
                assert blamed not in known or not text.endswith("its class has no default"), text
                if text.startswith(f"{name}: expected a whole number"):
                    assert f"the default of {CLASS_DEFAULTS[model_type][0]} of " in text
                    met.add(name)
    assert {"hidden_size", "n_mamba_heads", "kv_lora_rank", "d_model"} <= met


def test_longcat_is_asked_for_the_name_that_its_class_has() -> None:
    fields = {field: value for field, value in COMPLETE["longcat_flash"].items() if field != "num_layers"}
    assert _refusal(fields).startswith("num_layers: expected a whole number, the config has none and the default of ")
    layers = COMPLETE["longcat_flash"]["num_layers"]
    assert len(_read({**fields, "num_layers": layers}).layers) == 2 * layers
    assert len(_read({**fields, "num_hidden_layers": layers}).layers) == layers


def test_a_size_that_no_class_has_is_said_to_have_no_default() -> None:
    fields = {field: value for field, value in COMPLETE["Yi"].items() if field != "hidden_size"}
    assert _refusal(fields) == "hidden_size: expected a whole number, the config has none and its class has no default"


def test_a_missing_rank_is_named() -> None:
    fields = _file("deepseek-ai--DeepSeek-V3.json")
    del fields["kv_lora_rank"]
    assert _refusal(fields).startswith("kv_lora_rank: expected a whole number")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"num_key_value_heads": 5}, "num_key_value_heads: expected a divisor of num_attention_heads = 32, got 5"),
        ({"num_attention_heads": 31}, "num_key_value_heads: expected a divisor of num_attention_heads = 31, got 8"),
        (
            {"num_attention_heads": 24, "hidden_size": 4100},
            "num_attention_heads: expected a divisor of hidden_size = 4100, got 24; or give head_dim",
        ),
        ({"num_hidden_layers": 10**18}, "num_hidden_layers: expected a whole number from 1 to 10000"),
        ({"num_hidden_layers": -1}, "num_hidden_layers: expected a whole number from 1 to 10000, got -1"),
        ({"num_hidden_layers": float("nan")}, "num_hidden_layers: expected a whole number from 1 to 10000, got nan"),
        ({"hidden_size": "4096"}, "hidden_size: expected a whole number at least 1"),
        ({"attention_bias": 1}, "attention_bias: expected true or false, got 1"),
        ({"per_layer_config": {"0": {"head_dim": 3}}}, "per_layer_config: expected none in a llama"),
    ],
)
def test_contradictions_and_nonsense_name_the_field(change: dict[str, Any], text: str) -> None:
    assert _refusal({**LLAMA, **change}).startswith(text)


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        (
            "google/gemma-2-9b",
            {"layer_types": ["full_attention"]},
            "layer_types: expected 42 entries, one for each layer",
        ),
        (
            "google/gemma-2-9b",
            {"layer_types": ["linear_attention"] * 42},
            "layer_types: expected full_attention, sliding_attention, chunked_attention, got 'linear_attention'",
        ),
        (
            "Qwen/Qwen2-7B",
            {"layer_types": ["sliding_attention"] * 28},
            "use_sliding_window: expected true, since layer_types has sliding layers, got False",
        ),
        (
            "ai21labs/Jamba-v0.1",
            {"attn_layer_offset": 8},
            "attn_layer_offset: expected less than attn_layer_period = 8",
        ),
        (
            "mistralai/Mamba-Codestral-7B-v0.1",
            {"head_dim": 63},
            "head_dim: expected expand x hidden_size / num_heads = 8192 / 128, got 63",
        ),
        ("LiquidAI/LFM2-1.2B", {"full_attn_idxs": [16]}, "full_attn_idxs: expected layers below 16, got [16]"),
        ("apple/OpenELM-270M", {"num_kv_heads": [5] * 16}, "num_kv_heads: expected in each layer a divisor"),
        ("google-bert/bert-base-uncased", {"is_decoder": True}, "is_decoder: expected false, an encoder, got True"),
        ("MiniMaxAI/MiniMax-Text-01", {"attn_type_list": None}, "attn_type_list: expected 0 or 1 for each layer"),
        (
            "moonshotai/Kimi-Linear-48B-A3B-Instruct",
            {"linear_attn_config": {"full_attn_layers": [1], "kda_layers": [1]}},
            "linear_attn_config.full_attn_layers: expected with kda_layers each of the layers from 1 to 27 once",
        ),
    ],
)
def test_families_refuse_what_they_cannot_mean(name: str, change: dict[str, Any], text: str) -> None:
    assert _refusal({**_golden(name), **change}).startswith(text)


def test_a_letter_that_is_no_layer_is_refused() -> None:
    fields = {**_file("nvidia--Nemotron-H-56B-Base-8K.json"), "hybrid_override_pattern": "M?" * 59}
    assert _refusal(fields).startswith("hybrid_override_pattern: expected one of M * - E for each of 118 layers")


def test_a_nested_config_must_be_one() -> None:
    assert _refusal({"model_type": "gemma3", "text_config": 3}) == "text_config: expected a nested config, got 3"


def test_layers_that_share_need_one_to_share_with() -> None:
    fields = json.loads(json.dumps(_golden("google/gemma-3n-E4B-it")))
    fields["text_config"]["num_kv_shared_layers"] = 35
    assert _refusal(fields).startswith("text_config.num_kv_shared_layers: expected a layer that keeps keys and values")


def test_every_type_that_is_wrapped_is_known() -> None:
    known = {*FAMILIES, *WRAPPERS, ""}
    assert {inner for _, inner in WRAPPERS.values()} <= known
    assert not set(FAMILIES) & set(WRAPPERS)
    assert not (set(FAMILIES) | set(WRAPPERS)) & set(REFUSED)


SOURCES = [model.fields for model in GOLDEN] + [_file(name) for name in FILES]
NONSENSE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(-3, 40), max_size=4),
    st.just({}),
    st.just({"0": {}}),
)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_any_damage_is_refused_in_one_line_or_read_and_never_takes_long(data: st.DataObject) -> None:
    fields = json.loads(json.dumps(data.draw(st.sampled_from(SOURCES))))
    inner = fields.get("text_config", fields)
    for name in data.draw(st.lists(st.sampled_from(sorted({*inner, "layer_types", "head_dim"})), max_size=3)):
        if data.draw(st.booleans()):
            inner[name] = data.draw(NONSENSE)
        else:
            inner.pop(name, None)
    began = time.perf_counter()
    text, states = "", ()
    try:
        states = _read(fields).states
    except PlanError as refusal:
        text = str(refusal)
    assert "\n" not in text
    assert len(text) < 600
    assert all(plane.elements > 0 for state in states for plane in state.planes)
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    "name", ["meta-llama/Meta-Llama-3-8B", "google/gemma-3n-E4B-it", "Zyphra/Zamba2-2.7B", "ai21labs/Jamba-v0.1"]
)
def test_the_most_layers_that_are_read_take_seconds_at_worst(name: str) -> None:
    fields = json.loads(json.dumps(_golden(name)))
    fields.get("text_config", fields)["num_hidden_layers"] = 10_000
    began = time.perf_counter()
    assert len(_read(fields).layers) == 10_000
    assert time.perf_counter() - began < 5


def test_reading_a_config_needs_nothing_heavy() -> None:
    code = (
        "import sys; from headwise.plan.config import Config; from headwise.plan.architectures import architecture_of; "
        f"architecture_of(Config({LLAMA!r})); "
        "print([name for name in ('torch', 'transformers', 'numpy', 'gguf') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
