"""A whole plan: the three numbers, what fits, and the record under its documented names."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy
import pytest

from headwise.plan import PlanError, plan
from headwise.plan.answers import plan_architecture
from headwise.plan.compare import compare
from headwise.plan.devices import Device
from headwise.plan.request import Request
from headwise.plan.runtimes import RUNTIMES, runtime_named
from headwise.plan.states import Chunk, Window
from headwise.plan.storages import STORAGES
from tests.plan.made import cross, grouped, latent, model, recurrent

H, G, D, DV, E = 6, 2, 11, 13, 17
ENTRY = G * (D + DV) * 2
FIXED = (3 * 7 + 77) * 2
MIXED = model(
    grouped(0, H, G, D, E, value_dim=DV),
    grouped(1, H, G, D, E, Window(5), value_dim=DV),
    grouped(2, H, G, D, E, Chunk(7), value_dim=DV),
    recurrent(3),
    grouped(4, H, G, D, E, value_dim=DV, owner=0),
)
GIVEN = Device("given", 10**9, 10**12, "a test")


def planned(made=MIXED, runtime="logical", *, device=None, budget=None, weights=None, **asked):
    asked = {"context": 101} | asked
    return plan_architecture(
        made, Request(**asked), runtime_named(runtime), device=device, budget=budget, weights=weights
    )


def test_the_three_numbers_are_kept_apart():
    told = planned()
    assert told.per_token == 3 * ENTRY
    assert told.growth == ENTRY
    assert told.fixed == FIXED
    assert told.total == (101 + 5 + 7) * ENTRY + FIXED


def test_inside_all_windows_a_token_costs_per_token_and_beyond_them_growth():
    sizes = [planned(context=at).total for at in range(1, 40)]
    steps = [later - earlier for earlier, later in itertools.pairwise(sizes)]
    assert steps[:4] == [planned().per_token] * 4
    assert set(steps[7:]) == {planned().growth}
    assert sizes[0] == planned().per_token + planned().fixed


def test_keys_and_values_are_told_apart():
    told = planned(batch=3)
    tokens = 101 + 5 + 7
    assert told.allocation.key_bytes == 3 * tokens * G * D * 2
    assert told.allocation.value_bytes == 3 * tokens * G * DV * 2
    assert told.total == told.allocation.key_bytes + told.allocation.value_bytes + 3 * FIXED
    assert (told.per_token, told.growth, told.fixed) == (3 * ENTRY, ENTRY, FIXED)  # of one sequence


def test_cross_attention_is_fixed():
    told = planned(model(cross(0, H, D, E, 29)), batch=3)
    assert told.fixed == 29 * 2 * H * D * 2
    assert told.growth == told.per_token == 2 * H * D * 2
    assert planned(model(cross(0, H, D, E, 29)), encoder_length=31).fixed == 31 * 2 * H * D * 2


def test_what_fits_is_what_the_plan_says_of_it():
    budget, weights = 200_000, 50_001
    told = planned(budget=budget, weights=weights, batch=3)
    assert told.room == budget - weights
    assert planned(context=told.max_context, batch=3).total <= told.room
    assert planned(context=told.max_context + 1, batch=3).total > told.room
    assert planned(batch=told.max_batch).total <= told.room < planned(batch=told.max_batch + 1).total


def test_weights_are_divided_among_ranks_and_may_not_fit():
    assert planned(model(grouped(0, H, G, D, E)), budget=100, weights=101, tp=2).room == 49
    none = planned(budget=100, weights=100)
    assert (none.room, none.max_context, none.max_batch) == (0, 0, 0)
    over = planned(budget=100, weights=101)
    assert (over.room, over.max_context, over.max_batch) == (-1, 0, 0)
    assert planned().room is None
    nothing = planned(model(grouped(0, H, G, D, E, causal=False)), budget=100, weights=100)
    assert (nothing.max_context, nothing.max_batch) == (0, 0)


def test_what_does_not_grow_has_no_longest_context():
    assert planned(model(recurrent(0)), budget=1000).max_context is None
    assert planned(model(recurrent(0)), budget=1000).max_batch == 1000 // FIXED
    assert planned(model(grouped(0, H, G, D, E, causal=False)), budget=1000).max_batch is None


KEYS = (
    "model model_type runtime runtime_options context batch tp kv_dtype value_dtype state_dtype encoder_length "
    "speculative shared_prefix overrides attention_parameters "
    "attention_parameters_by_name attention_biases kv_bytes_per_token kv_growth_bytes_per_token "
    "kv_fixed_bytes kv_bytes kv_bytes_over_ranks key_bytes value_bytes latent_bytes padding_bytes states "
    "groups model_max_context budget weight_bytes max_context max_batch flops roofline provenance"
).split()


def test_the_record_has_the_documented_names_and_no_others():
    record = planned(device=GIVEN, budget=10**6, weights=7).as_dict()
    assert list(record) == KEYS
    text = (Path(__file__).parents[2] / "docs" / "plan.md").read_text(encoding="utf-8")
    documented = text.split("## JSON")[1].split("\n## ")[0]
    assert not [name for name in KEYS if f"`{name}`" not in documented]
    state = record["states"][0]
    assert not [name for name in (*state, *state["planes"][0]) if f"`{name}`" not in documented]
    for part in (record["groups"][0], record["flops"]["prefill"], record["roofline"]):
        assert not [name for name in part if f"`{name}`" not in documented]


def test_the_record_holds_the_plan():
    told = planned(device=GIVEN, budget=10**6, weights=7, batch=3)
    record = json.loads(json.dumps(told.as_dict(), allow_nan=False))
    assert record["kv_bytes"] == told.total == sum(state["bytes"] for state in record["states"])
    assert record["kv_bytes"] == sum(group["bytes"] for group in record["groups"])
    assert [state["layer"] for state in record["states"]] == [0, 1, 2, 3, 3, 4]
    assert [state["extent"] for state in record["states"]] == [
        {"kind": "grows"},
        {"kind": "window", "size": 5},
        {"kind": "chunk", "size": 7},
        {"kind": "fixed", "entries": 3},
        {"kind": "fixed", "entries": 1},
        {"kind": "grows"},
    ]
    assert record["states"][5] | {"provenance": {}} == {
        "layer": 4,
        "kind": "self",
        "planes": [
            {"name": "key", "heads": G, "dim": D, "role": "key", "bytes": 0},
            {"name": "value", "heads": G, "dim": DV, "role": "value", "bytes": 0},
        ],
        "extent": {"kind": "grows"},
        "owner": 0,
        "sharding": "heads",
        "entries": 0,
        "bytes": 0,
        "equation": "held by another layer",
        "provenance": {},
    }
    assert record["max_context"] == told.max_context
    assert record["flops"]["decode"]["total"]["visible"] == told.decode.total.visible
    assert "absorbed" not in record["flops"]
    assert record["roofline"]["step_seconds"] == told.roofline.step_seconds


def test_the_sum_over_ranks_counts_copies():
    record = planned(model(grouped(0, H, G, D, E)), tp=6).as_dict()
    assert record["kv_bytes"] == 101 * 2 * D * 2
    assert record["kv_bytes_over_ranks"] == 6 * record["kv_bytes"]


def test_latent_attention_is_told_in_both_forms():
    record = planned(model(latent(0, H, 23, 5, 7, DV, E))).as_dict()
    assert record["latent_bytes"] == record["kv_bytes"] == 101 * 28 * 2
    assert record["flops"]["absorbed"]["decode"]["scores"]["visible"] == 2 * H * 101 * 28
    assert record["flops"]["decode"]["scores"]["visible"] == 2 * H * 101 * 12


@pytest.mark.parametrize("runtime", ["logical", "transformers", "vllm", "llamacpp", "sglang"])
def test_equations_say_what_they_compute(runtime):
    """Every line's sum, computed from its words, is its bytes."""
    local = model(*MIXED.layers[:2], model_type="gemma2")
    told = planned(local, runtime, context=1000, batch=3)
    assert len(told.allocation.groups) == 2
    for group in told.allocation.groups:
        assert evaluated(group.each.equation) == group.each.total, group.each.equation


