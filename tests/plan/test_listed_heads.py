"""Models whose heads headwise has listed layer by layer: planned as they are, not as they were before."""

from __future__ import annotations

import json

import pytest
import torch

from headwise.models import load
from headwise.models.packing import PACKINGS
from headwise.models.weights import LAYERS_KEY, heads_of
from headwise.plan import PlanError, plan
from headwise.plan.architectures import fields, registry
from headwise.surgery.export import export
from tests.surgery.resized import resized

CONTEXT = 4  # below every window
# Kind of tiny model, then query heads and KV heads of its middle layer.
KINDS = {
    "bert": (3, 3), "gemma2": (3, 1), "gpt2": (3, 3), "gpt-neox": (3, 3), "llama": (4, 2), "mistral, window 5": (4, 1),
    "phi3": (4, 2), "qwen2": (4, 2), "qwen3": (5, 1),
}  # fmt: skip
FIELDS = {
    "model_type": "llama", "hidden_size": 42, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 10, "max_position_embeddings": 64, LAYERS_KEY: [[6, 2], [4, 2], [3, 1]],
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_bytes_layers_parameters_and_flops_are_those_of_the_model(name, tmp_path):
    made = resized(name, *KINDS[name], [1])
    folder = export(made, tmp_path / "reshaped", format="headwise")
    planned = plan(folder, context=CONTEXT, kv_dtype="f32", runtime="transformers")
    attentions = [layer.attentions[0] for layer in planned.architecture.layers]
    assert [(each.heads, each.kv_heads) for each in attentions] == [
        (layout.num_heads, layout.num_kv_heads) for layout in made.layouts
    ]
    heads = [heads_of(made, layer) for layer in range(made.num_layers)]
    matrices = [tensor for each in heads for tensor in (each.query, each.key, each.value, each.output)]
    biases = [
        tensor for each in heads for tensor in (each.query_bias, each.key_bias, each.value_bias, each.output_bias)
    ]
    weights = sum(tensor.numel() for tensor in matrices)
    assert planned.parameters.total == weights + sum(tensor.numel() for tensor in biases if tensor is not None)
    assert planned.prefill.projections == 2 * weights * CONTEXT
    width = sum(layout.num_heads * layout.head_dim for layout in made.layouts)
    assert planned.prefill.scores.dense == 2 * width * CONTEXT**2
    if name != "bert":
        with torch.no_grad():
            cache = load(folder).model(torch.ones(1, CONTEXT, dtype=torch.long), use_cache=True).past_key_values
        assert planned.total == sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def test_the_list_is_called_as_where_it_is_written():
    assert fields.LAYERS_KEY == LAYERS_KEY
    assert set(PACKINGS) == registry.LISTED


def test_where_the_numbers_came_from_and_what_the_list_covers():
    provenance = plan(FIELDS).architecture.layers[1].states[0].provenance
    assert provenance["num_key_value_heads"] == f"config {LAYERS_KEY}"
    assert plan(FIELDS, overrides={LAYERS_KEY: None}).per_token == 3 * 2 * (10 + 10) * 2
    assert plan(FIELDS, overrides={LAYERS_KEY: [[6, 1]] * 3}).per_token == 3 * (10 + 10) * 2
    with pytest.raises(PlanError, match=rf"--set num_key_value_heads: expected none beside {LAYERS_KEY}"):
        plan(FIELDS, overrides={"num_key_value_heads": 1})


@pytest.mark.parametrize("runtime", ["vllm", "llamacpp", "sglang"])
def test_runtimes_that_cannot_open_it_are_refused(runtime):
    with pytest.raises(PlanError, match=f"expected logical or transformers for a llama .* got {runtime}, which can't"):
        plan(FIELDS, runtime=runtime)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({LAYERS_KEY: [[6, 2], [4, 2]]}, "expected a list of pairs of whole numbers with 3 entries"),
        ({LAYERS_KEY: [[6, 2], [4, 2], [3]]}, "expected a list of pairs of whole numbers"),
        ({LAYERS_KEY: [[6, 2], [4, 2], [3, 0]]}, "expected a whole number at least 1"),
        ({LAYERS_KEY: [[6, 2], [4, 2], [3, 2]]}, r"expected \[query heads, KV heads\] .* the first a multiple of the"),
        ({LAYERS_KEY: 7}, "expected a list of pairs of whole numbers, got 7"),
        ({"model_type": "gpt_neox"}, r"expected \[query heads, KV heads\] of each layer, both the same"),
        ({"model_type": "olmo2"}, "expected none in a olmo2, .*headwise writes it for bert, gemma2, .* only"),
        ({"model_type": "llava", "text_config": FIELDS}, "expected none in a llava"),
    ],
)
def test_lists_that_are_none_of_layers_are_refused(changed, message):
    with pytest.raises(PlanError, match=rf"{LAYERS_KEY}: {message}"):
        plan(json.loads(json.dumps(FIELDS | {"attention_bias": True} | changed)))
