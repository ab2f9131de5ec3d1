"""Attention with grouped heads: the operations, and what a head attends to without its map.

Conventions: tensors are ``[batch, heads, length, head_dim]``; query head ``h`` reads KV head ``h // R``; a boolean mask
is True where a query may attend; without an offset the last query stands at the last key.
"""

from headwise.attention.functional import AttentionOutput, attention, attention_weights, attention_with_lse
from headwise.attention.merge import merge
from headwise.attention.statistics import (
    AttentionReading,
    HeadStatistics,
    attention_with_statistics,
    head_statistics,
)

__all__ = [
    "AttentionOutput",
    "AttentionReading",
    "HeadStatistics",
    "attention",
    "attention_weights",
    "attention_with_lse",
    "attention_with_statistics",
    "head_statistics",
    "merge",
]
