"""Where query, key, value and output projections lie in a loaded model, and putting others in their place.

``heads_of(checkpoint, layer)`` gives them by heads whatever the architecture packs them into, and
``replace_heads(checkpoint, {layer: weights})`` writes them back, with other numbers of heads if wanted, each layer its
own. What a config can say about that it says afterwards; otherwise it lists the heads layer by layer under
``headwise_layers``.

Symbols: H query heads, G KV heads, D head dim, E model width.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from headwise.errors import UserError
from headwise.models.checkpoint import Checkpoint
from headwise.models.head_weights import HeadWeights
from headwise.models.packing import PACKINGS, Packing

__all__ = [
    "LAYERS_KEY", "Rotary", "copy_of", "heads_of", "kind_of", "replace_heads", "resize_layers", "rotary_of",
    "round_weights",
]  # fmt: skip

LAYERS_KEY = "headwise_layers"


@dataclass(frozen=True)
class Rotary:
    """How queries and keys of one layer are turned by position.

    Attributes:
        style: ``half`` (dimension i is paired with i + dims / 2), ``interleaved`` (2i with 2i + 1) or ``none``.
        dims: how many of the head's first dimensions are turned; the others are not.
        norms: whether queries and keys are normalised over the head's dimensions before.
    """

    style: Literal["half", "interleaved", "none"]
    dims: int
    norms: bool = False


def kind_of(checkpoint: Checkpoint) -> Packing:
    """How the architecture packs its projections.

    Raises:
        UserError: it is none of those that can be reshaped.
    """
    kind = checkpoint.model.config.model_type
    if kind not in PACKINGS:
        raise UserError(
            f"{checkpoint.name}: expected one of {', '.join(sorted(PACKINGS))}, whose projections headwise can read "
            f"and replace, got {kind}"
        )
    return PACKINGS[kind]


def copy_of(checkpoint: Checkpoint) -> Checkpoint:
    """The same model with memory of its own, to be changed; the tokenizer is shared."""
    return Checkpoint(
        copy.deepcopy(checkpoint.model),
        checkpoint.tokenizer,
        name=checkpoint.name,
        source=checkpoint.source,
        objective=checkpoint.objective,
        history=checkpoint.history,
        stored_dtype=checkpoint.stored_dtype,
    )


def heads_of(checkpoint: Checkpoint, layer: int) -> HeadWeights:
    """The projections of a layer by heads: views into the model, without gradients.

    Raises:
        UserError: the architecture is none that can be reshaped, or several layers share one module.
    """
    packing, module = kind_of(checkpoint), _module(checkpoint, layer)
    read = packing.read(module, _outer(checkpoint.model, module), checkpoint.layouts[layer].head_dim)
    return read.mapped(lambda tensor: tensor.detach())


def replace_heads(checkpoint: Checkpoint, layers: Mapping[int, HeadWeights]) -> None:
    """Put other projections into some layers, with other numbers of heads where they have them.

    The checkpoint's layouts, and what its config says, follow.

    Args:
        checkpoint: is changed in place (:func:`copy_of` makes one to change).
        layers: new weights by layer; the width of a head stays.

    Raises:
        UserError: the architecture can't be reshaped, or can't share KV heads as the weights do.
        ValueError: the width of a head or of the model differs.
    """
    packing = kind_of(checkpoint)
    for layer, weights in layers.items():
        _check(checkpoint, layer, weights, packing)
    for layer, weights in layers.items():
        module = _module(checkpoint, layer)
        packing.write(module, _outer(checkpoint.model, module), weights)
        _tell_module(module, weights.num_heads, weights.num_kv_heads)
    checkpoint.read_layouts()
    _tell_config(checkpoint.model, [(layout.num_heads, layout.num_kv_heads) for layout in checkpoint.layouts])
    checkpoint.forget_hash()


def round_weights(checkpoint: Checkpoint) -> None:
    """Round the weights, in place, to the dtype of the model's files, so that what is measured is what is written."""
    if checkpoint.stored_dtype is not None:
        with torch.no_grad():
            for parameter in checkpoint.model.parameters():
                parameter.copy_(parameter.to(checkpoint.stored_dtype))
        checkpoint.forget_hash()


def rotary_of(checkpoint: Checkpoint, layer: int) -> Rotary:
    """How positions enter the heads of a layer."""
    kind_of(checkpoint)
    config, head_dim = checkpoint.model.config, checkpoint.layouts[layer].head_dim
    parameters = getattr(config, "rope_parameters", None)
    if parameters is None or config.model_type in ("gpt2", "bert"):
        return Rotary("none", 0)
    dims = int(head_dim * (parameters.get("partial_rotary_factor") or 1.0))
    return Rotary("half", dims, norms=hasattr(_module(checkpoint, layer), "k_norm"))


