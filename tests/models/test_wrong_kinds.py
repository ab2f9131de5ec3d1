"""What is no model or no config is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from headwise.models import attention_layer, headwise_cache
from tests.models import tiny


@pytest.mark.parametrize("given", ["demo", {}, None])
def test_what_is_no_model_is_refused(given: Any) -> None:
    kind = type(given).__name__
    with pytest.raises(TypeError, match=f"^headwise_cache: expected a transformers model or a Checkpoint, got {kind}$"):
        headwise_cache(given, 13)
    with pytest.raises(TypeError, match=f"^attention_layer: expected a config of transformers, got {kind}; that of a"):
        attention_layer(given)


def test_a_model_in_place_of_its_config_is_refused() -> None:
    model = tiny.build(tiny.DECODERS["llama"])
    with pytest.raises(
        TypeError, match=r"^attention_layer: expected a config .* got LlamaForCausalLM; that of a model is"
    ):
        attention_layer(model)
    assert attention_layer(model.config).num_heads == model.config.num_attention_heads
