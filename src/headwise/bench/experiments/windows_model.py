"""The model of `windows`: one attention layer with local and global heads, and what it costs to read a row.

Symbols: B rows, L places of a row, Q queries, E width, H heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.attention.masks import within_spans
from headwise.bench.experiments.windows_task import HEADS, Rows, Settings
from headwise.cache import WindowCache
from headwise.nn import GroupedQueryAttention

__all__ = ["Recaller", "cache_bytes", "visible_pairs"]


class Recaller(nn.Module):
    """One attention layer over a row, and a linear readout for each slot.

    A pair is the sum of the embeddings of its key and value, a query that of the keys it asks for, each embedded for
    its slot. Positions are not told; only windows know them.
    """

    first: Tensor

    def __init__(self, local: int, settings: Settings) -> None:
        super().__init__()
        width, keys = settings.width, settings.keys
        self.settings = settings
        self.key, self.value = nn.Embedding(keys + settings.fillers, width), nn.Embedding(settings.values + 1, width)
        self.ask = nn.Embedding(settings.slots * keys, width)
        self.register_buffer("first", torch.arange(settings.slots) * keys, persistent=False)
        windows = [(settings.window - 1, 0)] * local + [None] * (HEADS - local)
        self.attention = GroupedQueryAttention(width, HEADS, window=windows)
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, settings.slots * settings.values)

    def embed(self, rows: Rows) -> Tensor:
        """``[B, L, E]``."""
        pairs = self.key(rows.keys) + self.value(rows.values)
        return torch.cat([pairs, self.ask(rows.asked + self.first).sum(2)], 1)

    def forward(self, rows: Rows) -> Tensor:
        """``[B, Q, slots, values]``."""
        hidden = self.embed(rows)
        hidden = hidden + self.attention(hidden, causal=True).output
        read: Tensor = self.readout(self.norm(hidden[:, -self.settings.queries :]))
        return read.unflatten(-1, (self.settings.slots, self.settings.values))


def cache_bytes(model: Recaller, rows: Rows) -> tuple[int, int]:
    """Of one row, once it is read: what a later token can still see of it, and what the cache has allocated."""
    attention = model.attention
    lefts = [left for left, _ in attention.spans]
    windows = lefts * HEADS if len(lefts) == 1 else lefts
    hidden = model.embed(rows)[:1]
    cache = WindowCache(1, HEADS, windows, attention.head_dim, capacity=hidden.shape[1])
    with torch.no_grad():
        attention(hidden, causal=True, cache=cache)
    return cache.nbytes_logical, cache.nbytes


def visible_pairs(attention: GroupedQueryAttention, length: int) -> int:
    """How many pairs of a query and a key the mask leaves, over all heads."""
    places = torch.arange(length)
    visible = (places <= places[:, None]).expand(HEADS, -1, -1)  # [H, L, L]
    within = within_spans(places[None], places[None], places, attention.spans)
    return int((visible if within is None else visible & within).sum())
