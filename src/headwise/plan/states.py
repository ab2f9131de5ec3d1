"""What a model keeps between tokens: one entry per state, not per layer.

A layer may hold two states (a hybrid block; self and cross attention), one or none. A state is planes of vectors (key,
value, a latent, an indexer's key, columns of a convolution, a recurrent matrix) over an extent (how many tokens it
holds), and may lie with another layer. Where each number came from stands beside it.

Symbols: ``L`` tokens so far, ``G`` KV heads, ``D`` and ``Dv`` widths of keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

__all__ = ["Chunk", "Encoder", "Extent", "Fixed", "Grows", "Plane", "Role", "Sharding", "State", "Window"]

# What a plane holds decides in which type a runtime stores it: keys and values follow the KV dtype; an indexer's keys,
# convolution columns and recurrent states have types of their own in most runtimes.
Role: TypeAlias = Literal["key", "value", "latent", "indexer", "convolution", "recurrent"]
Sharding: TypeAlias = Literal["heads", "replicated"]


@dataclass(frozen=True)
class Grows:
    """One entry for every token."""

    def tokens(self, length: int) -> int:
        """How many entries are needed behind ``length`` tokens."""
        return length


@dataclass(frozen=True)
class Window:
    """The latest ``size`` tokens, the query's own included."""

    size: int

    def tokens(self, length: int) -> int:
        """How many entries are needed behind ``length`` tokens."""
        return min(length, self.size)


@dataclass(frozen=True)
class Chunk:
    """The tokens of the current chunk of ``size``: they are dropped together when it is full."""

    size: int

    def tokens(self, length: int) -> int:
        """The most entries that are needed at once on the way to ``length`` tokens."""
        return min(length, self.size)


@dataclass(frozen=True)
class Fixed:
    """``entries`` from the first token on, whatever the length."""

    entries: int = 1

    def tokens(self, length: int) -> int:
        """How many entries are needed behind ``length`` tokens."""
        return self.entries if length > 0 else 0


@dataclass(frozen=True)
class Encoder:
    """One entry for every token of the encoder, none for the decoder's own; ``length`` is the encoder's usual one."""

    length: int | None = None

    def tokens(self, length: int) -> int:
        """Entries don't depend on the decoder's length."""
        raise TypeError("Encoder: its tokens are those of the encoder, ask the request")


Extent: TypeAlias = Grows | Window | Chunk | Fixed | Encoder


@dataclass(frozen=True)
class Plane:
    """Vectors of one kind: ``heads`` of ``dim`` elements for each entry.

    Attributes:
        name: ``key``, ``value``, ``latent``, ``rope key``, ...
        heads: how many vectors an entry has; a recurrent state of ``Hv`` matrices ``Dk x Dv`` has ``Hv`` heads of
            ``Dk * Dv`` elements.
        dim: elements of one vector.
        role: what it is to a runtime.
    """

    name: str
    heads: int
    dim: int
    role: Role

    @property
    def elements(self) -> int:
        """Elements of one entry."""
        return self.heads * self.dim


@dataclass(frozen=True)
class State:
    """One thing that one layer keeps.

    Attributes:
        layer: the layer that reads it, counted from 0 as the model counts.
        kind: ``self``, ``cross``, ``latent``, ``indexer``, ``convolution``, ``recurrent``.
        planes: what an entry consists of.
        extent: how many entries there are.
        owner: the layer whose memory this is, where it isn't this one's: zero bytes here, yet FLOPs.
        sharding: whether tensor parallelism spreads the heads over the ranks (with replication below one head per
            rank) or every rank holds all of it.
        dtype: how the config says that this state is kept, such as ``float32`` under ``mamba_ssm_dtype``; None: it
            leaves that to the runtime. Keys and values have none.
        provenance: for each field that decided it, where its value came from, such as ``config num_key_value_heads``,
            ``class default (LlamaConfig)``, ``derived: hidden_size / num_attention_heads``, ``override``.
    """

    layer: int
    kind: str
    planes: tuple[Plane, ...]
    extent: Extent
    owner: int | None = None
    sharding: Sharding = "heads"
    dtype: str | None = None
    provenance: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def shape(self) -> tuple[object, ...]:
        """All that decides its bytes: states of equal shape can be told in one line."""
        return self.kind, self.planes, self.extent, self.owner is None, self.sharding, self.dtype
