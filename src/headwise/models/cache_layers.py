"""headwise caches in the shape of transformers caches: one layer, all layers, and the pair of an encoder-decoder.

transformers asks a layer to store keys and values and to hand out what the new queries may see, and beforehand, when it
makes the mask, how many keys that will be and at which position they start. So the two answers have to agree.

Symbols: B batch, G KV heads, T new tokens, n keys handed out, D head dim, Dv value head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache

from headwise.cache import CacheFullError, Held, KeyValueCache, LatentCache, PagedCache
from headwise.cache.copies import DeepCopies
from headwise.models.held_tensors import held_tensors
from headwise.models.interface import NAME

__all__ = ["HeadwiseCache", "HeadwiseEncoderDecoderCache", "HeadwiseLayer"]


class HeadwiseLayer(DeepCopies, CacheLayerMixin):
    """One layer of a transformers cache, kept in a headwise cache that is made when the first keys arrive.

    Args:
        make: makes the cache from the first keys ``[B, G, T, D]`` and values ``[B, G, T, Dv]``.
        capacity: tokens per sequence, or None where nothing limits them or ``make`` takes as many as come first.
        left: how many keys before its own position a query sees; None for all.
        margin: how many tokens of a layer with a window can be taken back.
        config: that of the model, which tells the attention that will read; None: any.
    """

    is_compileable = False

    def __init__(
        self,
        make: Callable[[Tensor, Tensor], KeyValueCache],
        capacity: int | None,
        left: int | None = None,
        margin: int = 0,
        config: Any = None,
    ) -> None:
        # The base class would set keys and values, which are read off the cache here.
        self.cache: KeyValueCache | None = None
        self._make, self._capacity, self._left, self._margin = make, capacity, left, margin
        self._config = config

    @property
    def is_initialized(self) -> bool:  # type: ignore[override]
        """Whether memory has been allocated."""
        return self.cache is not None

    @property
    def is_sliding(self) -> bool:
        """Whether the layer holds a window only: transformers makes another mask for it."""
        return self._left is not None

    @property
    def is_croppable(self) -> bool:  # type: ignore[override]
        """Whether tokens can be taken back, as assisted decoding does."""
        return self._left is None or self._margin > 0

    @property
    def batch_size(self) -> int:
        """``B``; no attribute of that name before the first update, as transformers expects it."""
        if self.cache is None:
            raise AttributeError("batch_size")
        return self.cache.batch_size

    @property
    def keys(self) -> Tensor | None:  # type: ignore[override]
        """The held keys ``[B, G, n, D]``, or None before the first update."""
        return None if self.cache is None else self._pair(_only(self.cache.held()))[0]

    @property
    def values(self) -> Tensor | None:  # type: ignore[override]
        """The held values ``[B, G, n, Dv]``, or None before the first update."""
        return None if self.cache is None else self._pair(_only(self.cache.held()))[1]

    @property
    def nbytes(self) -> int:
        """Bytes allocated so far."""
        if self.cache is None:
            return 0
        # The pool serves this layer alone, so all of it counts, and not only the blocks in use.
        return self.cache.pool.nbytes if isinstance(self.cache, PagedCache) else self.cache.nbytes

    @property
    def nbytes_logical(self) -> int:
        """Bytes of the tokens held."""
        return 0 if self.cache is None else self.cache.nbytes_logical

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate for keys and values of these shapes, dtype and device."""
        self.cache = self._make(key_states, value_states)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store new keys and values; ``args`` and ``kwargs`` are what transformers passes along for other caches.

        Args:
            key_states: ``[B, G, T, D]``.
            value_states: ``[B, G, T, Dv]``.

        Returns:
            What the new tokens may see, ``[B, G, n, D]`` and ``[B, G, n, Dv]``, as :meth:`get_mask_sizes` announced.

        Raises:
            CacheFullError: the tokens don't fit. Nothing is stored, in this layer and in all others.
            TypeError, ValueError: dtype, shape or device differ from those of the tokens held.
        """
        self._check_room(key_states.shape[2])
        if self.cache is None or not self._serves(self.cache, key_states, value_states):
            self.lazy_initialization(key_states, value_states)
        assert self.cache is not None
        part = _only(self.cache.append(key_states, value_states))
        # Only headwise's own attention knows what to do with less than two tensors.
        is_own = getattr(self._config, "_attn_implementation", None) == NAME
        return held_tensors(part) if is_own and part.stored is not None else self._pair(part)

    def _pair(self, held: Held) -> tuple[Tensor, Tensor]:
        """Both tensors as they came."""
        if isinstance(self.cache, LatentCache):  # it hands out the latent and the rotary key as one
            return held.values, held.keys[..., self.cache.latent_dim :]
        return held.keys, held.values

    def _check_room(self, tokens: int) -> None:
        length = self.get_seq_length()
        if self._capacity is not None and length + tokens > self._capacity:
            raise CacheFullError(
                f"headwise_cache: expected at most {self._capacity - length} more tokens ({length} of "
                f"{self._capacity} are held), got {tokens}; build it with a capacity of {length + tokens} or more, "
                "or reset it"
            )

    def _serves(self, cache: KeyValueCache, key: Tensor, value: Tensor) -> bool:
        """Whether new tokens go into the memory there is: after a reset the next batch may be another one."""
        if cache.length > 0:
            return True  # what doesn't fit now is refused by the cache, by name
        if self._capacity is None and self._left is None:
            return False  # it had room for one call
        widths = (cache.head_dim, cache.value_head_dim)
        if isinstance(cache, LatentCache):
            widths = (cache.latent_dim, cache.rotary_dim)
        has = (cache.batch_size, cache.num_kv_heads, *widths, cache.dtype, cache.device)
        return has == (*key.shape[:2], key.shape[3], value.shape[3], key.dtype, key.device)

    def get_seq_length(self) -> int:
        """How many tokens were seen, those that a window has dropped included."""
        return 0 if self.cache is None else self.cache.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many keys ``query_length`` new tokens will be given, and the position of the first."""
        length = self.get_seq_length()
        start = 0 if self._left is None else max(length - self._left, 0)
        return length - start + query_length, start

    def get_max_length(self) -> int:
        """Tokens per sequence; -1 for no limit."""
        return -1 if self._capacity is None else self._capacity

    def crop(self, tokens_to_remove: int) -> None:
        """Take back ``-tokens_to_remove`` tokens (the sign is transformers').

        Raises:
            ValueError: a positive number, more tokens than are held, or more than a window can take back. Nothing
                changes.
        """
        self.check_crop(tokens_to_remove)
        if self.cache is not None:
            self.cache.rollback(-tokens_to_remove)

    def check_crop(self, tokens_to_remove: int) -> None:
        """Raise what :meth:`crop` would raise, and change nothing."""
        if tokens_to_remove > 0:
            raise ValueError(
                f"crop: expected 0, or minus the number of tokens to take back, got {tokens_to_remove}; "
                f"to keep so many of {self.get_seq_length()}, pass {tokens_to_remove - self.get_seq_length()}"
            )
        if self.cache is None:
            return
        try:
            self.cache.check_rollback(-tokens_to_remove)
        except ValueError as error:
            if self._left is None or -tokens_to_remove > self.get_seq_length():
                raise
            raise ValueError(
                f"headwise_cache: a layer with a window of {self._left + 1} keys cannot take back {-tokens_to_remove} "
                f"tokens with margin={self._margin}; build it with margin={-tokens_to_remove} or more"
            ) from error

    def activate_past_recording(self) -> None:
        """Called where tokens will be taken back.

        Raises:
            ValueError: this layer has no margin for that.
        """
        if self._left is not None and self._margin == 0:
            raise ValueError(
                f"headwise_cache: assisted decoding takes tokens back, and a layer with a window of {self._left + 1} "
                "keys keeps none beyond it with margin=0; build it with a margin of the tokens drafted at once"
            )

    def reset(self) -> None:
        """Forget all tokens; the memory is kept."""
        if self.cache is not None:
            self.cache.reset()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Sequence ``b`` becomes what sequence ``beam_idx[b]`` was (beam search)."""
        if self.cache is not None and self.cache.length > 0:
            self.cache.reorder(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these sequences, given by number or as a boolean mask ``[B]``."""
        indices = torch.as_tensor(indices)
        self._select(indices.nonzero().flatten() if indices.dtype == torch.bool else indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence ``repeats`` times, copies side by side."""
        if self.cache is not None:
            self._select(torch.arange(self.cache.batch_size).repeat_interleave(repeats))

    def _select(self, index: Tensor) -> None:
        if self.cache is None or self.cache.length == 0:
            return  # the first tokens tell the batch size
        if not isinstance(self.cache, PagedCache) or len(index) <= self.cache.batch_size:
            self.cache.select(index)
            return
        # The pool was made for fewer sequences and would run out before they reach the capacity.
        held = self._pair(_only(self.cache.held()))
        keys, values = (tensor.index_select(0, index.to(tensor.device)) for tensor in held)
        self.lazy_initialization(keys, values)
        self.cache.append(keys, values)

    def __repr__(self) -> str:
        return f"HeadwiseLayer({self.cache!r})"


def _only(held: tuple[Held, ...]) -> Held:
    """The one part of a layer in which all heads see equally far, as they do in transformers."""
    (part,) = held
    return part


class HeadwiseCache(DeepCopies, Cache):
    """A transformers cache whose layers are headwise caches. ``headwise.models.headwise_cache`` builds it."""

    def __init__(self, layers: list[Any]) -> None:
        super().__init__(layers=layers)

    @property
    def nbytes(self) -> int:
        """Bytes allocated for all layers; 0 before the first tokens, which tell batch size and dtype."""
        return sum(layer.nbytes for layer in self._own_layers())

    @property
    def nbytes_logical(self) -> int:
        """Bytes of the tokens held, in all layers."""
        return sum(layer.nbytes_logical for layer in self._own_layers())

    def crop(self, tokens_to_remove: int) -> None:
        """Take back ``-tokens_to_remove`` tokens in all layers, or raise and change none.

        Raises:
            ValueError: see :meth:`HeadwiseLayer.crop`.
        """
        # Layers with a window may refuse what the others can do, and what one refuses, none of them does.
        for layer in self._own_layers():
            layer.check_crop(tokens_to_remove)
        for layer in self._own_layers():
            layer.crop(tokens_to_remove)

    def _own_layers(self) -> list[HeadwiseLayer]:
        """Without the placeholders of layers that have no cache of their own."""
        return [layer for layer in self.layers if isinstance(layer, HeadwiseLayer)]


class HeadwiseEncoderDecoderCache(DeepCopies, EncoderDecoderCache):
    """The caches of a decoder's own keys and of those that it reads from the encoder."""

    def __init__(self, own: HeadwiseCache, crossing: HeadwiseCache) -> None:
        super().__init__(own, crossing)
        self._both = (own, crossing)

    @property
    def nbytes(self) -> int:
        """Bytes allocated for both."""
        return sum(part.nbytes for part in self._both)

    @property
    def nbytes_logical(self) -> int:
        """Bytes of the tokens held in both."""
        return sum(part.nbytes_logical for part in self._both)

    def check_dynamic_cache(self, method: str) -> None:
        """transformers refuses what its own fixed-size caches can't do; these can."""
