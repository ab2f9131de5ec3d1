"""Opening checkpoints whose config lists the heads layer by layer, which no class of transformers can hold.

The folder is an ordinary one but for ``headwise_layers`` in its config. Stock transformers refuses it, since the sizes
of its weights don't agree with the numbers of heads that the config gives for all layers. Here the stock class is given
its layers before the weights are read into it.
"""

from __future__ import annotations

from typing import Any

from headwise.errors import UserError
from headwise.models.packing import PACKINGS
from headwise.models.weights import LAYERS_KEY, resize_layers

__all__ = ["class_for", "listed_layers", "reshaped"]

_MOST_HEADS = 1 << 16  # in one layer; more is a damaged file, which would ask for all memory


def class_for(auto_class: Any, config: Any, name: str) -> Any:
    """The class that opens a checkpoint: the auto class itself, or one with the layers that the config lists.

    Args:
        auto_class: for instance ``transformers.AutoModelForCausalLM``.
        config: of the checkpoint.
        name: what to call it in messages.

    Raises:
        UserError: the list is none of layers, or the architecture can't be reshaped.
    """
    layers = listed_layers(config, name)
    return auto_class if layers is None else reshaped(auto_class._model_mapping[type(config)], layers)


def listed_layers(config: Any, name: str) -> list[tuple[int, int]] | None:
    """(Query heads, KV heads) of every layer if the config lists them, None if it does not.

    Raises:
        UserError: as :func:`class_for`.
    """
    listed = getattr(config, LAYERS_KEY, None)
    if listed is None:
        return None
    if config.model_type not in PACKINGS:
        raise UserError(
            f"{name}: config.json has {LAYERS_KEY}, which headwise writes for {', '.join(sorted(PACKINGS))} only, and "
            f"the architecture {config.model_type}; save the model again from the one that it was made from"
        )
    if not isinstance(listed, list) or len(listed) != config.num_hidden_layers or not all(map(_is_layer, listed)):
        raise UserError(
            f"{name}: {LAYERS_KEY} in config.json: expected [query heads, KV heads] for each of its "
            f"{config.num_hidden_layers} layers, the first a multiple of the second, got {str(listed)[:60]}; "
            "copy config.json again"
        )
    return [(heads, kv_heads) for heads, kv_heads in listed]


def reshaped(stock: Any, layers: list[tuple[int, int]]) -> Any:
    """A class of transformers whose models are made with these numbers of heads; its name stays."""

    def __init__(self: Any, config: Any, *arguments: Any, **options: Any) -> None:
        stock.__init__(self, config, *arguments, **options)
        resize_layers(self, layers)

    # By its module transformers tells its own classes, and what attention they can run on, from custom code.
    return type(stock.__name__, (stock,), {"__init__": __init__, "__module__": stock.__module__})


def _is_layer(layer: Any) -> bool:
    if not isinstance(layer, list | tuple) or [type(count) for count in layer] != [int, int]:
        return False
    heads, kv_heads = layer
    return 1 <= kv_heads <= heads <= _MOST_HEADS and heads % kv_heads == 0