def resize_layers(model: Any, layers: Sequence[tuple[int, int]]) -> None:
    """Give each attention layer of a fresh model its own number of heads, before weights are loaded into it.

    Args:
        model: built from a config; its weights don't matter.
        layers: (query heads, KV heads) of every layer.

    Raises:
        ValueError: the architecture is none that can be reshaped, or has another number of layers.
    """
    packing = PACKINGS.get(model.config.model_type)
    modules = [module for module in model.modules() if packing is not None and _is_attention(module)]
    if packing is None or len(modules) != len(layers):
        raise ValueError(
            f"{LAYERS_KEY}: expected heads for the {len(modules)} attention layers of {model.config.model_type}, got "
            f"{len(layers)}"
        )
    for module, (heads, kv_heads) in zip(modules, layers, strict=True):
        outer = _outer(model, module)
        read = packing.read(module, outer, _head_dim(module))
        chosen = [0] * heads, [0] * kv_heads
        packing.write(module, outer, read.select(*chosen))
        _tell_module(module, heads, kv_heads)
    _tell_config(model, [(heads, kv_heads) for heads, kv_heads in layers])


def _is_attention(module: nn.Module) -> bool:
    names = {name for name, _ in module.named_children()}
    packed = ({"q_proj", "k_proj", "v_proj"}, {"qkv_proj"}, {"query_key_value"}, {"c_attn"}, {"query", "key", "value"})
    return any(wanted <= names for wanted in packed)


def _head_dim(module: Any) -> int:
    for name in ("head_dim", "head_size", "attention_head_size"):
        if hasattr(module, name):
            return int(getattr(module, name))
    raise ValueError(f"{type(module).__name__}: no width of a head")


def _module(checkpoint: Checkpoint, layer: int) -> Any:
    for module, layers in checkpoint.attention_layers.items():
        if layer in layers:
            if len(layers) > 1:
                raise UserError(
                    f"{checkpoint.name}: expected a module for each layer, got one that serves layers "
                    f"{', '.join(map(str, layers))}, so heads of one of them can't be changed"
                )
            return module
    raise IndexError(f"{checkpoint.name}: expected layer 0 to {checkpoint.num_layers - 1}, got {layer}")


def _outer(model: Any, module: nn.Module) -> Any:
    """The module that holds the output projection: the attention itself, or in BERT the part after it."""
    if model.config.model_type != "bert":
        return module
    return next(parent.output for parent in model.modules() if getattr(parent, "self", None) is module)


def _check(checkpoint: Checkpoint, layer: int, weights: HeadWeights, packing: Packing) -> None:
    old = heads_of(checkpoint, layer)
    if weights.query.shape[1:] != old.query.shape[1:] or weights.value.shape[1:] != old.value.shape[1:]:
        raise ValueError(
            f"{checkpoint.name}, layer {layer}: expected heads of {list(old.query.shape[1:])}, got "
            f"{list(weights.query.shape[1:])}"
        )
    if weights.num_kv_heads != weights.num_heads and not packing.shares:
        raise UserError(
            f"{checkpoint.name}: expected as many KV heads as query heads, since {checkpoint.model.config.model_type} "
            f"keeps them in {packing.name}, got {weights.num_heads} and {weights.num_kv_heads}"
        )


class _LayerConfig:
    """The model's config with a layer's own numbers of heads, for modules that look them up while they run."""

    def __init__(self, shared: Any, num_attention_heads: int, num_key_value_heads: int) -> None:
        self.__dict__.update(
            shared=shared, num_attention_heads=num_attention_heads, num_key_value_heads=num_key_value_heads
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "shared":  # while it is copied there is nothing yet
            raise AttributeError(name)
        return getattr(self.__dict__["shared"], name)


def _tell_module(module: Any, heads: int, kv_heads: int) -> None:
    if hasattr(module, "num_key_value_groups"):
        module.num_key_value_groups = heads // kv_heads
    if hasattr(module, "num_key_value_heads"):
        module.num_key_value_heads = kv_heads
    for name in ("num_heads", "num_attention_heads"):
        if hasattr(module, name):
            setattr(module, name, heads)
    if hasattr(module, "all_head_size"):
        module.all_head_size = heads * module.attention_head_size
    if hasattr(module, "qkv_proj"):
        shared = getattr(module.config, "shared", module.config)
        module.config = _LayerConfig(shared, heads, kv_heads)


def _tell_config(model: Any, layers: Sequence[tuple[int, int]]) -> None:
    """Say in the config how many heads there are, in its own words if it has them."""
    config = model.config
    if hasattr(config, LAYERS_KEY):
        delattr(config, LAYERS_KEY)
    heads, kv_heads = layers[0]
    told = (config.num_attention_heads, getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    if all(layer == told for layer in layers):
        return
    if len(set(layers)) == 1 and _can_say(config, heads, kv_heads):
        config.head_dim = _width(config)
        config.num_attention_heads, config.num_key_value_heads = heads, kv_heads
    else:
        setattr(config, LAYERS_KEY, [list(layer) for layer in layers])


def _width(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _can_say(config: Any, heads: int, kv_heads: int) -> bool:
    """Whether a config of this kind holds these numbers of heads without changing their width."""
    if not hasattr(config, "num_key_value_heads"):
        return False
    changed = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": _width(config)}
    try:
        type(config)(**config.to_dict() | changed)
    except Exception:  # each kind of config refuses in its own way
        return False
    return True
