"""Layers against the attention modules of transformers: their weights load by name, and outputs are equal."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.cache import BlockPool, DenseCache, KeyValueCache, LatentCache, PagedCache, WindowCache
from headwise.models.layers import attention_layer
from headwise.nn import GroupedQueryAttention, LatentAttention
from tests.helpers.compare import assert_same
from tests.nn.architectures import CONFIGS, LATENT_CONFIGS, LAYERS, WINDOW, Theirs

BATCH, LENGTH = 2, 11
NAMES = [*CONFIGS, *LATENT_CONFIGS]
MESSAGE = "attention_layer: expected "


def ours(theirs: Theirs, dtype: torch.dtype = torch.float64) -> GroupedQueryAttention | LatentAttention:
    """The same layer with the same weights, loaded by name."""
    layer = attention_layer(theirs.config, theirs.layer, dtype=dtype)
    layer.load_state_dict(theirs.module.state_dict(), strict=True)
    return layer.requires_grad_(False)


def left_padding() -> Tensor:
    real = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    real[1, :3] = False
    return real


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_equal(name: str, layer: int) -> None:
    theirs = Theirs(name, layer)
    hidden, real, module = theirs.hidden(BATCH, LENGTH), left_padding(), ours(theirs)
    assert_same(module(hidden, causal=True).output, theirs(hidden))
    assert_same(module(hidden, causal=True, key_mask=real).output[real], theirs(hidden, real)[real])


@pytest.mark.parametrize("name", NAMES)
def test_the_options_matter(name: str) -> None:
    """What was read from the config is not there for nothing: without it the output is another one."""
    theirs = Theirs(name, 0)
    module, hidden = ours(theirs), theirs.hidden(BATCH, LENGTH)
    changes: dict[str, Any] = {"spans": ((None, None),), "softcap": None, "scale": 0.9}
    for option, plain in changes.items():
        kept = getattr(module, option)
        if kept == plain:
            continue
        setattr(module, option, plain)
        assert not torch.allclose(module(hidden, causal=True).output, theirs(hidden)), option
        setattr(module, option, kept)
    shifted = torch.arange(LENGTH) * 2
    assert not torch.allclose(module(hidden, causal=True, positions=shifted).output, theirs(hidden))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_narrow_types_lose_no_more_than_in_transformers(name: str, dtype: torch.dtype) -> None:
    exact, narrow = Theirs(name), Theirs(name, dtype=dtype)
    exact.module.load_state_dict(narrow.module.state_dict())  # the rounded weights, so that only products differ
    hidden = narrow.hidden(BATCH, LENGTH)
    expected = exact(hidden.double())
    own = ours(narrow, dtype)(hidden, causal=True).output
    assert own.dtype == dtype
    distances = [(output.double() - expected).abs() for output in (own, narrow(hidden))]
    assert distances[0].max() <= 2 * distances[1].max()
    assert distances[0].mean() <= 2 * distances[1].mean()


def dense(layer: GroupedQueryAttention) -> KeyValueCache:
    return DenseCache(BATCH, layer.num_kv_heads, LENGTH, layer.head_dim, dtype=torch.float64)


def windowed(layer: GroupedQueryAttention) -> KeyValueCache:
    left = layer.spans[0][0]
    return WindowCache(
        BATCH, layer.num_kv_heads, left, layer.head_dim, slack=1, capacity=LENGTH if left is None else None,
        dtype=torch.float64,
    )  # fmt: skip


@pytest.mark.parametrize("make_cache", [dense, windowed])
@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("name", CONFIGS)
def test_cached_steps_are_equal(name: str, layer: int, make_cache: Callable[..., KeyValueCache]) -> None:
    theirs = Theirs(name, layer)
    hidden, real, module = theirs.hidden(BATCH, LENGTH), left_padding(), ours(theirs)
    cache, outputs, start = make_cache(module), [], 0
    for step in (WINDOW + 1, 1, 1, 0, 2, 1):
        stop = start + step
        outputs.append(module(hidden[:, start:stop], causal=True, key_mask=real[:, :stop], cache=cache).output)
        start = stop
    assert start == LENGTH
    assert_same(torch.cat(outputs, 1)[real], theirs(hidden, real)[real])


@pytest.mark.parametrize("form", ["expanded", "absorbed", None])
@pytest.mark.parametrize("name", LATENT_CONFIGS)
def test_cached_steps_of_latent_attention_are_equal(name: str, form: Any) -> None:
    theirs = Theirs(name)
    hidden, real, module = theirs.hidden(BATCH, LENGTH), left_padding(), ours(theirs)
    cache = LatentCache(BATCH, LENGTH, module.latent_dim, module.rope_head_dim, dtype=torch.float64)
    outputs, start = [], 0
    for step in (6, 1, 1, 0, 2, 1):
        stop = start + step
        options = {"key_mask": real[:, :stop], "cache": cache, "form": form}
        outputs.append(module(hidden[:, start:stop], causal=True, **options).output)
        start = stop
    assert_same(torch.cat(outputs, 1)[real], theirs(hidden, real)[real])


def test_blocks_of_a_pool_serve_too() -> None:
    theirs = Theirs("gemma2")
    hidden, module = theirs.hidden(BATCH, LENGTH), ours(theirs)
    pool = BlockPool(num_blocks=8, block_size=3, num_kv_heads=2, head_dim=10, dtype=torch.float64)
    cache = PagedCache(pool, BATCH)
    steps = [module(part, causal=True, cache=cache).output for part in hidden.split([4, 1, 1, 5], 1)]
    assert_same(torch.cat(steps, 1), theirs(hidden))


def config(**changes: Any) -> Any:
    return SimpleNamespace(**{"model_type": "llama"} | vars(Theirs("llama").config) | changes)


def test_other_architectures_are_refused_by_name() -> None:
    message = (
        f"{MESSAGE}model_type to be one of deepseek_v2, deepseek_v3, gemma2, gemma3_text, gpt_oss, granite, llama, "
        "mistral, mixtral, qwen2, qwen3, got 'bloom'; build a layer of headwise.nn by hand, or pass config.text_config "
        "of a larger model"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        attention_layer(config(model_type="bloom"))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"attention_dropout": 0.1}, f"{MESSAGE}attention_dropout=0.0 in a config of llama, got 0.1, which headwise's "
     "layers don't have; run the model through transformers"),
    ({"model_type": "gemma3_text", "attn_logit_softcapping": 30.0}, f"{MESSAGE}attn_logit_softcapping=None in a config "
     "of gemma3_text, got 30.0, which headwise's layers don't have; run the model through transformers"),
    ({"use_bidirectional_attention": True}, f"{MESSAGE}use_bidirectional_attention=False in a config of llama, got "
     "True, which headwise's layers don't have; run the model through transformers"),
    ({"layer_types": ["chunked_attention"]}, f"{MESSAGE}layer 0 to be full_attention or sliding_attention, got "
     "'chunked_attention'"),
    ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
     "scaling: expected rope_type to be one of default, linear, llama3, yarn, got 'dynamic', which headwise does not "
     "know; run the model through transformers instead"),
    ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, f"{MESSAGE}partial_rotary_factor=1.0 in a "
     "config of llama, got a part; pass rope= with rotary_dim to a layer of headwise.nn"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_settings_that_no_layer_has_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        attention_layer(config(**changes))


def test_there_is_no_layer_behind_the_last() -> None:
    with pytest.raises(IndexError, match=r"^attention_layer: expected layer 0 to 1, got 2$"):
        attention_layer(config(), 2)


def test_parameters_get_their_device_and_dtype() -> None:
    for name in ("gpt-oss", "gemma3", "deepseek_v3"):
        layer = attention_layer(Theirs(name).config, dtype=torch.bfloat16, device="meta")
        assert {parameter.dtype for parameter in layer.parameters()} == {torch.bfloat16}
        assert all(tensor.is_meta for tensor in (*layer.parameters(), *layer.buffers()))
