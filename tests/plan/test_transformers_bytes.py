"""The policy ``transformers`` against running models: not a byte more or less than their caches hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from transformers import EncoderDecoderCache, StaticCache

from headwise.plan.allocation import allocate
from headwise.plan.architectures import FAMILIES, architecture_of
from headwise.plan.config import Config
from headwise.plan.defaults import CLASS_DEFAULTS
from headwise.plan.layers import Architecture
from headwise.plan.request import Request
from headwise.plan.runtimes import runtime_named
from headwise.plan.storage import Storage
from headwise.plan.storages import BF16, F16, F32
from tests.plan.tiny import DECODERS, ENCODER_DECODERS, ENCODERS, WRAPPED, model_type_of
from tests.plan.tiny_models import (
    ENCODER_TOKENS,
    Run,
    build,
    build_wrapped,
    cache_bytes,
    fields,
    projections_of,
    saved_fields,
)

# Windows and chunks are 5: prompts below, at and above, and steps across.
PROMPTS = (3, 5, 9)
STEPS = 3
BATCH = 2

# Read and planned, but no tiny model of transformers runs them: the code of these families isn't part of it.
BY_SOURCE = frozenset(
    """
    RefinedWeb RefinedWebModel Yi baichuan bailing_moe bailing_moe_v2 chatglm deci deepseek hunyuan internlm internlm2
    kimi_k2 mimo mimo_v2 minicpm minimax_m1 minimax_text_01 nemotron-nas openelm phi4mm qwen stablelm_epoch step3_text
    """.split()
)

NO_STATIC_CACHE = ("minimax", "falcon-heads")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """More threads cost more than they bring at these sizes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def _model(case: str) -> torch.nn.Module:
    return build(case)


def _architecture(case: str) -> Architecture:
    return architecture_of(Config(fields(case)))


def _planned(architecture: Architecture, tokens: int, storage: Storage = BF16, **options: Any) -> tuple[int, int]:
    """Bytes of tensors and of storage that the policy says."""
    request = Request(tokens, BATCH, storage, encoder_length=ENCODER_TOKENS)
    return tuple(  # type: ignore[return-value]
        allocate(architecture, request, runtime_named("transformers", count=count, **options)).total
        for count in ("tensors", "storage")
    )


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("case", [*DECODERS, *ENCODER_DECODERS])
def test_a_dynamic_cache_holds_the_bytes_that_are_planned(case: str, prompt: int) -> None:
    architecture, run = _architecture(case), Run(_model(case))
    held = run.step(prompt)
    assert cache_bytes(held) == _planned(architecture, prompt, last_step=prompt)
    for tokens in range(prompt + 1, prompt + 1 + STEPS):
        assert cache_bytes(run.step(1)) == _planned(architecture, tokens)


@pytest.mark.parametrize(("dtype", "storage"), [(torch.float32, F32), (torch.float16, F16)])
@pytest.mark.parametrize(
    "case", ["gemma2", "deepseek_v32", "mamba", "jamba", "zamba2", "nemotron_h", "qwen3_next", "kimi_linear", "minimax"]
)
def test_states_have_the_type_of_the_model_or_their_own(case: str, dtype: torch.dtype, storage: Storage) -> None:
    architecture, run = _architecture(case), Run(build(case, dtype))
    run.step(7)
    assert cache_bytes(run.step(1)) == _planned(architecture, 8, storage)


@pytest.mark.parametrize("outer", WRAPPED)
def test_a_model_of_several_media_keeps_what_its_language_model_keeps(outer: str) -> None:
    said, model = build_wrapped(outer)
    run = Run(model)
    assert cache_bytes(run.step(9)) == _planned(architecture_of(Config(said)), 9, last_step=9)
    assert cache_bytes(run.step(1)) == _planned(architecture_of(Config(said)), 10)


@pytest.mark.parametrize("places", [12, 17])
@pytest.mark.parametrize("case", [case for case in [*DECODERS, *ENCODER_DECODERS] if case not in NO_STATIC_CACHE])
def test_a_static_cache_holds_the_bytes_that_are_planned(case: str, places: int) -> None:
    architecture, model = _architecture(case), _model(case)
    # T5 as a whole tells the cache the depth of its encoder.
    config = model.decoder.config if "t5" in case else model.config
    made = StaticCache(config=config, max_cache_len=places)
    if model.config.is_encoder_decoder:
        made = EncoderDecoderCache(made, StaticCache(config=config, max_cache_len=ENCODER_TOKENS))
    run = Run(model, made)
    for tokens, step in ((4, 4), (5, 1), (6, 1)):
        held = run.step(step)
        assert cache_bytes(held) == _planned(architecture, tokens, cache="static", max_cache_len=places)


def _projections(architecture: Architecture) -> Counter[tuple[int, int, bool]]:
    attentions = [attention for layer in architecture.layers for attention in layer.attentions]
    return Counter(
        (projection.inputs, projection.outputs, projection.bias)
        for attention in attentions
        for projection in attention.projections
        if not projection.shared
    )


@pytest.mark.parametrize("case", [*DECODERS, *ENCODER_DECODERS, *ENCODERS])
def test_projections_are_the_matrices_of_the_model(case: str) -> None:
    assert _projections(_architecture(case)) == projections_of(_model(case))


# Names of the flags that decide about biases, and one case of each class that has it. InternLM 3 allows no flag alone.
FLAGS = ("attention_bias", "attention_out_bias", "qkv_bias", "use_bias", "use_qkv_bias", "enable_bias", "bias")
FLAGGED = {
    (model_type_of(case), flag): case
    for case in [*DECODERS, *ENCODERS]
    for flag in FLAGS
    if flag in CLASS_DEFAULTS[model_type_of(case)][1] and model_type_of(case) != "internlm3"
}


@pytest.mark.parametrize(("case", "flag"), [(case, flag) for (_, flag), case in FLAGGED.items()])
def test_a_flag_gives_biases_to_the_matrices_that_have_them(case: str, flag: str) -> None:
    given = fields(case)
    other = not given.get(flag, CLASS_DEFAULTS[model_type_of(case)][1][flag])
    architecture = architecture_of(Config({**given, flag: other}))
    assert _projections(architecture) == projections_of(build(case, **{flag: other}))


@pytest.mark.parametrize("case", [*DECODERS, *ENCODER_DECODERS, *ENCODERS])
def test_the_config_that_the_class_saves_is_read_the_same(case: str) -> None:
    saved = architecture_of(Config(saved_fields(_model(case))))
    published = _architecture(case)
    assert saved.layers == published.layers
    assert saved.width == published.width
    assert saved.max_context == published.max_context


@pytest.mark.parametrize("case", ENCODERS)
def test_an_encoder_keeps_nothing(case: str) -> None:
    architecture = _architecture(case)
    assert architecture.states == ()
    assert _planned(architecture, 9) == (0, 0)


def test_every_family_runs_or_is_said_not_to() -> None:
    run = {model_type_of(case) for case in [*DECODERS, *ENCODER_DECODERS, *ENCODERS]}
    assert run | BY_SOURCE == set(FAMILIES)
    assert not run & BY_SOURCE
