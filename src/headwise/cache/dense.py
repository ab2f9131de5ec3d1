"""A cache of fixed capacity in one block of memory per tensor: allocated once, written in place, never concatenated.

Axes: ``B`` batch, ``G`` KV heads, ``T`` new tokens, ``D`` head dim, ``Dv`` value head dim.
"""

from __future__ import annotations

import torch
from torch import Tensor


class DenseCache:
    """Keys and values of one layer, ``capacity`` tokens for each of ``batch_size`` sequences.

    All sequences hold equally many tokens; shorter ones are padded and masked by the caller. Slots that were never
    written, or were rolled back, are in no tensor that the cache hands out.

    Args:
        batch_size: ``B``.
        num_kv_heads: ``G``; query heads share them, so they are stored once.
        capacity: tokens per sequence.
        head_dim: ``D``.
        value_head_dim: ``Dv``, default ``D``.
        dtype: default PyTorch's default dtype.
        device: default PyTorch's default device.

    Raises:
        ValueError: a size is no positive integer.
    """

    def __init__(
        self,
        batch_size: int,
        num_kv_heads: int,
        capacity: int,
        head_dim: int,
        value_head_dim: int | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        value_head_dim = head_dim if value_head_dim is None else value_head_dim
        sizes = {
            "batch_size": batch_size,
            "num_kv_heads": num_kv_heads,
            "capacity": capacity,
            "head_dim": head_dim,
            "value_head_dim": value_head_dim,
        }
        for name, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"DenseCache: expected {name} to be a positive integer, got {size!r}")
        # Unwritten memory is left as it is: nobody reads it, so nobody pays for zeros.
        self._keys = torch.empty(batch_size, num_kv_heads, capacity, head_dim, dtype=dtype, device=device)
        self._values = torch.empty(batch_size, num_kv_heads, capacity, value_head_dim, dtype=dtype, device=device)
        self._length = 0

    @property
    def batch_size(self) -> int:
        """``B``."""
        return self._keys.shape[0]

    @property
    def num_kv_heads(self) -> int:
        """``G``."""
        return self._keys.shape[1]

    @property
    def capacity(self) -> int:
        """How many tokens of each sequence fit."""
        return self._keys.shape[2]

    @property
    def head_dim(self) -> int:
        """``D``, the width of a key."""
        return self._keys.shape[3]

    @property
    def value_head_dim(self) -> int:
        """``Dv``, the width of a value."""
        return self._values.shape[3]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of keys and values."""
        return self._keys.dtype

    @property
    def device(self) -> torch.device:
        """Where the memory lies."""
        return self._keys.device

    @property
    def length(self) -> int:
        """How many tokens of each sequence are held."""
        return self._length

    @property
    def keys(self) -> Tensor:
        """The held keys ``[B, G, length, D]``, a view."""
        return self._keys[:, :, : self._length]

    @property
    def values(self) -> Tensor:
        """The held values ``[B, G, length, Dv]``, a view."""
        return self._values[:, :, : self._length]

    @property
    def nbytes(self) -> int:
        """Bytes allocated: ``B * G * capacity * (D + Dv) * itemsize``."""
        return self._keys.nbytes + self._values.nbytes

    @property
    def nbytes_logical(self) -> int:
        """Bytes of the held tokens: ``B * G * length * (D + Dv) * itemsize``."""
        return self.keys.nbytes + self.values.nbytes

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store new tokens behind the held ones.

        Args:
            key: ``[B, G, T, D]``; ``T`` may be 0.
            value: ``[B, G, T, Dv]``.

        Returns:
            Views of all held keys ``[B, G, length, D]`` and values ``[B, G, length, Dv]``.

        Raises:
            TypeError: a dtype differs from the cache's.
            ValueError: a shape or device differs, gradients would be lost, or the tokens don't fit. Nothing is
                stored and nothing is lost then.
        """
        self._check("key", key, self.head_dim)
        self._check("value", value, self.value_head_dim)
        tokens = key.shape[2]
        if value.shape[2] != tokens:
            raise ValueError(f"value: expected {tokens} tokens as in key, got {value.shape[2]}")
        if self._length + tokens > self.capacity:
            raise ValueError(
                f"DenseCache: expected at most {self.capacity - self._length} more tokens ({self._length} of "
                f"{self.capacity} are held), got {tokens}; build it with a larger capacity, or roll back or reset it"
            )
        end = self._length + tokens
        self._keys[:, :, self._length : end] = key.detach()
        self._values[:, :, self._length : end] = value.detach()
        self._length = end
        return self.keys, self.values

    def rollback(self, tokens: int) -> None:
        """Forget the last ``tokens`` tokens of every sequence.

        Raises:
            ValueError: more than are held, or a negative number.
        """
        if not 0 <= tokens <= self._length:
            raise ValueError(f"rollback: expected 0 to {self._length} tokens (those that are held), got {tokens}")
        self._length -= tokens

    def reset(self) -> None:
        """Forget all tokens; the memory is kept."""
        self._length = 0

    def _check(self, name: str, tensor: Tensor, width: int) -> None:
        if tensor.dim() != 4:
            raise ValueError(
                f"{name}: expected 4 axes [batch, KV heads, tokens, width], got {tensor.dim()} in {list(tensor.shape)}"
            )
        expected = {"batch": self.batch_size, "KV heads": self.num_kv_heads, "width": width}
        got = dict(zip(expected, (tensor.shape[0], tensor.shape[1], tensor.shape[3]), strict=True))
        for axis, size in expected.items():
            if got[axis] != size:
                raise ValueError(
                    f"{name}: expected {axis} {size} as in the cache, got {got[axis]} in {list(tensor.shape)}; "
                    "caches hold compact KV heads [batch, KV heads, tokens, width]"
                )
        if tensor.dtype != self.dtype:
            raise TypeError(f"{name}: expected dtype {self.dtype} as in the cache, got {tensor.dtype}; cast it")
        if tensor.device != self.device:
            raise ValueError(f"{name}: expected device {self.device} as in the cache, got {tensor.device}; move it")
        if torch.is_grad_enabled() and tensor.requires_grad:
            raise ValueError(
                f"{name}: expected a tensor without gradient, since a cache keeps numbers and no graph; "
                "run under torch.no_grad() or detach it"
            )

    def __repr__(self) -> str:
        return (
            f"DenseCache(batch_size={self.batch_size}, num_kv_heads={self.num_kv_heads}, capacity={self.capacity}, "
            f"head_dim={self.head_dim}, value_head_dim={self.value_head_dim}, dtype={self.dtype}, "
            f"device={str(self.device)!r}, length={self.length})"
        )
