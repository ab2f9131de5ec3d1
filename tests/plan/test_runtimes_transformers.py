"""The policy ``transformers``: what it counts where no model runs, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from headwise.plan.allocation import Runtime, allocate
from headwise.plan.architectures import architecture_of
from headwise.plan.config import Config
from headwise.plan.errors import PlanError
from headwise.plan.layers import Architecture
from headwise.plan.request import Request
from headwise.plan.runtimes import runtime_named
from headwise.plan.states import Encoder, Grows, State, Window
from headwise.plan.storages import BF16, F16, F32, FP8, storage_named
from tests.plan.golden import GOLDEN
from tests.plan.loads import attention, convolution, cross, latent, model, recurrent


def _golden(name: str) -> Architecture:
    return architecture_of(Config(next(each.fields for each in GOLDEN if each.name == name)))


def _total(architecture: Architecture, request: Request, **options: Any) -> int:
    return allocate(architecture, request, runtime_named("transformers", **options)).total


def _model(*states: State, **more: Any) -> Architecture:
    return model(tuple(states), **more)


def test_a_window_is_held_as_a_view_of_what_the_last_step_worked_on() -> None:
    sliding = _model(attention(0, 3, 7, Window(5)))
    token = 3 * (7 + 7) * 2
    assert _total(sliding, Request(11)) == 5 * token
    assert _total(sliding, Request(11), count="tensors") == 4 * token
    assert _total(sliding, Request(11), last_step=11) == 11 * token
    assert _total(sliding, Request(11), last_step=11, count="tensors") == 4 * token
    # A step that checks two drafts works on two tokens more.
    assert _total(sliding, Request(11, speculative=2)) == 7 * token


def test_a_window_of_one_is_none() -> None:
    assert _total(_model(attention(0, 3, 7, Window(1))), Request(11)) == 11 * 3 * 14 * 2


def test_the_static_cache_has_all_its_places_at_once() -> None:
    both = model(attention(0, 3, 7), attention(1, 3, 7, Window(5)))
    token = 3 * (7 + 7) * 2
    assert _total(both, Request(2), cache="static", max_cache_len=13) == (13 + 5) * token
    assert _total(both, Request(2), cache="static", max_cache_len=4) == (4 + 4) * token
    assert _total(both, Request(2), cache="static") == (2 + 2) * token


def test_states_of_fixed_size_have_a_column_more_and_float32() -> None:
    hybrid = _model(convolution(0, 3, (5, 7)), recurrent(0, 5, 77))
    assert _total(hybrid, Request(9, batch=2)) == 2 * (4 * 35 * 2 + 5 * 77 * 4)
    assert _total(hybrid, Request(9, batch=2, state_storage=F16)) == 2 * (4 * 35 * 2 + 5 * 77 * 2)
    # Lightning attention keeps the model's type.
    assert _total(_model(recurrent(0, 5, 77), model_type="minimax"), Request(9)) == 5 * 77 * 2


def test_an_empty_cache_is_empty() -> None:
    assert _total(_model(attention(0, 3, 7), convolution(0, 3, (5, 7))), Request(0)) == 0


def test_falcon_40b_is_kept_for_all_query_heads() -> None:
    request = Request(2048)
    assert _total(_golden("tiiuae/falcon-40b"), request) == 2 * 60 * 128 * 64 * 2 * 2048
    assert _total(_golden("tiiuae/falcon-7b"), request) == 2 * 32 * 1 * 64 * 2 * 2048


def test_the_encoder_counts_once_for_each_sequence() -> None:
    crossing = _model(attention(0, 3, 7), cross(0, 3, 7, None))
    assert _total(crossing, Request(5, batch=2, encoder_length=11)) == 2 * 3 * 14 * 2 * (5 + 11)


def test_tensor_parallelism_deals_whole_heads_and_nothing_else() -> None:
    both = _model(attention(0, 6, 7), latent(0, 11, 3), recurrent(0, 6, 77))
    assert _total(both, Request(5, tp=3)) == 5 * (2 * 14 + 14) * 2 + 6 * 77 * 4


def _grows(extent: Any, **options: Any) -> bool:
    made = _model(attention(0, 3, 7, extent))
    runtime: Runtime = runtime_named("transformers", **options)
    return runtime.grows(made.states[0], Request(5), made)


def test_what_grows() -> None:
    assert _grows(Grows())
    assert not _grows(Window(5))
    assert _grows(Window(1))
    assert not _grows(Encoder(5))
    assert not _grows(Grows(), cache="static", max_cache_len=64)


def test_no_more_bytes_without_growth() -> None:
    gemma = _golden("google/gemma-2-9b")
    runtime = runtime_named("transformers")
    steps = [allocate(gemma, Request(context), runtime).total for context in (5000, 5001, 5002)]
    growth = sum(
        runtime.entry_bytes(state, Request(5000), gemma)
        for state in gemma.states
        if runtime.grows(state, Request(5000), gemma)
    )
    assert steps[1] - steps[0] == steps[2] - steps[1] == growth == 2 * 21 * 8 * 256 * 2


def _refusal(architecture: Architecture, request: Request, **options: Any) -> str:
    with pytest.raises(PlanError) as caught:
        _total(architecture, request, **options)
    return str(caught.value)


PLAIN = _model(attention(0, 6, 7))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cache": "paged"}, "transformers: expected cache to be one of dynamic, static, got 'paged'"),
        ({"count": "pages"}, "transformers: expected count to be one of storage, tensors, got 'pages'"),
        ({"last_step": 0}, "transformers: expected last_step to be a whole number from 1 to 1099511627776, got 0"),
        (
            {"max_cache_len": 9},
            "transformers: expected max_cache_len only with cache=static, got cache=dynamic",
        ),
        (
            {"cache": "static", "max_cache_len": 4},
            "transformers: expected max_cache_len of at least the 5 tokens asked for, got 4",
        ),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], text: str) -> None:
    assert _refusal(PLAIN, Request(5), **options) == text


def test_a_cache_has_the_type_of_the_model() -> None:
    assert "expected a --kv-dtype that it has, one of bf16, f16, f32, got fp8" in _refusal(
        PLAIN, Request(5, storage=FP8)
    )
    text = _refusal(PLAIN, Request(5, storage=BF16, value_storage=F32))
    assert text.startswith("transformers: expected keys and values in one dtype")
    assert _total(PLAIN, Request(5, storage=storage_named("f32"))) == 5 * 6 * 14 * 4


def test_heads_are_never_copied() -> None:
    assert _refusal(PLAIN, Request(5, tp=4)) == (
        "transformers: expected --tp to divide the 6 heads of key in layer 0, got 4; it keeps no copies of heads"
    )


def test_models_that_take_no_static_cache() -> None:
    falcon = next(each.fields for each in GOLDEN if each.name == "tiiuae/falcon-7b")
    for architecture in (
        _golden("MiniMaxAI/MiniMax-Text-01"),
        architecture_of(Config({**falcon, "alibi": True})),
    ):
        text = f"transformers: expected cache=dynamic for {architecture.model_type}, got cache=static"
        assert _refusal(architecture, Request(5), cache="static") == text


def test_an_image_must_fit_into_the_one_static_cache_of_llama_3_2() -> None:
    vision = _golden("meta-llama/Llama-3.2-11B-Vision")
    text = "transformers: expected max_cache_len of at least the 6404 tokens of the encoder, got 100"
    assert _refusal(vision, Request(5), cache="static", max_cache_len=100) == text
    places = 2 * 40 * 8 * 128 * 2
    assert _total(vision, Request(5), cache="static", max_cache_len=7000) == 7000 * places
