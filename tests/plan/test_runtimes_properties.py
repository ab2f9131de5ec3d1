"""What has to hold for every policy, whatever the model and the load."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.plan.allocation import Runtime, allocate
from headwise.plan.layers import Architecture
from headwise.plan.request import Request
from headwise.plan.runtimes import runtime_named
from headwise.plan.storages import storage_named
from tests.plan.loads import models, requests

RUNTIMES: dict[str, list[dict[str, object]]] = {
    "logical": [{}],
    "vllm": [
        {},
        {"block_size": 7, "max_num_batched_tokens": 5},
        {"max_num_batched_tokens": 100, "hybrid": True},
    ],
    "llamacpp": [{}, {"unified": True, "n_ubatch": 33}, {"swa_full": True}, {"flash_attention": False}],
    "sglang": [{}, {"page_size": 16}, {"page_size": 5, "radix_cache": False, "swa_full_tokens_ratio": "0.3"}],
}
NAMED = [(name, options) for name, choices in RUNTIMES.items() for options in choices]
FEW = settings(max_examples=40)
EACH = pytest.mark.parametrize(
    ("name", "options"), NAMED, ids=[f"{name}-{number}" for number, (name, _) in enumerate(NAMED)]
)


def total(architecture: Architecture, request: Request, runtime: Runtime) -> int:
    return allocate(architecture, request, runtime).total


@EACH
@FEW
@given(architecture=models(uniform=True), request_=requests(), more=st.integers(1, 2000))
def test_more_tokens_never_take_less(name, options, architecture, request_, more):
    runtime = runtime_named(name, **options)
    longer = replace(request_, context=request_.context + more)
    assert total(architecture, request_, runtime) <= total(architecture, longer, runtime)


@EACH
@FEW
@given(architecture=models(uniform=True), request_=requests())
def test_one_more_token_never_takes_less(name, options, architecture, request_):
    """Where the context leaves the prefix, or a block or window begins."""
    runtime = runtime_named(name, **options)
    at_prefix = replace(request_, context=max(1, request_.shared_prefix))
    for start in (request_, at_prefix):
        longer = replace(start, context=start.context + 1)
        assert total(architecture, start, runtime) <= total(architecture, longer, runtime)


@EACH
@FEW
@given(architecture=models(uniform=True), request_=requests(), more=st.integers(1, 9))
def test_more_sequences_never_take_less(name, options, architecture, request_, more):
    runtime = runtime_named(name, **options)
    larger = replace(request_, batch=request_.batch + more)
    assert total(architecture, request_, runtime) <= total(architecture, larger, runtime)


@EACH
@FEW
@given(architecture=models(uniform=True), request_=requests(tp=False))
def test_nothing_goes_below_the_logical_minimum(name, options, architecture, request_):
    # In the same storage for all states: llama.cpp keeps recurrent ones in float32 whatever it is asked.
    request_ = replace(request_, state_storage=storage_named("f32"))
    logical = allocate(architecture, request_, runtime_named("logical"))
    allocated = allocate(architecture, request_, runtime_named(name, **options))
    assert logical.total <= allocated.total
    for (state, least), (same, taken) in zip(logical.per_state, allocated.per_state, strict=True):
        assert state is same
        assert least.total <= taken.total
        assert least.entries <= taken.entries


@EACH
@FEW
@given(architecture=models(uniform=True), request_=requests())
def test_planes_and_padding_make_up_the_whole(name, options, architecture, request_):
    allocation = allocate(architecture, request_, runtime_named(name, **options))
    for state, taken in allocation.per_state:
        assert taken.total == sum(size for _, size in taken.planes) + taken.padding
        assert [plane for plane, _ in taken.planes] == [plane.name for plane in state.planes]
    roles = ("key", "value", "latent", "indexer", "convolution", "recurrent")
    assert allocation.total == sum(allocation.role_bytes(role) for role in roles) + allocation.padding_bytes


@EACH
@FEW
@given(architecture=models(uniform=True), request_=requests())
def test_an_empty_cache_takes_nothing(name, options, architecture, request_):
    empty = replace(request_, context=0, shared_prefix=0)
    assert total(architecture, empty, runtime_named(name, **options)) == 0


@EACH
@FEW
@given(architecture=models(uniform=True), request_=requests(prefix=False))
def test_a_shared_prefix_never_costs(name, options, architecture, request_):
    runtime = runtime_named(name, **options)
    shared = replace(request_, shared_prefix=request_.context // 2)
    assert total(architecture, shared, runtime) <= total(architecture, request_, runtime)


@pytest.mark.parametrize(("name", "options"), [each for each in NAMED if each[0] != "llamacpp"])
@FEW
@given(architecture=models(uniform=True), request_=requests(tp=True))
def test_ranks_together_hold_at_least_the_whole(name, options, architecture, request_):
    """As much where heads are dealt out evenly, more where ranks hold copies or padding; one rank never more."""
    runtime = runtime_named(name, **options)
    alone = replace(request_, tp=1)
    dealt = allocate(architecture, request_, runtime)
    assert dealt.total_over_ranks == dealt.total * request_.tp
    assert dealt.total_over_ranks >= total(architecture, alone, runtime_named("logical"))
    assert dealt.total <= total(architecture, alone, runtime)
