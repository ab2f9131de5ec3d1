"""What layers hand out.

Axes: ``B`` batch, ``L`` query length, ``S`` key length, ``E`` model width, ``H`` query heads, ``G`` KV heads, ``D``
head dim.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["LayerOutput", "ProjectedContext"]


class LayerOutput(NamedTuple):
    """What a layer returns.

    Attributes:
        output: ``[B, L, E]``.
        weights: ``[B, H, L, S]`` where they were asked for, else None.
    """

    output: Tensor
    weights: Tensor | None


class ProjectedContext(NamedTuple):
    """Keys and values of a context, made once for all the tokens that will attend to it.

    Attributes:
        key: ``[B, G, S, D]``, normalised where the layer does so.
        value: ``[B, G, S, D]``.
    """

    key: Tensor
    value: Tensor