def evaluated(equation: str) -> int:
    """The value of an equation: words are units, `x` multiplies, of `5 of 7` the 5 counts."""
    numbers = re.sub(r"(\d+) of \d+", r"\1", equation).replace(" x ", " * ")
    bare = re.sub(r"[A-Za-z]+", "", numbers)
    assert re.fullmatch(r"[\d\s*/+()-]+", bare), equation
    return eval(bare)


GOLDEN = Path(__file__).parent / "configs"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [name for name in EXPECTED if name != "about"])
def test_published_configs_give_what_they_must(name):
    told, expected = plan(GOLDEN / name), EXPECTED[name]
    record = told.as_dict()
    assert {key: record[key] for key in ("kv_bytes_per_token", "kv_growth_bytes_per_token")} == {
        key: value for key, value in expected.items() if key in record
    }
    for runtime in ("transformers", "vllm", "llamacpp", "sglang"):
        other = plan(GOLDEN / name, runtime=runtime, kv_dtype="f16")
        assert other.total >= told.total - told.fixed, runtime
        lines = other.as_dict()["groups"]  # what a runtime allocates besides the states is among them
        assert (
            sum(line["bytes"] for line in lines)
            == other.total
            == sum(line["bytes_each"] * max(len(line["layers"]), 1) for line in lines)
        )
    if "kv_fixed_bytes_llamacpp" in expected:
        assert plan(GOLDEN / name, runtime="llamacpp").fixed == expected["kv_fixed_bytes_llamacpp"]
    if "kv_bytes_per_token_expanded" in expected:
        assert compare(told, "mha").rows[1].plan.per_token == expected["kv_bytes_per_token_expanded"]


CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "max_position_embeddings": 8192,
}


def test_a_mapping_of_fields_is_a_model():
    told = plan(CONFIG, budget="24GiB", weights="16GiB", kv_dtype="bfloat16", device="h100-sxm")
    assert told.total == 1 << 30
    assert told.model == "dict"
    assert told.request.context == told.architecture.max_context == 8192
    assert told.max_context == 65_536
    assert told.max_batch == 8
    assert told.roofline.device.name == "h100-sxm"


def test_a_config_without_a_longest_context_needs_one():
    bloom = {"model_type": "bloom", "n_embed": 64, "n_layer": 2, "n_head": 4}
    t5 = {"model_type": "t5", "d_model": 64, "num_layers": 2, "num_heads": 4, "d_kv": 16, "d_ff": 7}
    message = "--context: expected the number of tokens, the config of {} names no longest one{}"
    trained = "; its {} says what it was trained with, which is no limit"
    for fields, length in ((bloom, "seq_length"), (t5, "n_positions")):
        assert plan(fields, context=7, encoder_length=5 if fields is t5 else None).growth > 0
        for given, advice in ((fields, ""), ({**fields, length: 512}, trained.format(length))):
            with pytest.raises(PlanError) as refused:
                plan(given)
            assert str(refused.value) == message.format(fields["model_type"], advice)


def test_no_context_is_asked_for_where_nothing_depends_on_it():
    fields = {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "state_size": 16, "conv_kernel": 4}
    told = plan(fields)
    assert told.request.context == 1
    for runtime in ("logical", "transformers", "vllm", "llamacpp", "sglang"):
        whatever, far = plan(fields, runtime=runtime), plan(fields, runtime=runtime, context=10_007)
        assert whatever.total == far.total > 0
        assert (whatever.fixed, whatever.prefill, whatever.decode) == (far.fixed, far.prefill, far.decode)


SAVED = (
    "runtime runtime_options context batch tp kv_dtype value_dtype state_dtype encoder_length speculative "
    "shared_prefix overrides budget"
).split()


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("meta-llama--Meta-Llama-3.1-8B.json", {"value_dtype": "q4_0", "kv_dtype": "q8_0", "runtime": "llamacpp"}),
        ("meta-llama--Meta-Llama-3.1-8B.json", {"overrides": {"num_key_value_heads": 4}, "tp": 2, "budget": "7GiB"}),
        (
            "openai--gpt-oss-20b.json",
            {
                "runtime": "vllm",
                "runtime_options": {"block_size": 32, "max_num_batched_tokens": 1009},
                "batch": 3,
                "speculative": 5,
                "shared_prefix": 101,
                "context": 2003,
            },
        ),
        ("openai--gpt-oss-20b.json", {"runtime": "sglang", "runtime_options": {"swa_full_tokens_ratio": 0.7}}),
        ("nvidia--Nemotron-H-56B-Base-8K.json", {"state_dtype": "f32", "runtime": "transformers"}),
        ("deepseek-ai--DeepSeek-V3.json", {"kv_dtype": "fp8", "runtime": "vllm"}),
    ],
)
def test_a_record_says_all_that_is_needed_to_make_it_again(name, asked):
    first = json.loads(json.dumps(plan(GOLDEN / name, **asked).as_dict()))
    again = plan(GOLDEN / name, **{key: first[key] for key in SAVED})
    assert again.as_dict() == first
    for key, value in asked.items():
        if key not in ("runtime_options", "budget"):
            assert first[key] == value
    given = asked.get("runtime_options", {})
    assert {key: first["runtime_options"][key] for key in given} == {
        key: str(each) if isinstance(each, float) else each for key, each in given.items()
    }


