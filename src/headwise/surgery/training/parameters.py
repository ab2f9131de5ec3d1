"""Which weights are trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from headwise.models.checkpoint import Checkpoint

__all__ = ["trained_names"]


def trained_names(checkpoint: Checkpoint, params: str) -> list[str]:
    """Names of the weights to train, in the order of the model.

    Args:
        checkpoint: the model.
        params: ``attention`` for what attention modules hold (projections of queries, keys, values and outputs, their
            biases, norms of queries and keys), ``all`` for everything. Tied weights count once, under their first name.
    """
    named = dict(checkpoint.model.named_parameters())
    if params == "all":
        return list(named)
    chosen = {id(parameter) for module in _modules(checkpoint) for parameter in module.parameters()}
    return [name for name, parameter in named.items() if id(parameter) in chosen]


def _modules(checkpoint: Checkpoint) -> Iterator[nn.Module]:
    yield from checkpoint.attention_layers
    for parent in checkpoint.model.modules():
        # BERT's output projection lies in a module of its own, beside a norm of the residual stream.
        if getattr(parent, "self", None) in checkpoint.attention_layers:
            outer: Any = parent
            yield outer.output.dense
