"""What a user says instead of the config: nothing of it may be without effect, a null among it."""

from __future__ import annotations

import re

import pytest

from headwise.plan import PlanError, plan
from headwise.plan.config import Config
from tests.plan.complete import COMPLETE, ENCODER

LLAMA = {
    "model_type": "llama",
    "hidden_size": 91,
    "num_attention_heads": 7,
    "num_key_value_heads": 1,
    "head_dim": 11,
    "num_hidden_layers": 3,
    "max_position_embeddings": 17,
}
NESTED = {
    "model_type": "llava",
    "text_config": {**LLAMA, "head_dim": 13},
    "vision_config": {"model_type": "clip_vision_model", "image_size": 29},
}


def refusal(fields: dict, **overrides: object) -> str:
    with pytest.raises(PlanError) as refused:
        plan(fields, overrides=overrides)
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("num_kv_heads", "near it are num_key_value_heads, num_attention_heads"),
        ("hiden_size", "near it are hidden_size"),
        ("nope", "--provenance shows those that are"),
        ("vocab_size", "--provenance shows those that are"),
        ("text_config.head_dim", "--provenance shows those that are"),
    ],
)
@pytest.mark.parametrize("fields", [LLAMA, NESTED], ids=["flat", "nested"])
def test_a_field_that_nothing_reads_is_refused(fields, name, near):
    told = refusal(fields, **{name: 7})
    start = f"--set: expected a field that is read for this model, got {name!r}, which changes nothing; "
    assert told.startswith(start)
    if fields is LLAMA and name != "text_config.head_dim":
        assert told == start + near


@pytest.mark.parametrize("fields", [LLAMA, NESTED], ids=["flat", "nested"])
def test_each_of_several_must_be_read(fields):
    assert plan(fields, overrides={"head_dim": 19, "num_key_value_heads": 7}).per_token == 3 * 2 * 7 * 19 * 2
    assert "got 'typo'" in refusal(fields, head_dim=19, typo=3)


@pytest.mark.parametrize("model_type", sorted(COMPLETE))
def test_every_field_of_a_family_that_its_plan_tells_of_may_be_overridden(model_type):
    """What provenance calls the config's own or a default of the class was read, so an override of it is no slip."""
    try:
        told = plan(COMPLETE[model_type], context=100, **ENCODER[model_type])
    except PlanError:
        return  # what is missing from its config is another test's concern
    fields = dict(told.architecture.provenance)
    for state in told.architecture.states:
        fields |= state.provenance
    read = [
        name for name, origin in fields.items()
        if name in COMPLETE[model_type] and origin == f"config {name}" and COMPLETE[model_type][name] is not None
    ]  # fmt: skip
    overrides = {name: COMPLETE[model_type][name] for name in read}
    again = plan(COMPLETE[model_type], context=100, overrides=overrides, **ENCODER[model_type])
    assert again.total == told.total


def test_a_null_takes_the_value_away():
    assert plan(LLAMA).per_token == 3 * 2 * 11 * 2
    assert plan(LLAMA, overrides={"head_dim": None}).per_token == 3 * 2 * 13 * 2
    mistral = {**LLAMA, "model_type": "mistral", "sliding_window": 5}
    assert plan(mistral).growth == 0
    assert plan(mistral, overrides={"sliding_window": None}).growth == plan(LLAMA).growth


def test_nested_configs_count_as_asked():
    config = Config({"inner": {"size": 3}}, overrides={"size": 5, "other": 7})
    with pytest.raises(PlanError, match="got 'size'"):
        config.check_overrides()
    assert config.nested("inner").named("x").with_defaults({}, "").whole("size") == 5
    with pytest.raises(PlanError, match=re.escape("got 'other', which changes nothing; --provenance shows")):
        config.check_overrides()
    config.nested("inner").has("other")
    config.check_overrides()