def test_the_record_tells_the_encoders_tokens_that_were_counted_with():
    assert planned(model(cross(0, H, D, E, 29))).as_dict()["encoder_length"] == 29
    assert planned(model(cross(0, H, D, E, 29)), encoder_length=31).as_dict()["encoder_length"] == 31
    own = replace(model(cross(0, H, D, E)), encoder_length=23)
    assert planned(own).as_dict()["encoder_length"] == 23
    assert planned().as_dict()["encoder_length"] is None


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_runtime_tells_its_options_in_force(runtime):
    options = runtime_named(runtime).options
    assert runtime_named(runtime, **options).options == options == json.loads(json.dumps(options))
    for name, value in options.items():
        words = {"dynamic": "static", "storage": "tensors", "0.8": "0.5"}
        changed = not value if isinstance(value, bool) else 7 if isinstance(value, int) else words.get(value)
        if changed is not None:
            assert runtime_named(runtime, **{name: changed}).options == options | {name: changed}


def test_weights_may_lie_in_files(tmp_path):
    from safetensors.numpy import save_file

    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file({"weight": numpy.zeros((3, 5), numpy.float16)}, tmp_path / "model.safetensors")
    assert plan(tmp_path, weights="model").weights == 30
    assert plan(CONFIG, weights=str(tmp_path)).weights == 30
    assert plan(CONFIG, weights="5kB").weights == 5000


def test_overrides_win_and_say_so():
    told = plan(CONFIG, overrides={"num_key_value_heads": 2})
    assert told.per_token == 32 * 2 * 2 * 128 * 2
    assert told.as_dict()["states"][0]["provenance"]["num_key_value_heads"] == "override"


def test_weights_at_a_path_object(tmp_path):
    from safetensors.numpy import save_file

    save_file({"weight": numpy.zeros((3, 5), numpy.float16)}, tmp_path / "model.safetensors")
    assert plan(CONFIG, weights=tmp_path).weights == 30


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"context": -1}, "--context: expected a whole number from 0 to 1099511627776, got -1"),
        ({"batch": 0}, "--batch: expected a whole number from 1 to 1099511627776, got 0"),
        (
            {"budget": "lots"},
            "--budget: expected a size in whole bytes, such as 24GiB or 80GB, got 'lots'; units are B, KiB, MiB, GiB, "
            "TiB (times 1,024) and KB, MB, GB, TB (times 1,000)",
        ),
        ({"device": 5}, "device: expected a name or a Device, got 5"),
        ({"overrides": 5}, "overrides: expected a mapping from names to values, got 5"),
        ({"overrides": {5: 7}}, "overrides: expected a mapping from names to values, got {5: 7}"),
        ({"runtime_options": [3]}, "runtime_options: expected a mapping from names to values, got [3]"),
        ({"runtime_options": {3: 5}}, "runtime_options: expected a mapping from names to values, got {3: 5}"),
        ({"kv_dtype": "x"}, f"--kv-dtype: expected one of {', '.join(STORAGES)}, got 'x'"),
        ({"value_dtype": "x"}, f"--value-dtype: expected one of {', '.join(STORAGES)}, got 'x'"),
        ({"state_dtype": 7}, f"--state-dtype: expected one of {', '.join(STORAGES)}, got 7"),
        (
            {"runtime": "ollama"},
            "--runtime: expected one of logical, transformers, vllm, llamacpp, sglang, got 'ollama'",
        ),
        (
            {"tp": 3},
            "--tp: expected a number of ranks that divides the 8 heads of key in layer 0, or is a multiple of them, "
            "got 3",
        ),
    ],
)
def test_wrong_arguments_are_refused_by_name(asked, words):
    with pytest.raises(PlanError, match=f"^{re.escape(words)}$"):
        plan(CONFIG, **asked)
