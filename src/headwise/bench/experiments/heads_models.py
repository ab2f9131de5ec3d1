"""The models of `heads`: one attention layer with any number of heads, which share the same initial values.

Symbols: B rows, L length, P pairs, Q queries, E width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.bench.experiments.heads_tasks import ROW, TOKENS, Rows, Settings
from headwise.nn import GroupedQueryAttention

__all__ = ["Retriever", "TinyLM"]


class TinyLM(nn.Module):
    """The model of the bounded next-token task: one attention layer with learned positions, a norm and a readout."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(TOKENS, width)
        self.pos = nn.Parameter(torch.randn(1, ROW - 1, width) * 0.01)
        self.attn = GroupedQueryAttention(width, heads)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        """``[B, L]`` to ``[B, L, 5]``."""
        hidden = self.emb(tokens) + self.pos[:, : tokens.shape[1]]
        read: Tensor = self.head(self.norm(hidden + self.attn(hidden, causal=True).output))
        return read


class Retriever(nn.Module):
    """One attention layer over pairs and queries, and a linear readout for each slot.

    A pair is the sum of the embeddings of its key and value, a query that of the keys it asks for, each embedded for
    its slot. Positions are not told: pairs are found by what they hold.
    """

    first: Tensor

    def __init__(self, heads: int, slots: int, settings: Settings) -> None:
        super().__init__()
        width = settings.width
        self.slots, self.value_count = slots, settings.values
        self.key, self.value = nn.Embedding(settings.keys, width), nn.Embedding(settings.values, width)
        self.ask = nn.Embedding(slots * settings.keys, width)
        self.register_buffer("first", torch.arange(slots) * settings.keys, persistent=False)
        self.attention = GroupedQueryAttention(width, heads)
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, slots * settings.values)

    def forward(self, rows: Rows) -> Tensor:
        """``[B, Q, slots, values]``."""
        pairs = self.key(rows.keys) + self.value(rows.values)  # [B, P, E]
        queries = self.ask(rows.asked + self.first).sum(2)  # [B, Q, E]
        hidden = queries + self.attention(queries, pairs).output
        read: Tensor = self.readout(self.norm(hidden))
        return read.unflatten(-1, (self.slots, self.value_count))
