"""What a model computes with its attention: projections and pairs, layer by layer.

Symbols: ``H`` query heads, ``G`` KV heads, ``D`` and ``Dv`` widths of keys and values, ``E`` model width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from headwise.plan.states import Encoder, Extent, State

__all__ = ["Architecture", "Attention", "Layer", "Projection"]


@dataclass(frozen=True)
class Projection:
    """One matrix of an attention layer: ``inputs x outputs`` weights and perhaps a bias of ``outputs``.

    Attributes:
        name: ``query``, ``key``, ``value``, ``output``, ``query down``, ...; ``query key value`` where they are packed
            into one matrix.
        inputs: elements that go in.
        outputs: elements that come out.
        bias: whether a bias is added.
        shared: whether it is the same matrix as in an earlier layer: computed again, yet no further parameters.
    """

    name: str
    inputs: int
    outputs: int
    bias: bool = False
    shared: bool = False

    @property
    def weights(self) -> int:
        """Elements of the matrix; a multiplication and an addition per token each."""
        return self.inputs * self.outputs

    @property
    def parameters(self) -> int:
        """Elements of the matrix and the bias; 0 where another layer has them already."""
        return 0 if self.shared else self.weights + (self.outputs if self.bias else 0)


@dataclass(frozen=True)
class Attention:
    """One attention of a layer: who looks at what, and the matrices around it.

    Attributes:
        kind: ``self``, ``cross``, ``latent``, or ``indexer`` for the small heads that choose what a latent one sees.
        heads: ``H``.
        kv_heads: ``G``.
        score_dim: elements of a query and a key in the scores, ``D``.
        value_dim: elements of a value, ``Dv``.
        extent: which keys a query can see.
        causal: whether a query sees no later keys.
        projections: its matrices; none for keys and values that it takes from another layer's state.
        absorbed: for latent attention while decoding, elements of a query and a value in the latent space.
    """

    kind: str
    heads: int
    kv_heads: int
    score_dim: int
    value_dim: int
    extent: Extent
    causal: bool
    projections: tuple[Projection, ...]
    absorbed: tuple[int, int] | None = None


@dataclass(frozen=True)
class Layer:
    """What one layer keeps and computes.

    Attributes:
        index: counted from 0 as the model counts.
        kind: as a reader would call it: ``attention``, ``sliding attention``, ``mamba``, ``mlp``, ...
        states: none, one or more.
        attentions: none, one or more.
    """

    index: int
    kind: str
    states: tuple[State, ...] = ()
    attentions: tuple[Attention, ...] = ()


@dataclass(frozen=True)
class Architecture:
    """A model as the planner sees it.

    Attributes:
        model_type: as its config says.
        width: ``E``.
        layers: all layers, also those without attention; an encoder's layers come first.
        max_context: the longest context that the config allows; None: it doesn't say.
        encoder_length: how many tokens cross attention looks at unless the request says otherwise.
        provenance: where the fields that hold for the whole model came from.
        variant: what a runtime has to know of it besides its states, such as ``new decoder`` of Falcon.
    """

    model_type: str
    width: int
    layers: tuple[Layer, ...]
    max_context: int | None = None
    encoder_length: int | None = None
    provenance: Mapping[str, str] = field(default_factory=dict, compare=False)
    variant: str = ""

    # Kept once found: a search for what fits asks for them a hundred times.
    @cached_property
    def states(self) -> tuple[State, ...]:
        """The states of all layers, in order."""
        return tuple(state for layer in self.layers for state in layer.states)

    @property
    def usual_encoder_length(self) -> int | None:
        """The encoder's tokens unless the request says otherwise; None: there is no encoder, or nothing says it."""
        seen = [state.extent for state in self.states]
        seen += [attention.extent for layer in self.layers for attention in layer.attentions]
        lengths = [extent.length for extent in seen if isinstance(extent, Encoder)]
        return None if not lengths else lengths[0] if lengths[0] is not None else self.encoder_length

    @cached_property
    def query_heads(self) -> dict[int, int]:
        """The numbers of query heads, each with the first layer that has it; indexers lie whole on every rank."""
        found: dict[int, int] = {}
        for layer in self.layers:
            for attention in layer.attentions:
                if attention.kind != "indexer":
                    found.setdefault(attention.heads, layer.index)
        return found

    @cached_property
    def alike(self) -> tuple[tuple[State, ...], ...]:
        """The states with those of equal shape together, in the order of their first layers."""
        shapes: dict[tuple[object, ...], list[State]] = {}
        for state in self.states:
            shapes.setdefault(state.shape, []).append(state)
        return tuple(map(tuple, shapes.values()))
