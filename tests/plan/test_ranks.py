"""Tensor parallelism deals out whole query heads: what no runtime can run is no plan."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from headwise.plan.allocation import allocate
from headwise.plan.architectures import WRAPPERS, architecture_of
from headwise.plan.compare import compare
from headwise.plan.config import Config
from headwise.plan.errors import PlanError
from headwise.plan.layers import Attention
from headwise.plan.request import Request
from headwise.plan.runtimes import RUNTIMES, runtime_named
from headwise.plan.runtimes.transformers import QUERIES_WHOLE
from headwise.plan.states import Grows
from tests.plan.complete import COMPLETE
from tests.plan.made import cross, grouped, latent, model, recurrent
from tests.plan.test_plan import planned

# llama.cpp deals out layers, and refuses ranks of heads altogether.
DEALING = [name for name in RUNTIMES if name != "llamacpp"]
EACH = pytest.mark.parametrize("runtime", DEALING)


def refusal(architecture, tp: int, runtime: str) -> str:
    with pytest.raises(PlanError) as refused:
        allocate(architecture, Request(7, tp=tp), runtime_named(runtime))
    return str(refused.value)


@EACH
@pytest.mark.parametrize(("heads", "kv_heads", "tp"), [(28, 4, 8), (32, 8, 64), (71, 1, 2), (6, 6, 12)])
def test_keys_and_values_may_be_copied_but_query_heads_not(runtime, heads, kv_heads, tp):
    text = refusal(model(grouped(0, heads, kv_heads, 8, 16)), tp, runtime)
    if runtime == "transformers" and kv_heads % tp:
        assert text.startswith(f"transformers: expected --tp to divide the {kv_heads} heads")
    else:
        assert text == f"--tp: expected a number of ranks that divides the {heads} query heads of layer 0, got {tp}"


@EACH
@pytest.mark.parametrize(
    ("made", "heads"),
    [
        (latent(0, 6, 23, 5, 7, 13, 17), [6]),
        (cross(0, 6, 11, 17, 29), [6]),
        (grouped(0, 6, 6, 11, 17, causal=False), [6]),
        (grouped(0, 12, 3, 11, 17), [12]),
        (recurrent(0), []),
    ],
    ids=["latent", "cross", "encoder", "grouped", "recurrent"],
)
def test_no_rank_ever_has_a_part_of_a_head(runtime, made, heads):
    architecture = model(made)
    fits = []
    for tp in range(1, 15):
        try:
            allocate(architecture, Request(7, tp=tp), runtime_named(runtime))
        except PlanError:
            continue
        fits.append(tp)
    # SGLang holds no cross attention on any number of ranks.
    assert fits or (runtime, made.kind) == ("sglang", "decoder")
    assert not [tp for tp in fits for each in heads if each % tp]
    if runtime != "transformers" and heads == [12]:
        assert fits == [1, 3, 6, 12]


def test_layers_with_other_heads_count_too():
    mixed = model(grouped(0, 8, 4, 11, 17), grouped(1, 6, 2, 11, 17))
    text = "--tp: expected a number of ranks that divides the 6 query heads of layer 1, got 4"
    assert refusal(mixed, 4, "logical") == text
    assert allocate(mixed, Request(7, tp=2), runtime_named("logical")).total


def test_an_indexer_lies_whole_on_every_rank():
    layer = latent(0, 6, 23, 5, 7, 13, 17)
    indexer = Attention("indexer", 5, 1, 11, 0, Grows(), True, ())
    made = model(replace(layer, attentions=(*layer.attentions, indexer)))
    assert allocate(made, Request(7, tp=3), runtime_named("logical")).total == 7 * 28 * 2


def test_latent_attention_that_transformers_leaves_whole_takes_any_number_of_ranks():
    configuration = pytest.importorskip("transformers.models.auto.configuration_auto")
    whole = set()
    for name, fields in COMPLETE.items():
        try:
            made = architecture_of(Config(fields))
        except PlanError:  # something is missing that no class has
            continue
        latents = any(each.kind == "latent" for layer in made.layers for each in layer.attentions)
        if not latents or name not in configuration.CONFIG_MAPPING:
            continue
        if not any("attn" in key for key in configuration.CONFIG_MAPPING[name].base_model_tp_plan):
            whole.add(name)
            assert allocate(made, Request(7, tp=7), runtime_named("transformers")).total
        else:
            assert "query heads" in refusal(made, 7, "transformers")
        assert "query heads" in refusal(made, 7, "vllm")
    assert whole == {name for name in QUERIES_WHOLE if name in configuration.CONFIG_MAPPING and name not in WRAPPERS}
    assert {name for name in QUERIES_WHOLE - whole if WRAPPERS.get(name, ("", ""))[1] != "deepseek_v3"} == {"kimi_k2"}


def test_a_whole_plan_and_a_comparison_are_refused_alike():
    text = re.escape("--tp: expected a number of ranks that divides the 6 query heads of layer 0, got 4")
    with pytest.raises(PlanError, match=text):
        planned(model(grouped(0, 6, 2, 11, 17)), tp=4)
    told = planned(model(grouped(0, 6, 2, 11, 17)), tp=3 * 2)
    assert compare(told, "mha,mqa").rows[2].plan.request.tp == 6
