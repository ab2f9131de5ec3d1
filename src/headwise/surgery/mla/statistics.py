"""What a truncation of one attention layer has to know of its inputs.

Symbols: N rows, L length, E model width, H query heads, m rotary pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.attention import attention_weights
from headwise.models.head_weights import HeadWeights
from headwise.nn import RotaryEmbedding

__all__ = ["LayerStatistics", "measure_layer"]


@dataclass(frozen=True)
class LayerStatistics:
    """Averages over tokens, in float64 on the CPU.

    Attributes:
        covariance: ``[E, E]``, the mean of ``x x^T`` (about zero, not about the mean).
        mean: ``[E]``.
        mean_turns: complex ``[H, m]``: by what a key's pair is turned against the query's, averaged over the keys of
            the head as it attends to them.
        magnitude: by what rotation enlarges a score (YaRN), 1 without.
    """

    covariance: Tensor
    mean: Tensor
    mean_turns: Tensor
    magnitude: float

    @property
    def centred(self) -> Tensor:
        """The covariance about the mean, ``[E, E]``."""
        return self.covariance - torch.outer(self.mean, self.mean)


def measure_layer(
    weights: HeadWeights, rope: RotaryEmbedding, inputs: Tensor, options: dict[str, Any]
) -> LayerStatistics:
    """Statistics of inputs ``[N, L, E]``, whose tokens stand at positions 0 to L - 1.

    Args:
        weights: of the layer, without biases.
        rope: turns them.
        inputs: of the attention.
        options: of :func:`headwise.attention.attention`: scale, soft-cap and window.
    """
    flat = inputs.flatten(0, 1)
    covariance = torch.zeros(flat.shape[1], flat.shape[1], dtype=torch.float64)
    for part in flat.split(4096):
        wide = part.double().cpu()
        covariance += wide.T @ wide
    turns = torch.stack([_mean_turns(weights, rope, row[None], options) for row in inputs])
    return LayerStatistics(covariance / len(flat), flat.double().mean(0).cpu(), turns.mean(0), rope.magnitude**2)


def _mean_turns(weights: HeadWeights, rope: RotaryEmbedding, row: Tensor, options: dict[str, Any]) -> Tensor:
    """``[H, m]`` of one row ``[1, L, E]``."""
    positions = torch.arange(row.shape[1], device=row.device)
    query, key = (rope(torch.einsum("hde,ble->bhld", rows, row), positions) for rows in (weights.query, weights.key))
    seen = attention_weights(query, key, causal=True, **options)[0].cpu()  # [H, L, L]
    cosine, sine = rope.rotation(positions, torch.float64)
    places = torch.complex(cosine, sine)[0, 0].cpu()  # [L, m]
    keys = torch.complex(*(seen.double() @ part for part in (places.real, places.imag)))  # [H, L, m]
    return (places.conj() * keys).mean(1) / rope.magnitude**2
