"""Compact caches of keys and values: each KV head is stored once, never once per query head.

Every cache keeps to :class:`KeyValueCache`; :func:`attend` runs attention over what one hands out.
"""

from headwise.cache.attend import attend, attend_weights
from headwise.cache.base import Snapshot
from headwise.cache.dense import DenseCache
from headwise.cache.held import Held
from headwise.cache.latent import LatentCache
from headwise.cache.paged import PagedCache
from headwise.cache.pool import BlockPool
from headwise.cache.protocol import CacheFullError, KeyValueCache
from headwise.cache.quantized import QuantizedCache
from headwise.cache.window import WindowCache

__all__ = [
    "BlockPool",
    "CacheFullError",
    "DenseCache",
    "Held",
    "KeyValueCache",
    "LatentCache",
    "PagedCache",
    "QuantizedCache",
    "Snapshot",
    "WindowCache",
    "attend",
    "attend_weights",
]
