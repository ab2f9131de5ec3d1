"""Which numbers of heads a checkpoint format can hold, asked of transformers' config classes themselves.

``stock`` is the class that the model has, ``mistral`` takes over for Llama, whose config wants the width of the model
to be a multiple of the heads whatever their own width is; without a window both compute the same. ``gpt_bigcode`` takes
over for GPT-2 with one KV head. ``headwise`` is any of the architectures with the heads listed layer by layer, which
only :func:`headwise.models.load` opens.

Symbols: H query heads, G KV heads, D head dim, E model width.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, get_args

from headwise.models.packing import PACKINGS
from headwise.models.refusal import one_line
from headwise.models.weights import LAYERS_KEY

__all__ = ["FORMATS", "Format", "NotHeldError", "best_format", "class_name", "config_for", "layers_told"]

Format = Literal["stock", "mistral", "gpt_bigcode", "headwise"]
FORMATS: tuple[Format, ...] = get_args(Format)
Layers = Sequence[tuple[int, int]]

_CLASSES = {
    "mistral": {"LlamaForCausalLM": "MistralForCausalLM", "LlamaModel": "MistralModel"},
    "gpt_bigcode": {"GPT2LMHeadModel": "GPTBigCodeForCausalLM", "GPT2Model": "GPTBigCodeModel"},
}


class NotHeldError(Exception):
    """A format can't hold a layout; the text says why."""


def layers_told(config: Any) -> list[tuple[int, int]]:
    """(Query heads, KV heads) of every layer, as the config of an architecture that can be reshaped tells them."""
    listed = getattr(config, LAYERS_KEY, None)
    if listed is not None:
        return [(heads, kv_heads) for heads, kv_heads in listed]
    heads = config.num_attention_heads
    return [(heads, getattr(config, "num_key_value_heads", None) or heads)] * config.num_hidden_layers


def best_format(config: Any, layers: Layers) -> Format:
    """The first format that holds the layers: the stock class, a stock class that takes over, ``headwise``.

    Raises:
        NotHeldError: none does.
    """
    for form in FORMATS:
        try:
            config_for(config, layers, form)
        except NotHeldError:
            if form == "headwise":
                raise
        else:
            return form
    raise AssertionError("unreachable")


def config_for(config: Any, layers: Layers, form: Format) -> Any:
    """A config of the format that says these layers.

    Args:
        config: of a model whose architecture can be reshaped; it stays as it is.
        layers: (query heads, KV heads) of every layer.
        form: the format.

    Raises:
        NotHeldError: the format can't hold them.
    """
    if config.model_type not in PACKINGS:
        raise NotHeldError(f"headwise does not know where {config.model_type} keeps its heads")
    return _MAKERS[form](config, list(layers))


def class_name(model_class: str, form: Format) -> str:
    """The class of transformers that a model of this class has in the format.

    Raises:
        NotHeldError: there is none.
    """
    if form not in _CLASSES:
        return model_class
    if model_class not in _CLASSES[form]:
        raise NotHeldError(f"{form} has no counterpart of {model_class}")
    return _CLASSES[form][model_class]


def _plain(config: Any) -> dict[str, Any]:
    return {name: told for name, told in config.to_dict().items() if name != LAYERS_KEY}


def _width(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _uniform(layers: list[tuple[int, int]], kind: str) -> tuple[int, int]:
    first = layers[0]
    other = next((number for number, layer in enumerate(layers) if layer != first), None)
    if other is not None:
        raise NotHeldError(
            f"{kind} has one number of heads for all layers, and layer 0 has {_words(*first)}, layer {other} "
            f"{_words(*layers[other])}"
        )
    return first


def _words(heads: int, kv_heads: int) -> str:
    return f"{heads} head{'s' * (heads != 1)} on {kv_heads} KV head{'s' * (kv_heads != 1)}"


def _stock(config: Any, layers: list[tuple[int, int]]) -> Any:
    if not hasattr(config, LAYERS_KEY) and layers == layers_told(config):
        return copy.deepcopy(config)
    kind, width = config.model_type, _width(config)
    heads, kv_heads = _uniform(layers, kind)
    if not hasattr(config, "num_key_value_heads"):
        if (heads, kv_heads) != (config.num_attention_heads,) * 2:
            raise NotHeldError(
                f"{kind} has {config.num_attention_heads} heads of {width} dimensions for a width of "
                f"{config.hidden_size}, each with keys and values of its own"
            )
        return type(config)(**_plain(config))
    changed = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": width}
    return _asked(type(config), _plain(config) | changed)


def _asked(config_class: Any, fields: dict[str, Any]) -> Any:
    """The config with these fields, if its class takes them: each refuses in its own way."""
    try:
        return config_class(**fields)
    except Exception as error:
        reason = one_line(error.__cause__ or error)
        raise NotHeldError(f"{config_class.__name__} refuses: {reason}") from error


@cache
def _fields_of(config_class: str) -> frozenset[str]:
    import transformers

    own = getattr(transformers, config_class)().to_dict().keys()
    return frozenset(own - {"model_type", "architectures", "num_key_value_heads"})


def _shared_fields(config: Any, config_class: str) -> dict[str, Any]:
    """What the config says that another class of configs knows as well."""
    known = _fields_of(config_class)
    return {name: told for name, told in _plain(config).items() if name in known}


def _mistral(config: Any, layers: list[tuple[int, int]]) -> Any:
    import transformers

    if config.model_type != "llama":
        raise NotHeldError(f"mistral takes over for llama only, not for {config.model_type}")
    if biased := [name for name in ("attention_bias", "mlp_bias") if getattr(config, name, False)]:
        raise NotHeldError(f"mistral has no biases, and this model has {' and '.join(biased)}")
    heads, kv_heads = _uniform(layers, "mistral")
    fields = _shared_fields(config, "MistralConfig") | {"sliding_window": None}
    changed = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": _width(config)}
    return _asked(transformers.MistralConfig, fields | changed)


def _gpt_bigcode(config: Any, layers: list[tuple[int, int]]) -> Any:
    import transformers

    if config.model_type != "gpt2":
        raise NotHeldError(f"gpt_bigcode takes over for gpt2 only, not for {config.model_type}")
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if getattr(config, name, False):
            raise NotHeldError(f"gpt_bigcode has no {name}, which this model uses")
    if _uniform(layers, "gpt_bigcode") != (config.num_attention_heads, 1):
        raise NotHeldError(
            f"gpt_bigcode has {config.num_attention_heads} heads of {_width(config)} dimensions for a width of "
            f"{config.hidden_size}, and one KV head for all"
        )
    return _asked(transformers.GPTBigCodeConfig, _shared_fields(config, "GPTBigCodeConfig") | {"multi_query": True})


def _headwise(config: Any, layers: list[tuple[int, int]]) -> Any:
    if not hasattr(config, "num_key_value_heads"):
        other = next((number for number, (heads, kv_heads) in enumerate(layers) if heads != kv_heads), None)
        if other is not None:
            raise NotHeldError(
                f"{config.model_type} has keys and values for every query head, and layer {other} "
                f"{_words(*layers[other])}"
            )
    listed = copy.deepcopy(config)
    setattr(listed, LAYERS_KEY, [list(layer) for layer in layers])
    return listed


_MAKERS: dict[Format, Callable[[Any, list[tuple[int, int]]], Any]] = {
    "stock": _stock,
    "mistral": _mistral,
    "gpt_bigcode": _gpt_bigcode,
    "headwise": _headwise,
}
