"""The declared class defaults against the classes that are installed."""

from __future__ import annotations

import dataclasses
from importlib.metadata import version
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from headwise.plan.architectures import FAMILIES, WRAPPERS
from headwise.plan.defaults import ARGUMENTS, CLASS_DEFAULTS, ESSENTIAL, REMOTE_DEFAULTS, TRANSFORMERS


def _fields(model_type: str) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(CONFIG_MAPPING[model_type])}


@pytest.mark.parametrize("model_type", CLASS_DEFAULTS)
def test_every_default_is_that_of_the_installed_class(model_type: str) -> None:
    source, declared = CLASS_DEFAULTS[model_type]
    installed = _fields(model_type)
    own = {name: value for name, value in declared.items() if name not in ARGUMENTS.get(model_type, {})}
    assert source == CONFIG_MAPPING[model_type].__name__
    assert own == {name: installed.get(name, "no such field") for name in own}


@pytest.mark.parametrize("model_type", CLASS_DEFAULTS)
def test_no_default_of_a_field_that_other_families_read_is_left_out(model_type: str) -> None:
    read = {name for _, fields in CLASS_DEFAULTS.values() for name in fields}
    plain = {
        name
        for name, default in _fields(model_type).items()
        if name in read and isinstance(default, (int, str)) and default != ""
    }
    assert plain <= set(CLASS_DEFAULTS[model_type][1])


@pytest.mark.parametrize("model_type", ARGUMENTS)
def test_arguments_that_a_class_does_not_keep(model_type: str) -> None:
    given = ARGUMENTS[model_type]["global_head_dim"]
    config = CONFIG_MAPPING[model_type](num_hidden_layers=6)
    assert [layer.head_dim for layer in config.per_layer_config] == [256] * 5 + [given]


def test_the_table_names_the_release_that_it_was_read_from() -> None:
    assert f"transformers {version('transformers')}" == TRANSFORMERS


def test_every_family_of_transformers_has_its_class_in_the_table() -> None:
    assert {model_type for model_type in FAMILIES if model_type in CONFIG_MAPPING_NAMES} == set(CLASS_DEFAULTS)
    assert set(REMOTE_DEFAULTS) <= set(FAMILIES) - set(CLASS_DEFAULTS)


def test_essential_sizes_are_fields_of_some_class() -> None:
    assert {name for _, fields in CLASS_DEFAULTS.values() for name in fields} >= ESSENTIAL


@pytest.mark.parametrize("model_type", [name for name in WRAPPERS if name in CONFIG_MAPPING_NAMES])
def test_a_wrapper_nests_the_model_that_its_class_nests(model_type: str) -> None:
    name, inner = WRAPPERS[model_type]
    config = CONFIG_MAPPING[model_type]()
    assert getattr(config, name).model_type == inner
