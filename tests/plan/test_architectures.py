"""From configs to layers: published models, the traps of each family, and where numbers came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headwise.plan.architectures import architecture_of
from headwise.plan.config import Config
from headwise.plan.layers import Architecture
from headwise.plan.states import Chunk, Encoder, Fixed, Grows, State, Window
from tests.plan.golden import GOLDEN, Golden

CONFIGS = Path(__file__).parent / "configs"
EXPECTED = json.loads((CONFIGS / "expected.json").read_text())
FILES = [name for name in EXPECTED if name.endswith(".json")]
BF16 = 2


def _read(fields: dict[str, Any], **overrides: Any) -> Architecture:
    return architecture_of(Config(fields, overrides=overrides))


def _file(name: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((CONFIGS / name).read_text())
    return fields


def _bytes(architecture: Architecture, *extents: type) -> int:
    """Bytes of one entry of every state of those extents, in bfloat16, those of other layers not counted twice."""
    states = [state for state in architecture.states if state.owner is None and isinstance(state.extent, extents)]
    return sum(plane.elements * BF16 for state in states for plane in state.planes)


def _fixed(architecture: Architecture, size: int = BF16) -> int:
    states = [state for state in architecture.states if isinstance(state.extent, Fixed)]
    return sum(plane.elements * size * state.extent.tokens(1) for state in states for plane in state.planes)


@pytest.mark.parametrize("name", FILES)
def test_a_published_file_gives_what_it_must(name: str) -> None:
    architecture, expected = _read(_file(name)), EXPECTED[name]
    assert _bytes(architecture, Grows, Window, Chunk) == expected["kv_bytes_per_token"]
    assert _bytes(architecture, Grows) == expected["kv_growth_bytes_per_token"]
    if "kv_fixed_bytes_llamacpp" in expected:
        assert _fixed(architecture, 4) == expected["kv_fixed_bytes_llamacpp"]
    if "kv_bytes_per_token_expanded" in expected:
        attentions = [each for layer in architecture.layers for each in layer.attentions]
        expanded = sum(each.kv_heads * (each.score_dim + each.value_dim) * BF16 for each in attentions)
        assert expanded == expected["kv_bytes_per_token_expanded"]


@pytest.mark.parametrize("model", GOLDEN, ids=lambda model: model.name)
def test_a_published_model_costs_what_the_formula_says(model: Golden) -> None:
    architecture = _read(model.fields)
    assert _bytes(architecture, Grows, Window, Chunk) == model.token
    assert _bytes(architecture, Grows) == (model.token if model.growth is None else model.growth)
    assert _fixed(architecture) == model.fixed
    assert _bytes(architecture, Encoder) == model.cross


def test_the_golden_cases_are_many_and_different() -> None:
    assert len({model.name for model in GOLDEN}) == len(GOLDEN) >= 80
    assert len({model.fields["model_type"] for model in GOLDEN}) >= 50


def _golden(name: str) -> dict[str, Any]:
    return next(model.fields for model in GOLDEN if model.name == name)


LLAMA = _golden("meta-llama/Meta-Llama-3-8B")
QWEN2 = _golden("Qwen/Qwen2-7B")


# --- Which layers are local, and how far they see ---------------------------------------------------------------------


def _extents(architecture: Architecture) -> list[object]:
    return [state.extent for state in architecture.states]


def test_qwen2_slides_only_where_it_is_told_to() -> None:
    on = {**QWEN2, "use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 25}
    assert _extents(_read(on)) == [Grows()] * 25 + [Window(4096)] * 3
    assert _extents(_read({**on, "use_sliding_window": False})) == [Grows()] * 28
    assert _extents(_read({**on, "sliding_window": None})) == [Grows()] * 28


def test_a_null_window_is_no_window_and_an_absent_one_the_class_default() -> None:
    mistral = _golden("mistralai/Mistral-7B-v0.1")
    absent = {name: value for name, value in mistral.items() if name != "sliding_window"}
    assert _extents(_read({**mistral, "sliding_window": None})) == [Grows()] * 32
    assert _extents(_read(absent)) == [Window(4096)] * 32


def test_phi_3_mini_has_a_window_of_2047() -> None:
    assert set(_extents(_read(_golden("microsoft/Phi-3-mini-4k-instruct")))) == {Window(2047)}


def test_gemma_2_begins_with_a_local_layer_and_gemma_3_ends_every_six_with_a_global_one() -> None:
    assert _extents(_read(_golden("google/gemma-2-9b")))[:3] == [Window(4096), Grows(), Window(4096)]
    gemma3 = _extents(_read(_golden("google/gemma-3-1b-pt")))
    assert [index for index, extent in enumerate(gemma3) if extent == Grows()] == [5, 11, 17, 23]


def test_layer_types_win_over_a_pattern() -> None:
    fields = {**_golden("google/gemma-3-1b-pt"), "layer_types": ["full_attention"] * 25 + ["sliding_attention"]}
    assert _extents(_read(fields)) == [Grows()] * 25 + [Window(512)]


def test_llama_4_sees_chunks_except_in_every_fourth_layer() -> None:
    extents = _extents(_read(_file("meta-llama--Llama-4-Scout-17B-16E-Instruct.json")))
    assert [index for index, extent in enumerate(extents) if extent == Grows()] == list(range(3, 48, 4))
    assert extents[0] == Chunk(8192)


def test_the_chunk_of_mimo_is_not_one() -> None:
    architecture = _read(_golden("XiaomiMiMo/MiMo-V2-Flash"))
    assert set(_extents(architecture)) == {Grows(), Window(128)}
    sized = {**_golden("XiaomiMiMo/MiMo-V2-Flash"), "sliding_window_size": 128}
    assert set(_extents(_read(sized))) == {Grows(), Window(129)}


def test_gpt_neo_alternates_and_says_so_in_patterns() -> None:
    fields = {
        "model_type": "gpt_neo",
        "hidden_size": 2048,
        "num_layers": 6,
        "num_heads": 16,
        "window_size": 256,
        "attention_types": [[["global", "local"], 3]],
    }
    assert _extents(_read(fields)) == [Grows(), Window(256)] * 3


def test_step_3_5_has_more_query_heads_where_it_slides_and_layers_behind_the_last() -> None:
    fields = {
        "model_type": "step3p5",
        "hidden_size": 4096,
        "num_hidden_layers": 3,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": 64,
        "num_attention_groups": 8,
        "head_dim": 128,
        "sliding_window": 512,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 96},
    }
    architecture = _read(fields)
    assert _extents(architecture) == [Grows(), Window(512), Window(512)]
    assert [layer.attentions[0].heads for layer in architecture.layers] == [64, 96, 96]
    assert {layer.attentions[0].kv_heads for layer in architecture.layers} == {8}


# --- Sharing, blocks, and states of several kinds ---------------------------------------------------------------------


def test_the_last_layers_of_gemma_3n_read_the_last_layer_of_their_type_before() -> None:
    states = _read(_golden("google/gemma-3n-E4B-it")).states
    assert [state.owner for state in states[:20]] == [None] * 20
    assert [state.owner for state in states[20:]] == [19 if (index + 1) % 5 == 0 else 18 for index in range(20, 35)]
    shared = _read(_golden("google/gemma-3n-E4B-it")).layers[20].attentions[0]
    assert [projection.name for projection in shared.projections] == ["query", "output"]


def test_every_second_layer_of_hunyuan_large_reads_the_one_before() -> None:
    layers = _read(_golden("tencent/Tencent-Hunyuan-Large")).layers
    assert [layer.states[0].owner for layer in layers[:4]] == [None, 0, None, 2]
    assert [projection.name for projection in layers[1].attentions[0].projections] == ["query", "output"]
    plain = _read({**_golden("tencent/Tencent-Hunyuan-Large"), "use_cla": False})
    assert {state.owner for state in plain.states} == {None}


def test_global_layers_of_gemma_4_have_their_own_heads_and_no_matrix_for_values() -> None:
    layers = _read(_file("google--gemma-4-26B-A4B.json")).layers
    local, full = layers[0].attentions[0], layers[5].attentions[0]
    assert (local.kv_heads, local.score_dim, full.kv_heads, full.score_dim) == (8, 256, 2, 512)
    assert [projection.name for projection in full.projections] == ["query", "key", "output"]
    # Without keys that serve as values, the number of global KV heads doesn't count.
    fields = _file("google--gemma-4-26B-A4B.json")
    fields["text_config"]["attention_k_eq_v"] = False
    assert _read(fields).layers[5].attentions[0].kv_heads == 8


def test_nemotron_nas_has_blocks_with_their_own_groups_or_none() -> None:
    blocks = [{"n_heads_in_group": 8}, {"no_op": True}, {"replace_with_linear": True}, {"n_heads_in_group": 16}]
    fields = {
        "model_type": "nemotron-nas",
        "hidden_size": 8192,
        "num_hidden_layers": 4,
        "num_attention_heads": 64,
        "block_configs": [{"attention": {"n_heads_in_group": None, **block}, "ffn": {}} for block in blocks],
    }
    architecture = _read(fields)
    assert [(state.layer, state.planes[0].heads) for state in architecture.states] == [(0, 8), (3, 4)]
    assert [layer.kind for layer in architecture.layers] == ["attention", "no attention", "linear", "attention"]


def test_decilm_lists_kv_heads() -> None:
    fields = {**LLAMA, "model_type": "deci", "num_key_value_heads_per_layer": [4, 2] * 16}
    assert [state.planes[0].heads for state in _read(fields).states] == [4, 2] * 16


def test_a_layer_may_hold_three_states_or_none() -> None:
    falcon = _read(_golden("tiiuae/Falcon-H1-0.5B-Base")).layers[0]
    assert [state.kind for state in falcon.states] == ["self", "convolution", "recurrent"]
    nemotron = _read(_file("nvidia--Nemotron-H-56B-Base-8K.json")).layers
    kinds = [[state.kind for state in layer.states] for layer in nemotron[:2]]
    assert kinds == [["convolution", "recurrent"], []]


def test_latent_attention_keeps_one_vector_for_all_heads_on_every_rank() -> None:
    architecture = _read(_file("deepseek-ai--DeepSeek-V3.json"))
    state, attention = architecture.states[0], architecture.layers[0].attentions[0]
    assert [(plane.name, plane.heads, plane.dim) for plane in state.planes] == [("latent", 1, 512), ("rope key", 1, 64)]
    assert state.sharding == "replicated"
    assert (attention.score_dim, attention.value_dim, attention.absorbed) == (192, 128, (576, 512))


def test_an_indexer_is_a_state_and_an_attention_of_its_own() -> None:
    architecture = _read(_golden("deepseek-ai/DeepSeek-V3.2-Exp"))
    assert [state.kind for state in architecture.layers[0].states] == ["latent", "indexer"]
    latent, indexer = architecture.layers[0].attentions
    assert (latent.extent, indexer.extent, indexer.heads, indexer.score_dim) == (Window(2048), Grows(), 64, 128)


def test_glm_5_layers_may_take_the_choice_of_the_layer_before() -> None:
    fields = {**_golden("deepseek-ai/DeepSeek-V3.2-Exp"), "model_type": "glm_moe_dsa", "num_hidden_layers": 6}
    kinds = [len(layer.states) for layer in _read({**fields, "index_topk_pattern": "FSSFSS"}).layers]
    assert kinds == [2, 1, 1, 2, 1, 1]
    # From the offset on, one in so many; all before it.
    kinds = [len(layer.states) for layer in _read({**fields, "index_topk_freq": 3, "index_skip_topk_offset": 1}).layers]
    assert kinds == [2, 1, 1, 2, 1, 1]


def test_whisper_crosses_to_the_length_that_its_encoder_always_has() -> None:
    architecture = _read(_golden("openai/whisper-large-v3"))
    assert architecture.encoder_length == 1500
    assert architecture.max_context == 448
    assert [state.extent for state in architecture.states[:2]] == [Grows(), Encoder(1500)]


def test_an_image_of_llama_3_2_is_four_tiles_of_1601() -> None:
    assert _read(_golden("meta-llama/Llama-3.2-11B-Vision")).encoder_length == 4 * (40 * 40 + 1)


def test_the_encoder_of_t5_has_layers_without_states() -> None:
    architecture = _read(_golden("google-t5/t5-small"))
    assert [len(layer.states) for layer in architecture.layers] == [0] * 6 + [2] * 6
    assert not architecture.layers[0].attentions[0].causal


def test_embedding_gemma_keeps_nothing() -> None:
    fields = {**_golden("google/gemma-3-1b-pt"), "use_bidirectional_attention": True}
    architecture = _read(fields)
    assert architecture.states == ()
    # 256 to either side and the query's own.
    assert architecture.layers[0].attentions[0].extent == Window(513)


def test_the_smallest_deepseek_v2_attends_as_llama_does() -> None:
    fields = {**_golden("deepseek-ai/DeepSeek-V2-Lite"), "use_mla": False}
    assert [plane.elements for plane in _read(fields).states[0].planes] == [2048, 2048]


def test_the_dtype_that_a_config_wants_for_its_states_is_kept() -> None:
    states = _read(_file("Qwen--Qwen3.5-35B-A3B.json")).states
    assert {state.kind: state.dtype for state in states} == {"convolution": None, "recurrent": "float32", "self": None}


# --- Where numbers came from ------------------------------------------------------------------------------------------


def _provenance(architecture: Architecture) -> dict[str, str]:
    state: State = architecture.states[0]
    return dict(state.provenance)


def test_every_number_says_where_it_came_from() -> None:
    said = _provenance(_read(_golden("google/gemma-3-4b-pt")))
    default = "class default (Gemma3TextConfig of transformers 5.24.0)"
    assert said["hidden_size"] == "config text_config.hidden_size"
    assert said["num_key_value_heads"] == said["head_dim"] == default
    assert said["sliding_window"] == "config text_config.sliding_window"
    assert said["layer_types"] == "derived: layer 5 of every 6 is full"


def test_a_width_that_is_divided_out_says_so() -> None:
    said = _provenance(_read(_golden("huggyllama/llama-7b")))
    assert said["head_dim"] == "derived: hidden_size / num_attention_heads"
    assert said["num_key_value_heads"] == "derived: as num_attention_heads"


def test_what_the_user_says_wins_and_is_called_so() -> None:
    architecture = _read(LLAMA, num_key_value_heads=4)
    assert architecture.states[0].planes[0].heads == 4
    assert _provenance(architecture)["num_key_value_heads"] == "override"
    nested = _read(_golden("google/gemma-3-4b-pt"), num_key_value_heads=2)
    assert nested.states[0].planes[0].heads == 2
