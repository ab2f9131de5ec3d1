"""Architectures whose attention transformers does not hand out: what happens to a user who asks for headwise there.

transformers (5.24) takes a registered name for every architecture. Those that keep their own attention fall into three
kinds: some look the name up in a table of their own and fail, some never ask for a mask and go on as they were, and
some would go on with headwise's masks and misread them, without a word. headwise refuses the last kind by name.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import transformers

from headwise.models import interface
from headwise.models.interface import NAME, register
from tests.models import tiny
from tests.models.refusals import refusal
from tests.study.tiny import tokenizer

register()
_SIZES: dict[str, Any] = {"vocab_size": tiny.VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_ENCODER: dict[str, Any] = _SIZES | {
    "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 37,
}  # fmt: skip
_FALCON: dict[str, Any] = {"hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 5}

# By the name of the class: what its config takes.
MISREAD: dict[str, dict[str, Any]] = {
    "BloomForCausalLM": _SIZES | {"hidden_size": 35, "n_layer": 2, "n_head": 5},
    "MptForCausalLM": _SIZES | {"d_model": 32, "n_layers": 2, "n_heads": 4},
    "XGLMForCausalLM": _SIZES | {"d_model": 40, "num_layers": 2, "attention_heads": 5, "ffn_dim": 37},
    "GPTNeoXJapaneseForCausalLM": _SIZES | _FALCON,
    "RoFormerForMaskedLM": _ENCODER,
    "MPNetForMaskedLM": _ENCODER,
    "LongformerForMaskedLM": _ENCODER | {"attention_window": 4},
}
LOOKED_UP: dict[str, dict[str, Any]] = {
    "FalconForCausalLM": _SIZES | _FALCON,
    "GPTNeoForCausalLM": _SIZES | {
        "hidden_size": 35, "num_layers": 2, "num_heads": 5, "attention_types": [[["global", "local"], 1]],
    },
}  # fmt: skip
UNTOUCHED: dict[str, dict[str, Any]] = {
    "DebertaV2ForMaskedLM": _ENCODER | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "XLNetLMHeadModel": _SIZES | {"d_model": 40, "n_layer": 2, "n_head": 5, "d_inner": 37},
    "MambaForCausalLM": _SIZES | {"hidden_size": 24, "num_hidden_layers": 2, "state_size": 5},
}


def make(name: str, implementation: str) -> Any:
    """A tiny model that was asked for this attention when it was made."""
    kind = getattr(transformers, name)
    options = (MISREAD | LOOKED_UP | UNTOUCHED)[name]
    return tiny.build(lambda: kind._from_config(kind.config_class(**options), attn_implementation=implementation))


def message(model_type: str) -> str:
    return (
        "headwise attention: expected an architecture that looks its attention up in transformers' registry, got "
        f"{model_type}, which has its own and would misread the masks; "
        'use attn_implementation="eager" for this model'
    )


@pytest.mark.parametrize("name", MISREAD)
def test_the_architecture_is_refused_by_name(name):
    model = make(name, NAME)
    with pytest.raises(ValueError, match=f"^{re.escape(message(model.config.model_type))}$"):
        model(input_ids=tiny.tokens(2, 8))


@torch.no_grad()
def test_what_the_refusal_guards_against(monkeypatch):
    """Without it BLOOM lets every token see what comes after it: the logits of the first change with the last."""
    monkeypatch.setattr(interface, "_calls_registered_attention", lambda module: True)
    tokens = tiny.tokens(1, 8)
    other = tokens.clone()
    other[0, -1] = tokens[0, -1] % 90 + 1
    for implementation, sees_ahead in (("eager", False), (NAME, True)):
        model = make("BloomForCausalLM", implementation)
        first, second = (model(input_ids=given).logits[0, 0] for given in (tokens, other))
        assert torch.equal(first, second) != sees_ahead


@pytest.mark.parametrize("name", LOOKED_UP)
def test_transformers_itself_refuses_it(name):
    with pytest.raises(KeyError, match=NAME):
        make(name, NAME)


@pytest.mark.parametrize("name", UNTOUCHED)
@torch.no_grad()
def test_it_runs_as_if_nothing_had_been_asked(name, monkeypatch):
    """transformers says nothing, and headwise is never called: only :func:`headwise.models.load` can tell."""
    calls: list[str] = []
    monkeypatch.setattr(interface, "_refuse_unknown", lambda *args: calls.append("headwise"))
    tokens = tiny.tokens(2, 8)
    asked, eager = (make(name, implementation)(input_ids=tokens).logits for implementation in (NAME, "eager"))
    assert torch.equal(asked, eager)
    assert calls == []


@pytest.mark.parametrize("name", [name for name in MISREAD | LOOKED_UP | UNTOUCHED if name != "MambaForCausalLM"])
def test_setting_it_later_leaves_the_model_as_it_was(name):
    """transformers warns and changes nothing."""
    model = make(name, "eager")
    model.set_attn_implementation(NAME)
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("BloomForCausalLM", f"model: cannot read the heads: {message('bloom')}"),
        (
            "DebertaV2ForMaskedLM",
            "model: expected attention layers that go through transformers' attention registry, got none in "
            "DebertaV2ForMaskedLM, so headwise cannot see its heads; give another architecture",
        ),
    ],
)
def test_loading_refuses_it_by_name(name, expected, tmp_path):
    make(name, "eager").save_pretrained(tmp_path / "model")
    tokenizer(wrapped=False).save_pretrained(tmp_path / "model")
    assert refusal(tmp_path / "model") == expected
