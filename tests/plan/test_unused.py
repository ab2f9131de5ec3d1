"""What would change nothing in a model is refused by the name under which it was asked for."""

from __future__ import annotations

import re

import pytest

from headwise.plan import PlanError, plan
from tests.plan.complete import COMPLETE, ENCODER

FLASH = {"runtime": "vllm", "runtime_options": {"flashmla_fp8": True}}


@pytest.mark.parametrize(
    ("model_type", "asked", "words"),
    [
        ("llama", {"encoder_length": 500}, "--encoder-length: expected a model with an encoder, llama has none"),
        ("bert", {"encoder_length": 500}, "--encoder-length: expected a model with an encoder, bert has none"),
        (
            "llama",
            {"state_dtype": "f32"},
            "--state-dtype: expected a model with convolution or recurrent states, llama",
        ),
        (
            "deepseek_v3",
            {"value_dtype": "int8"},
            "--value-dtype: expected a model with values beside its keys, deepseek",
        ),
        ("mamba2", {"value_dtype": "int8"}, "--value-dtype: expected a model with values beside its keys, mamba2 has"),
        ("llama", {**FLASH, "kv_dtype": "fp8"}, "vllm: flashmla_fp8=true: expected a model with latents, llama has"),
        ("deepseek_v3", FLASH, "vllm: flashmla_fp8=true: expected --kv-dtype fp8 with it, got bf16"),
    ],
)
def test_what_changes_nothing_is_refused(model_type, asked, words):
    with pytest.raises(PlanError, match=f"^{re.escape(words)}"):
        plan(COMPLETE[model_type], context=101, **asked)


@pytest.mark.parametrize(
    ("model_type", "asked"),
    [
        ("t5", {"encoder_length": 501}),
        ("mamba2", {"state_dtype": "fp8"}),
        ("qwen3_next", {"state_dtype": "fp8"}),
        ("llama", {"value_dtype": "int8"}),
        ("deepseek_v3", {**FLASH, "kv_dtype": "fp8"}),
    ],
)
def test_what_changes_something_is_taken(model_type, asked):
    plain = {name: value for name, value in asked.items() if name in ("runtime", "kv_dtype")}
    before = plan(COMPLETE[model_type], context=101, **{**ENCODER[model_type], **plain})
    assert plan(COMPLETE[model_type], context=101, **asked).total != before.total
