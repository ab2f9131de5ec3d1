"""Compact caches of keys and values: each KV head is stored once, never once per query head."""

from headwise.cache.dense import DenseCache
from headwise.cache.protocol import KeyValueCache

__all__ = ["DenseCache", "KeyValueCache"]
