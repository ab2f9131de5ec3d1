"""From a GGUF file's metadata to a model: every architecture of the table, and files that contradict themselves."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.plan.architectures import architecture_of
from headwise.plan.errors import PlanError
from headwise.plan.gguf import Header, read_header
from headwise.plan.gguf_config import ARCHITECTURES, config_of
from headwise.plan.layers import Architecture
from headwise.plan.states import Chunk, Grows, Window
from tests.plan.headers import MINIMAL, write

SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 192, "ssm.state_size": 11, "ssm.time_step_rank": 6, "ssm.group_count": 2}
MLA = {
    "attention.q_lora_rank": 40,
    "attention.kv_lora_rank": 32,
    "attention.key_length": 40,
    "attention.value_length": 32,
    "attention.key_length_mla": 21,
    "attention.value_length_mla": 13,
    "rope.dimension_count": 8,
}
INDEXER = {"attention.indexer.head_count": 5, "attention.indexer.key_length": 17, "attention.indexer.top_k": 19}
HYBRID = {**SSM, "attention.head_count_kv": [0, 2, 0], "attention.key_length": 16, "feed_forward_length": [7, 0, 0]}
GATED = {**SSM, "full_attention_interval": 2, "attention.key_length": 16}
WINDOW = {"attention.sliding_window": 64}
# Families in which transformers gives each query head its own keys, or every head E / H elements, whatever is said.
EVERY_HEAD = {"gpt2", "gptj", "gptneox", "bloom", "bert"}
SQUARE = {*EVERY_HEAD, "phi2", "stablelm", "qwen2vl", "cohere2", "falcon", "starcoder"}

MORE: dict[str, dict[str, Any]] = {
    "falcon": {"attention.head_count_kv": 1},
    "starcoder": {"attention.head_count_kv": 1},
    **{name: {"attention.head_count_kv": 6} for name in EVERY_HEAD},
    **dict.fromkeys(["gemma2", "gemma3", "cohere2", "gpt-oss", "exaone4"], WINDOW),
    "gemma3n": {**WINDOW, "attention.shared_kv_layers": 0, "attention.sliding_window_pattern": [True, True, False]},
    "gemma4": {
        **WINDOW,
        "attention.sliding_window_pattern": [True, True, False],
        "attention.head_count_kv": [6, 6, 3],
        "attention.key_length_swa": 16,
        "attention.key_length": 32,
    },
    "openelm": {"attention.head_count": [2, 4, 6], "attention.head_count_kv": [1, 2, 3], "attention.key_length": 16},
    "deepseek2": MLA,
    "deepseek32": {**MLA, **INDEXER},
    "glm-dsa": {**MLA, **INDEXER},
    "mamba": SSM,
    "mamba2": SSM,
    "jamba": HYBRID,
    "nemotron_h": HYBRID,
    "nemotron_h_moe": HYBRID,
    "qwen3next": GATED,
    "qwen35": GATED,
    "qwen35moe": GATED,
}
GROUPED = sorted(set(ARCHITECTURES) - {*MORE} | {"gemma2", "gemma3", "cohere2", "gpt-oss", "exaone4"})


@pytest.fixture
def read(tmp_path):
    """The model of a file with those values."""

    def read(architecture: str, values: dict[str, Any] | None = None, **tensors: Any) -> Architecture:
        merged = {**MINIMAL, **(values or {})}
        given = {name: value for name, value in merged.items() if value is not None}
        file = write(tmp_path / "made.gguf", architecture, given, tensors or None)
        return architecture_of(config_of(read_header(file)))

    return read


def planes(architecture: Architecture) -> list[list[tuple[int, int]]]:
    return [[(plane.heads, plane.dim) for plane in state.planes] for state in architecture.states]


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_every_row_gives_a_model_that_the_planner_knows(read, architecture):
    made = read(architecture, MORE.get(architecture))
    assert len(made.layers) == 3
    assert made.width == 96
    assert made.max_context == 2048 or architecture in ("bloom", "mamba", "mamba2")
    assert made.states or architecture == "bert"


@pytest.mark.parametrize("architecture", [name for name in GROUPED if name not in SQUARE])
def test_heads_and_their_width_come_through(read, architecture):
    """6 query and 3 KV heads of 24, which is not 96 / 6."""
    made = read(architecture, {**MORE.get(architecture, {}), "attention.head_count_kv": 3, "attention.key_length": 24})
    assert planes(made) == [[(3, 24), (3, 24)]] * 3
    assert {attention.heads for layer in made.layers for attention in layer.attentions} == {6}


@pytest.mark.parametrize("architecture", sorted(SQUARE))
def test_widths_that_a_family_cannot_have_are_refused(read, architecture):
    with pytest.raises(PlanError, match=f"{architecture}.attention.key_length: expected embedding_length / "):
        read(architecture, {**MORE.get(architecture, {}), "attention.key_length": 24})


@pytest.mark.parametrize("architecture", sorted(EVERY_HEAD))
def test_heads_that_a_family_cannot_share_are_refused(read, architecture):
    with pytest.raises(
        PlanError, match=f"{architecture}.attention.head_count_kv: expected as attention.head_count = 6"
    ):
        read(architecture, {"attention.head_count_kv": 3})


def test_what_the_file_leaves_out_is_as_llama_cpp_reads_it(read):
    """As many KV heads as query heads, of E / H elements."""
    made = read("llama", {"attention.head_count_kv": None, "context_length": None})
    assert planes(made) == [[(6, 16), (6, 16)]] * 3


def test_biases_are_read_off_the_tensors(read):
    weights = {"blk.0.attn_q.weight": np.zeros((96, 96), np.float16)}
    with_bias = {**weights, "blk.0.attn_q.bias": np.zeros(96, np.float32)}
    for tensors, expected in ((weights, False), (with_bias, True)):
        made = read("llama", **tensors)
        assert made.layers[0].attentions[0].projections[0].bias is expected


@pytest.mark.parametrize(
    ("architecture", "values", "extents"),
    [
        ("llama", WINDOW, [Grows()] * 3),  # Mistral's window, which llama.cpp doesn't know
        ("gemma2", WINDOW, [Window(64), Grows(), Window(64)]),
        ("gemma3", WINDOW, [Window(64)] * 3),
        ("gemma3", {**WINDOW, "attention.sliding_window_pattern": 2}, [Window(64), Grows(), Window(64)]),
        (
            "gemma3",
            {**WINDOW, "attention.sliding_window_pattern": [False, True, False]},
            [Grows(), Window(64), Grows()],
        ),
        ("gpt-oss", WINDOW, [Window(64), Grows(), Window(64)]),
        ("olmo2", {}, [Grows()] * 3),
        ("olmo2", WINDOW, [Window(64)] * 3),
        ("phi3", {}, [Grows()] * 3),
        ("phi3", WINDOW, [Window(64)] * 3),
        ("llama4", {}, [Chunk(8192)] * 3),
    ],
)
def test_windows(read, architecture, values, extents):
    assert [state.extent for state in read(architecture, values).states] == extents


def test_gemma_4_has_heads_of_two_kinds(read):
    made = read("gemma4", MORE["gemma4"])
    assert planes(made) == [[(6, 16), (6, 16)], [(6, 16), (6, 16)], [(3, 32), (3, 32)]]
    assert [state.extent for state in made.states] == [Window(64), Window(64), Grows()]


def test_the_last_layers_of_gemma_3n_hold_nothing(read):
    made = read("gemma3n", {**MORE["gemma3n"], "attention.sliding_window_pattern": [True, False, True],
                            "attention.shared_kv_layers": 1})  # fmt: skip
    assert [state.owner for state in made.states] == [None, None, 0]


def test_latent_attention(read):
    made = read("deepseek2", MLA)
    assert planes(made) == [[(1, 32), (1, 8)]] * 3
    (attention,) = made.layers[0].attentions
    assert (attention.score_dim, attention.value_dim, attention.absorbed) == (21, 13, (40, 32))
    sparse = read("deepseek32", {**MLA, **INDEXER})
    assert planes(sparse) == [[(1, 32), (1, 8)], [(1, 17)]] * 3


def test_layers_that_predict_further_tokens_are_left_out(read):
    made = read("glm4moe", {"block_count": 4, "nextn_predict_layers": 1, "attention.head_count_kv": [2, 2, 2, 6]})
    assert planes(made) == [[(2, 16), (2, 16)]] * 3


def test_recurrent_layers(read):
    assert planes(read("mamba", SSM))[:2] == [[(192, 1)], [(192, 11)]]
    assert planes(read("mamba2", SSM))[:2] == [[(6, 32), (2, 11), (2, 11)], [(6, 32 * 11)]]
    kinds = [[state.kind for state in layer.states] for layer in read("nemotron_h", HYBRID).layers]
    assert kinds == [[], ["self"], ["convolution", "recurrent"]]
    kinds = [[state.kind for state in layer.states] for layer in read("jamba", HYBRID).layers]
    assert kinds == [["convolution", "recurrent"], ["self"], ["convolution", "recurrent"]]
    net = read("qwen35", GATED)
    assert planes(net)[:2] == [[(2, 11), (2, 11), (6, 32)], [(6, 11 * 32)]]
    assert [layer.states[0].kind for layer in net.layers] == ["convolution", "self", "convolution"]


LINES = [
    ("llama", {"block_count": 0}, "llama.block_count: expected a whole number from 1 to 10000, got 0"),
    ("llama", {"attention.head_count_kv": [2, 3, 2]}, "llama.attention.head_count_kv: expected one number for all "
     "layers of this architecture, got (2, 3, 2)"),
    ("llama", {"attention.head_count_kv": [2, 2]}, "llama.attention.head_count_kv: expected an entry for each of 3 "
     "layers, got (2, 2)"),
    ("llama", {"attention.head_count": 0}, "llama.attention.head_count: expected at least 1 in a layer with attention, "
     "got 0"),
    ("llama", {"attention.head_count_kv": [0, 0, 0]}, "llama.attention.head_count_kv: expected at least 1 in a layer "
     "with attention, got (0, 0, 0)"),
    ("llama", {"attention.head_count": 7}, "llama.attention.head_count: expected a divisor of embedding_length = 96, "
     "got 7"),
    ("llama", {"attention.value_length": 8}, "llama.attention.value_length: expected as attention.key_length = 16 for "
     "this architecture, got 8"),
    ("llama", {"nextn_predict_layers": 3}, "llama.nextn_predict_layers: expected fewer than block_count = 3, got 3"),
    ("llama", {"embedding_length": "wide"}, "llama.embedding_length: expected a whole number at least 1 and at most "
     "1099511627776, got 'wide'"),
    ("gemma2", {}, "gemma2.attention.sliding_window: expected a whole number, the config has none and its class has no "
     "default"),
    ("gemma4", {**MORE["gemma4"], "attention.head_count_kv": [6, 3, 3]}, "gemma4.attention.head_count_kv: expected one "
     "number for sliding layers and one for full ones, got (6, 3, 3)"),
    ("gemma4", {**MORE["gemma4"], "attention.sliding_window_pattern": [True] * 3, "attention.head_count_kv": 6},
     "gemma4.attention.sliding_window_pattern: expected at least one layer that doesn't slide, got (True, True, True)"),
    ("gemma3n", {**MORE["gemma3n"], "attention.sliding_window_pattern": [True]}, "gemma3n.attention."
     "sliding_window_pattern: expected true or false for each of 3 layers, got (True,)"),
    ("starcoder", {}, "starcoder.attention.head_count_kv: expected 1 for this architecture, got 2"),
    ("deepseek2", {}, "deepseek2.attention.key_length_mla: expected the width of a head, got nothing; this file is "
     "from before latent attention was kept"),
    ("mamba2", {**SSM, "ssm.time_step_rank": 5}, "mamba2.ssm.time_step_rank: expected a divisor of ssm.inner_size = "
     "192, got 5"),
    ("jamba", {**HYBRID, "block_count": 6, "attention.head_count_kv": [0, 2, 0, 0, 2, 2]}, "jamba.attention."
     "head_count_kv: expected attention layers in equal distances, got (0, 2, 0, 0, 2, 2)"),
    ("jamba", {**HYBRID, "block_count": 4, "attention.head_count_kv": [0, 0, 2, 2]}, "jamba.attention."
     "head_count_kv: expected attention layers in equal distances, got (0, 0, 2, 2)"),
    ("jamba", {**HYBRID, "attention.head_count_kv": [0, 0, 0]}, "jamba.attention.head_count_kv: expected at least one "
     "layer with attention, got (0, 0, 0)"),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "values", "text"), LINES, ids=range(len(LINES)))
def test_files_that_contradict_themselves_are_refused(read, tmp_path, architecture, values, text):
    with pytest.raises(PlanError) as refused:
        read(architecture, values)
    assert str(refused.value) == f"{tmp_path / 'made.gguf'}: {text}"


@pytest.mark.parametrize("architecture", ["t5", "rwkv7", "clip", "x" * 99])
def test_an_architecture_without_a_row_is_refused(read, architecture):
    with pytest.raises(PlanError) as refused:
        read(architecture)
    line = str(refused.value)
    assert "expected general.architecture to be one of apertus, arcee, " in line
    assert line.endswith(f"got {architecture[:60]!r}; give the config.json of the model instead")


def test_overrides_win(tmp_path):
    file = write(tmp_path / "made.gguf", "llama", MINIMAL)
    made = architecture_of(config_of(read_header(file), {"num_key_value_heads": 1}))
    assert planes(made) == [[(1, 16), (1, 16)]] * 3


ODD = st.one_of(
    st.sampled_from([0, 1, 2, 3, 96, -1, 2**63, 10**30, True, 1.5, float("nan"), float("inf"), "", "x", (), (0, 0, 0)]),
    st.lists(st.integers(-1, 9), max_size=5).map(tuple),
)


@settings(max_examples=400)
@given(architecture=st.sampled_from(sorted(ARCHITECTURES)), odd=st.data())
def test_any_metadata_is_a_model_or_refused(architecture, odd):
    values = {**MINIMAL, **MORE.get(architecture, {})}
    for name in odd.draw(st.sets(st.sampled_from(sorted(values)), max_size=3)):
        values[name] = odd.draw(ODD)
    metadata = {f"{architecture}.{name}": tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    header = Header(Path("x.gguf"), {"general.architecture": architecture, **metadata}, 0, 0, frozenset())
    with suppress(PlanError):
        assert architecture_of(config_of(header)).layers
