"""Growth is what the total grows by: for every runtime, against the total of a context and of one far behind it."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.plan.allocation import allocate
from headwise.plan.answers import plan_architecture
from headwise.plan.request import Request
from headwise.plan.runtimes import runtime_named
from headwise.plan.states import Chunk, Window
from tests.plan.loads import attention, cross, model, models
from tests.plan.test_runtimes_properties import NAMED

FAR = 10**11
TOKEN = 4 * 64 * 2 * 2
EVERY = [*NAMED, ("transformers", {}), ("transformers", {"cache": "static"})]
EACH = pytest.mark.parametrize(("name", "options"), EVERY)


def slope(architecture, runtime, tp: int = 1) -> Fraction:
    """Bytes of a token between two contexts that are far apart, so that no page matters."""
    near, far = (allocate(architecture, Request(context, tp=tp), runtime).total for context in (10**6, 10**6 + FAR))
    return Fraction(far - near, FAR)


@EACH
@settings(max_examples=25)
@given(architecture=models(uniform=True), tp=st.sampled_from([1, 2, 4]))
def test_growth_is_what_the_total_grows_by(name, options, architecture, tp):
    tp = 1 if name == "llamacpp" else tp
    runtime = runtime_named(name, **options)
    growth = runtime.growth(architecture, Request(7, tp=tp))
    assert abs(slope(architecture, runtime, tp) - growth) < Fraction(1, 100)
    assert plan_architecture(architecture, Request(7, tp=tp), runtime).growth == ceil(growth)


def test_the_sliding_pool_of_gpt_oss_grows_as_well():
    layers = [attention(index, 8, 64, None if index % 2 else Window(128)) for index in range(24)]
    told = plan_architecture(model(*layers, model_type="gpt_oss"), Request(7), runtime_named("sglang"))
    assert told.growth == 44_237  # 24,576 x 1.8 = 44,236.8
    chunked = [attention(index, 8, 64, None if index % 2 else Chunk(128)) for index in range(24)]
    llama = plan_architecture(model(*chunked, model_type="llama4"), Request(7), runtime_named("sglang"))
    assert llama.growth == 44_237


def test_empty_places_beside_full_layers_grow_with_them():
    layers = [attention(index, 4, 64, Window(9) if index < 10 else None) for index in range(17)]
    runtime = runtime_named("vllm")
    assert runtime.growth(model(*layers), Request(7)) == 10 * TOKEN == slope(model(*layers), runtime)


def test_padding_of_values_grows_with_the_cells():
    wide = model(attention(0, 4, 64), attention(1, 4, 64, value_dim=80))
    runtime = runtime_named("llamacpp", flash_attention=False)
    assert runtime.growth(wide, Request(7)) == 2 * 4 * (64 + 80) * 2 == slope(wide, runtime)


def test_an_encoders_places_in_a_static_cache_grow_with_the_text():
    crossing = model((attention(0, 4, 64), cross(0, 4, 64, 17)), model_type="mllama")
    for options, layers in (({}, 1), ({"cache": "static"}, 2), ({"cache": "static", "max_cache_len": 2 * FAR}, 0)):
        runtime = runtime_named("transformers", **options)
        assert runtime.growth(crossing, Request(7)) == layers * TOKEN == slope(crossing, runtime)
