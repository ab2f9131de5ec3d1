"""Exact rewrites of a whole model: other weights, the same function.

They are the ground for all lossy operations, which should not depend on the bases that training happened to end in, and
the test for them. See :mod:`headwise.surgery.gauge_maps` for one layer.

Each takes a checkpoint and gives a new one; its ``history`` tells what was done.

Symbols: H query heads, G KV heads, R = H / G.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise import __version__
from headwise.errors import UserError
from headwise.models.checkpoint import Checkpoint
from headwise.models.head_weights import HeadWeights
from headwise.models.weights import Rotary, copy_of, heads_of, replace_heads, rotary_of
from headwise.surgery.gauge_maps import (
    GaugeMaps,
    apply_maps,
    degrouped,
    draw_maps,
    reordered,
    value_bias_folded,
)
from headwise.surgery.sharing.pairs import split_pairs

__all__ = ["degroup", "fold_value_bias", "permute", "rotate", "scramble"]

Orders = Sequence[int] | Mapping[int, Sequence[int]]


def permute(checkpoint: Checkpoint, orders: Orders | None = None, *, seed: int = 0) -> Checkpoint:
    """Put heads in another order.

    Args:
        checkpoint: stays as it is.
        orders: for every layer, or by layer for some: the query head that comes to each place. Query heads of one KV
            head stay together, and it comes along. Default: random orders.
        seed: of random orders.

    Raises:
        UserError: the architecture can't be reshaped, or an order tears a group apart or is none.
    """
    generator = random.Random(seed)

    def one(layer: int, weights: HeadWeights) -> HeadWeights:
        if orders is None:
            return reordered(weights, _random_order(weights, generator))
        order = orders.get(layer) if isinstance(orders, Mapping) else orders
        return weights if order is None else reordered(weights, order)

    if isinstance(orders, Mapping):
        _check_layers(checkpoint, orders)
    how = {"seed": seed} if orders is None else {"orders": "given"}
    return _rewritten(checkpoint, one, {"operation": "permute"} | how)


def rotate(
    checkpoint: Checkpoint,
    maps: Mapping[int, GaugeMaps] | None = None,
    *,
    seed: int = 0,
    keys: bool = True,
    values: bool = True,
    general: bool = False,
) -> Checkpoint:
    """Change the bases of heads: of values and outputs freely, of queries and keys as far as positions allow.

    Norms of queries and keys (Qwen3) tie their bases down: they allow turns of modulus 1 in pairs whose gains are
    equal, and nothing else.

    Args:
        checkpoint: stays as it is.
        maps: by layer; other layers stay. Default: random maps for all layers.
        seed: of random maps.
        keys: whether random maps change queries and keys.
        values: whether random maps change values and outputs.
        general: whether random maps also stretch, by factors from 1/2 to 2.

    Raises:
        UserError: the architecture can't be reshaped, its norms forbid it, or a map has another shape or can't be
            undone.
    """
    generator = torch.Generator().manual_seed(seed)

    def one(layer: int, weights: HeadWeights) -> HeadWeights:
        rotary = rotary_of(checkpoint, layer)
        if maps is None:
            drawn = draw_maps(weights, rotary, generator, general=general)
            chosen = GaugeMaps(*((drawn.turns, drawn.keys) if keys else (None, None)), drawn.values if values else None)
        else:
            chosen = maps.get(layer, GaugeMaps())
        if rotary.norms:
            _check_norms(checkpoint, layer, chosen, rotary)
        return apply_maps(weights, chosen, rotary)

    if maps is not None:
        _check_layers(checkpoint, maps)
    drawing = {"seed": seed, "keys": keys, "values": values, "general": general}
    return _rewritten(checkpoint, one, {"operation": "rotate"} | ({"maps": "given"} if maps is not None else drawing))


def degroup(checkpoint: Checkpoint, num_kv_heads: int | None = None) -> Checkpoint:
    """Repeat KV heads, down to one for each query head: the same function from a larger cache.

    Args:
        checkpoint: stays as it is.
        num_kv_heads: in every layer, a multiple of G that divides H. Default: H, each layer its own.

    Raises:
        UserError: the architecture can't be reshaped, or the number doesn't fit a layer.
    """

    def one(_: int, weights: HeadWeights) -> HeadWeights:
        return degrouped(weights, weights.num_heads if num_kv_heads is None else num_kv_heads)

    return _rewritten(checkpoint, one, {"operation": "degroup", "num_kv_heads": num_kv_heads})


def fold_value_bias(checkpoint: Checkpoint) -> Checkpoint:
    """Move the value bias of every layer into its output bias, which leaves zeros that stock formats go on to hold.

    Exact for a model that runs: attention weights sum to one there. Attention dropout in training breaks that, and so
    do sinks, which no architecture that can be reshaped has.

    Raises:
        UserError: the architecture can't be reshaped, has no value bias, or no output bias to take it.
    """
    return _rewritten(checkpoint, lambda _, weights: value_bias_folded(weights), {"operation": "fold_value_bias"})


def scramble(checkpoint: Checkpoint, *, seed: int = 0) -> Checkpoint:
    """The same function with as little order in its heads as there can be.

    Every query head gets a copy of its KV head (:func:`degroup`), all get random bases (:func:`rotate`), and heads
    change places whatever group they came from (:func:`permute`). What shares keys and values well must find the
    original groups in it.

    Raises:
        UserError: as :func:`degroup` and :func:`rotate`.
    """
    return permute(rotate(degroup(checkpoint), seed=seed), seed=seed)


def _rewritten(
    checkpoint: Checkpoint, one: Callable[[int, HeadWeights], HeadWeights], step: dict[str, Any]
) -> Checkpoint:
    """A copy with every layer changed by ``one(layer, weights)``, and ``step`` in its history."""
    changed = {}
    for layer in range(checkpoint.num_layers):
        weights = heads_of(checkpoint, layer)
        try:
            new = one(layer, weights)
        except ValueError as error:
            raise UserError(f"{checkpoint.name}, layer {layer}: {step['operation']} {error}") from error
        if new is not weights:
            changed[layer] = new
    result = copy_of(checkpoint)
    replace_heads(result, changed)
    result.history = (*checkpoint.history, step | {"headwise": __version__})
    return result


def _random_order(weights: HeadWeights, generator: random.Random) -> list[int]:
    size = weights.group_size
    groups = generator.sample(range(weights.num_kv_heads), weights.num_kv_heads)
    return [group * size + place for group in groups for place in generator.sample(range(size), size)]


def _check_layers(checkpoint: Checkpoint, given: Mapping[int, object]) -> None:
    unknown = sorted(set(given) - set(range(checkpoint.num_layers)))
    if unknown:
        raise UserError(f"{checkpoint.name}: expected layers 0 to {checkpoint.num_layers - 1}, got {unknown[0]}")


def _check_norms(checkpoint: Checkpoint, layer: int, maps: GaugeMaps, rotary: Rotary) -> None:
    """Refuse what doesn't commute with the norms of queries and keys: all but turns between dimensions of one gain."""
    if maps.turns is None and maps.keys is None:
        return
    module: Any = next(module for module, served in checkpoint.attention_layers.items() if layer in served)
    gains: list[Tensor] = [module.q_norm.weight, module.k_norm.weight]
    pairs, _ = split_pairs(torch.stack(gains).double()[..., None], rotary)
    equal = torch.equal(pairs.real, pairs.imag)
    stretches = maps.turns is not None and not torch.allclose(maps.turns.abs(), torch.ones_like(maps.turns.abs()))
    if not equal or stretches or (maps.keys is not None and maps.keys.numel()):
        reason = "turns of modulus 1" if equal else "gains that are equal in each rotary pair"
        raise UserError(
            f"{checkpoint.name}, layer {layer}: rotate expected {reason}, since {checkpoint.model.config.model_type} "
            "normalises queries and keys, which ties their bases down; pass keys=False to change those of values only, "
            "or permute"
        )
