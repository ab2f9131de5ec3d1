"""Rotary embedding whose pairs turn like chosen pairs of another one.

Symbols: ``m`` pairs here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headwise.nn.frequencies import Frequencies, rotary_frequencies
from headwise.nn.rope import RotaryEmbedding

__all__ = ["SelectedRotaryEmbedding"]


class SelectedRotaryEmbedding(RotaryEmbedding):
    """Pair ``i`` turns as fast as pair ``pairs[i]`` of ``source``; any of those may come several times, or never.

    Latent attention converted from grouped heads needs that: its one rotary key holds several directions of one
    frequency, and of other frequencies none.

    Args:
        source: gives the frequencies, stretched as it stretches them.
        pairs: ``m`` numbers of its pairs.
        interleaved: see :class:`RotaryEmbedding`.
        device: of the frequencies.

    Raises:
        ValueError: there is no pair, or one that ``source`` doesn't have.
    """

    def __init__(
        self,
        source: RotaryEmbedding,
        pairs: Sequence[int],
        *,
        interleaved: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        if not pairs or min(pairs) < 0 or max(pairs) >= source.rotary_dim // 2:
            raise ValueError(
                f"SelectedRotaryEmbedding: expected pairs from 0 to {source.rotary_dim // 2 - 1}, got {list(pairs)}"
            )
        self.pairs, self.source_dim = tuple(pairs), source.rotary_dim  # the parent asks for frequencies at once
        scaling = {"rope_type": source.scaling.kind} | source.scaling.numbers
        super().__init__(2 * len(pairs), source.base, interleaved=interleaved, scaling=scaling, device=device)

    def _frequencies(self, dtype: torch.dtype) -> Frequencies:
        whole = rotary_frequencies(self.source_dim, self.base, self.scaling, dtype)
        return Frequencies(whole.inverse[list(self.pairs)], whole.magnitude)

    def extra_repr(self) -> str:
        """The settings, for ``print``."""
        return f"{super().extra_repr()}, {len(set(self.pairs))} of {self.source_dim // 2} frequencies"
