"""What is counted of a layout, against the tensors of the layer and its cache, and against loops over all pairs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headwise.bench.layouts.costs import Load, cost_of
from headwise.bench.layouts.runners import build_runner, new_cache, projection_parameters, repeating
from headwise.bench.layouts.specs import LayoutSpec, parse_layouts
from tests.bench.layouts import ALL, DEVICE, LOAD, SHAPE, spec

SPECS = parse_layouts(ALL, SHAPE)
named = pytest.mark.parametrize("layout", SPECS, ids=lambda each: each.name)
# What the layers call the projections of the plan.
NAMES = {
    "query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj", "key value down": "kv_a_proj_with_mqa",
    "key value up": "kv_b_proj",
}  # fmt: skip


def visible_pairs(layout: LayoutSpec, query: int) -> int:
    """Keys that a query sees, over all heads, one pair at a time."""
    count = 0
    for head in range(layout.heads):
        for key in range(query + 1):
            near = query - key < layout.window
            count += near or head >= layout.local_heads
    return count


@named
def test_parameters_are_those_of_the_layer(layout):
    cost = cost_of(layout, LOAD)
    layer = build_runner(layout, cost, LOAD, seed=0).layer
    held = {name: getattr(layer, NAMES[name]).weight.numel() for name in cost.parameters}
    assert cost.parameters == held
    assert cost.parameters_total == sum(held.values()) == projection_parameters(layer)
    every = sum(weight.numel() for name, weight in layer.named_parameters() if "layernorm" not in name)
    assert cost.parameters_total == every


def memory_of(cache: object) -> int:
    """Bytes of the storages of all tensors that something holds, however deep."""
    found: dict[int, int] = {}
    seen: set[int] = set()

    def look(thing: object) -> None:
        if id(thing) in seen:
            return
        seen.add(id(thing))
        if isinstance(thing, torch.Tensor):
            storage = thing.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(thing, (list, tuple)):
            for each in thing:
                look(each)
        elif hasattr(thing, "__dict__") and not isinstance(thing, type):
            look(list(vars(thing).values()))

    look(cache)
    return sum(found.values())


@named
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("context", [5, 31, 67])  # within the window, within its slack, beyond both
def test_planned_bytes_are_those_of_the_tensors_of_the_cache(layout, dtype, context):
    load = Load(3, context, dtype)
    cache = new_cache(layout, load)
    assert cost_of(layout, load).planned == cache.nbytes == memory_of(cache)


def test_a_window_needs_its_keys_and_plans_free_slots_besides():
    load = Load(3, 67, "float32")
    cost = cost_of(spec("mixed:2@7"), load)
    token = 2 * 10 * 4  # key and value of one head
    assert cost.needed == 3 * token * (2 * 7 + 4 * 67)
    assert cost.planned == 3 * token * (2 * (7 + 16) + 4 * 67)


@named
def test_softmax_elements_are_the_visible_pairs(layout):
    cost = cost_of(layout, LOAD)
    pairs = [visible_pairs(layout, query) for query in range(LOAD.context)]
    assert cost.prefill.softmax.visible == LOAD.batch * sum(pairs)
    assert cost.decode.softmax.visible == LOAD.batch * pairs[-1]


@named
def test_flops_are_two_for_every_weight_and_token_and_for_every_element_of_a_pair(layout):
    cost = cost_of(layout, LOAD)
    tokens, total = LOAD.context, cost.parameters_total
    pairs = [visible_pairs(layout, query) for query in range(tokens)]
    if not layout.latent:
        assert cost.prefill.total.visible == 2 * LOAD.batch * (tokens * total + sum(pairs) * 2 * layout.head_dim)
        assert cost.decode.total.visible == 2 * LOAD.batch * (total + pairs[-1] * 2 * layout.head_dim)
        return
    up, wide = cost.parameters["key value up"], 2 * layout.head_dim + layout.rope
    narrow = 2 * layout.latent + layout.rope
    read = {"expanded": tokens * total + sum(pairs) * wide, "absorbed": tokens * total + sum(pairs) * narrow}
    step = {"expanded": total - up + tokens * up + pairs[-1] * wide, "absorbed": total + pairs[-1] * narrow}
    assert cost.prefill.total.visible == 2 * LOAD.batch * min(read.values())
    assert cost.decode.total.visible == 2 * LOAD.batch * min(step.values())
    assert read[str(cost.prefill_form)] == min(read.values())
    assert step[str(cost.decode_form)] == min(step.values())


@named
def test_the_roofline_reads_weights_and_what_is_seen_of_the_cache(layout):
    cost = cost_of(layout, LOAD)
    read = 4 * cost.parameters_total + cost.needed
    assert cost.least_decode(DEVICE) == max(read / 7e9, cost.decode.total.visible / 11e9)
    assert cost.least_prefill(DEVICE) == max(read / 7e9, cost.prefill.total.visible / 11e9)


def test_the_form_that_is_counted_is_the_one_that_runs(monkeypatch):
    from headwise.nn import LatentAttention

    layout = spec("mla:11+4")
    cost = cost_of(layout, LOAD)
    runner, ran = build_runner(layout, cost, LOAD, seed=0), []
    forward = LatentAttention.forward
    monkeypatch.setattr(LatentAttention, "forward", lambda self, *a, form, **o: ran.append(form) or forward(self, *a, form=form, **o))  # fmt: skip # noqa: E501
    cache = runner.cache(LOAD)
    with torch.inference_mode():
        runner.run(torch.randn(3, 30, 23), cache)
        runner.run(torch.randn(3, 1, 23), cache)
    assert ran == [cost.prefill_form, cost.decode_form]


def test_what_repeats_shares_the_weights_and_copies_each_kv_head_for_its_group(monkeypatch):
    layout = spec("gqa:2")
    runner = build_runner(layout, cost_of(layout, LOAD), LOAD, seed=0)
    other, seen = repeating(runner), []
    assert other.layer is runner.layer
    assert (runner.name, other.name) == ("gqa:2", "gqa:2 repeated")
    plain = nn.functional.scaled_dot_product_attention

    def watched(query, key, value, **options):
        seen.append((key, value))
        return plain(query, key, value, **options)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", watched)
    with torch.inference_mode():
        other.run(torch.randn(3, 5, 23))
    ((key, value),) = seen
    assert key.shape == value.shape == (3, 6, 5, 10)
    for head in range(6):
        assert torch.equal(key[:, head], key[:, head // 3 * 3])


def test_the_same_seed_gives_the_same_weights_and_leaves_torchs_own_numbers_alone():
    layout, cost = spec("gqa:2"), cost_of(spec("gqa:2"), LOAD)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, same, other = (build_runner(layout, cost, LOAD, seed=seed).layer for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first.q_proj.weight, same.q_proj.weight)
    assert not torch.equal(first.q_proj.weight, other.q_proj.weight)
