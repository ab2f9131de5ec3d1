"""Decoders whose layers are all grouped attention: what differs is names, biases, packing and which layers are local.

A family is a row of data. Rows were read from the modelling files of transformers 5.24.0; tests hold the projections
of every row to the modules of a model, and its bytes to a running cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headwise.plan.architectures.fields import (
    Pattern,
    count_layers,
    full_layers,
    heads_by_layer,
    read_heads,
    window_provenance,
)
from headwise.plan.architectures.parts import Biases, Heads, grouped_layer, grouped_projections
from headwise.plan.config import Config
from headwise.plan.layers import Architecture
from headwise.plan.states import Extent

__all__ = ["Dense", "dense_architecture", "max_context"]


@dataclass(frozen=True)
class Dense:
    """One family of decoders.

    Attributes:
        width: names of ``E``.
        layers: names of the number of layers.
        heads: names of ``H``.
        kv_heads: names of ``G``; empty: as many as query heads, whatever the config says.
        head_dim: names of ``D``; empty: always ``E / H``, whatever the config says.
        value_dim: names of ``Dv``.
        bias: of query, key and value: always, never, or the names of the flag that decides.
        output_bias: of the output; None: as ``bias``.
        packed: whether query, key and value are one matrix.
        gate: outputs per head of a gate on what attention gives: ``""``, ``"head"`` (1) or ``"element"`` (``D``).
        pattern: what each layer sees.
        context: names of the longest context.
    """

    width: tuple[str, ...] = ("hidden_size",)
    layers: tuple[str, ...] = ("num_hidden_layers",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    kv_heads: tuple[str, ...] = ("num_key_value_heads",)
    head_dim: tuple[str, ...] = ("head_dim",)
    value_dim: tuple[str, ...] = ()
    bias: bool | str | tuple[str, ...] = False
    output_bias: bool | str | tuple[str, ...] | None = None
    packed: bool = False
    gate: str = ""
    pattern: Pattern = full_layers
    context: tuple[str, ...] = ("max_position_embeddings",)

    def __call__(self, config: Config) -> Architecture:
        """The architecture that ``config`` describes."""
        count = count_layers(config, *self.layers)
        heads = read_heads(
            config,
            width=self.width,
            heads=self.heads,
            kv_heads=self.kv_heads or None,
            head_dim=self.head_dim,
            value_dim=self.value_dim,
        )
        extents = self.pattern(config, count)
        return dense_architecture(config, heads, extents, self.biases(config), family=self)

    def biases(self, config: Config) -> Biases:
        """Which projections add a bias."""
        inner = _flag(config, self.bias)
        return Biases.of(inner, inner if self.output_bias is None else _flag(config, self.output_bias))

    def gate_outputs(self, heads: Heads) -> int:
        """Outputs of the gate, 0 without one."""
        return {"": 0, "head": heads.heads, "element": heads.heads * heads.value_dim}[self.gate]


def dense_architecture(
    config: Config, heads: Heads, extents: tuple[Extent, ...], biases: Biases, *, family: Dense, variant: str = ""
) -> Architecture:
    """Layers that see ``extents``, of equal heads unless the config lists them."""
    known = replace(heads, provenance={**heads.provenance, **window_provenance(config)})
    each = heads_by_layer(config, known, len(extents), shares=bool(family.kv_heads))
    layers = tuple(
        grouped_layer(
            index, own, extent, grouped_projections(own, biases, packed=family.packed, gate=family.gate_outputs(own))
        )
        for index, (own, extent) in enumerate(zip(each, extents, strict=True))
    )
    return Architecture(
        config.model_type,
        heads.width,
        layers,
        max_context(config, *family.context),
        provenance=dict(config.provenance),
        variant=variant,
    )


def max_context(config: Config, *names: str) -> int | None:
    """The longest context that the config names; None: it doesn't say, or has no bound."""
    return config.maybe_whole(*names) if names else None


def _flag(config: Config, flag: bool | str | tuple[str, ...]) -> bool:
    if isinstance(flag, bool):
        return flag
    return config.flag(*((flag,) if isinstance(flag, str) else flag))
