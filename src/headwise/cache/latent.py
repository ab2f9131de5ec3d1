"""A cache for multi-head latent attention: one latent vector and one rotary key per token, for all heads.

Source: DeepSeek-AI 2024 (arXiv:2405.04434), section 2.1.

Axes: ``B`` batch, ``T`` new tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.cache.counts import Counts, check_dtype, check_sizes
from headwise.cache.dense import PlaneCache
from headwise.cache.held import Held
from headwise.cache.planes import Planes

__all__ = ["LatentCache"]


class LatentCache(PlaneCache):
    """Latents and rotary keys of one layer, side by side in one plane ``[B, 1, capacity, latent_dim + rotary_dim]``.

    To attention it is one KV head: its keys are the whole plane, its values the first ``latent_dim`` columns of the
    same memory. Nothing is stored twice.

    Args:
        batch_size: ``B``.
        capacity: tokens per sequence.
        latent_dim: width of the compressed keys and values.
        rotary_dim: width of the key that carries the positions.
        dtype: default PyTorch's default dtype.
        device: default PyTorch's default device.

    Raises:
        TypeError: ``dtype`` is no floating one that attention knows.
        ValueError: a size is no positive integer.
    """

    def __init__(
        self,
        batch_size: int,
        capacity: int,
        latent_dim: int,
        rotary_dim: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        sizes = {"batch_size": batch_size, "capacity": capacity}
        check_sizes("LatentCache", sizes | {"latent_dim": latent_dim, "rotary_dim": rotary_dim})
        check_dtype("LatentCache", dtype)
        super().__init__(batch_size, 1, latent_dim + rotary_dim, latent_dim)
        self._planes = Planes.empty((batch_size, 1, capacity), [(latent_dim + rotary_dim, dtype)], device)

    @property
    def latent_dim(self) -> int:
        """Width of a latent, the value of attention."""
        return self._value_head_dim

    @property
    def rotary_dim(self) -> int:
        """Width of a rotary key."""
        return self._head_dim - self._value_head_dim

    @property
    def latents(self) -> Tensor:
        """The held latents ``[B, 1, length, latent_dim]``, a view; of a shorter sequence only its first count."""
        return self._planes.views(0, self.length)[0][..., : self.latent_dim]

    @property
    def rotary_keys(self) -> Tensor:
        """The held rotary keys ``[B, 1, length, rotary_dim]``, a view like :attr:`latents`."""
        return self._planes.views(0, self.length)[0][..., self.latent_dim :]

    def append(
        self, latent: Tensor, rotary_key: Tensor, lengths: Tensor | Sequence[int] | None = None
    ) -> tuple[Held, ...]:
        """Store new tokens behind the held ones.

        Args:
            latent: ``[B, 1, T, latent_dim]``; ``T`` may be 0.
            rotary_key: ``[B, 1, T, rotary_dim]``.
            lengths: how many leading tokens of each sequence are real, ``[B]``; default all ``T``.

        Returns:
            One part: keys ``[B, 1, n, latent_dim + rotary_dim]`` and, of the same memory, values
            ``[B, 1, n, latent_dim]``.

        Raises:
            TypeError: a dtype differs from the cache's.
            CacheFullError: the tokens don't fit.
            ValueError: a shape or device differs, or gradients would be lost. In every case nothing is stored and
                nothing is lost.
        """
        return self._append({"latent": (latent, self.latent_dim), "rotary_key": (rotary_key, self.rotary_dim)}, lengths)

    def _store(self, tokens: list[Tensor], new: Counts, after: Counts) -> tuple[Held, ...]:
        self._refuse_beyond(self.capacity, new, after)
        (plane,) = self._planes.tensors
        Planes([plane[..., : self.latent_dim], plane[..., self.latent_dim :]]).write(tokens, self._counts, new)
        return self._hand_out(self._counts, after)

    def _hand_out(self, before: Counts, after: Counts) -> tuple[Held, ...]:
        (keys,) = self._planes.views(0, max(after))
        return self._all_heads(keys, keys[..., : self.latent_dim], before, after)

    def _extra(self) -> dict[str, Any]:
        return {"capacity": self.capacity, "latent_dim": self.latent_dim, "rotary_dim": self.rotary_dim}
