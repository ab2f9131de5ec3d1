"""Putting models together whose layers are of several types."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headwise.plan.architectures.dense import max_context
from headwise.plan.architectures.parts import Biases, Heads, grouped_layer, grouped_projections
from headwise.plan.config import Config
from headwise.plan.errors import PlanError
from headwise.plan.layers import Architecture, Layer, Projection
from headwise.plan.states import Grows, State

__all__ = ["Maker", "assembled", "attention_maker", "state_maker"]

Maker = Callable[[int], Layer]


def assembled(config: Config, types: Sequence[str], makers: dict[str, Maker], *context: str) -> Architecture:
    """A model of layers of several types.

    Args:
        config: the fields.
        types: of each layer.
        makers: for each type, what makes a layer of it.
        context: names of the longest context.
    """
    for kind in types:
        if kind not in makers:
            raise PlanError(
                f"{config.place('layer_types')}: expected {', '.join(makers)} in a {config.model_type}, "
                f"got {kind[:60]!r}"
            )
    layers = tuple(makers[kind](index) for index, kind in enumerate(types))
    longest = max_context(config, *(context or ("max_position_embeddings",)))
    width = config.whole("hidden_size", "d_model")
    return Architecture(config.model_type, width, layers, longest, provenance=dict(config.provenance))


def attention_maker(heads: Heads, biases: Biases, *, gated: bool = False) -> Maker:
    """Layers of grouped attention; ``gated``: the query's matrix also gives a gate."""
    projections = grouped_projections(heads, biases)
    if gated:
        queries = 2 * heads.heads * heads.head_dim
        projections = (Projection("query and gate", heads.width, queries, biases.query), *projections[1:])
    return lambda index: grouped_layer(index, heads, Grows(), projections)


def state_maker(states: Callable[[int], tuple[State, ...]], kind: str) -> Maker:
    """Layers that attend to nothing."""
    return lambda index: Layer(index, kind, states(index))
