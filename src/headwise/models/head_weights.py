"""The weights of one attention layer, by heads: one form for every way in which architectures pack them.

Symbols: H query heads, G KV heads, R = H / G, D head dim, Dv value head dim, E model width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

__all__ = ["HeadWeights"]


@dataclass(frozen=True)
class HeadWeights:
    """Query, key, value and output projections of one layer.

    For an input x ``[E]``, query head h is ``query[h] @ x + query_bias[h]``, and the layer's output is the sum over h
    of ``output[h] @ (what head h attends to)``, plus ``output_bias``. Query head h reads KV head ``h // R``.

    Attributes:
        query: ``[H, D, E]``.
        key: ``[G, D, E]``.
        value: ``[G, Dv, E]``.
        output: ``[H, E, Dv]``.
        query_bias: ``[H, D]``, or None.
        key_bias: ``[G, D]``, or None.
        value_bias: ``[G, Dv]``, or None.
        output_bias: ``[E]``, or None.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    query_bias: Tensor | None = None
    key_bias: Tensor | None = None
    value_bias: Tensor | None = None
    output_bias: Tensor | None = None

    def __post_init__(self) -> None:
        heads, kv_heads = len(self.query), len(self.key)
        if not kv_heads or heads % kv_heads or len(self.value) != kv_heads or len(self.output) != heads:
            raise ValueError(
                "HeadWeights: expected as many keys as values, a multiple of them in queries, and an output for each "
                f"query, got {heads} queries, {kv_heads} keys, {len(self.value)} values and {len(self.output)} outputs"
            )

    @property
    def num_heads(self) -> int:
        """H."""
        return len(self.query)

    @property
    def num_kv_heads(self) -> int:
        """G."""
        return len(self.key)

    @property
    def group_size(self) -> int:
        """R, the number of query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads

    def to(self, dtype: torch.dtype) -> HeadWeights:
        """The same in another dtype."""
        return self.mapped(lambda tensor: tensor.to(dtype))

    def clone(self) -> HeadWeights:
        """The same with memory of its own."""
        return self.mapped(torch.clone)

    def select(self, heads: Sequence[int], kv_heads: Sequence[int]) -> HeadWeights:
        """These query heads and KV heads, in this order; the KV heads may be repeated.

        Which query head reads which KV head is up to the caller: the result reads ``kv_heads[i // R]`` from
        ``heads[i]``.
        """

        def taken(tensor: Tensor | None, which: Sequence[int]) -> Tensor | None:
            return None if tensor is None else tensor[list(which)]

        return replace(
            self,
            query=self.query[list(heads)],
            output=self.output[list(heads)],
            key=self.key[list(kv_heads)],
            value=self.value[list(kv_heads)],
            query_bias=taken(self.query_bias, heads),
            key_bias=taken(self.key_bias, kv_heads),
            value_bias=taken(self.value_bias, kv_heads),
        )

    def mapped(self, change: Callable[[Tensor], Tensor]) -> HeadWeights:
        """The same with every tensor changed by a function."""
        return replace(self, **{name: change(tensor) for name, tensor in vars(self).items() if tensor is not None})
