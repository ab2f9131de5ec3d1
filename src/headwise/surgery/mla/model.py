"""A transformers model whose attention layers are :class:`headwise.nn.LatentAttention`.

Symbols: B batch, L query length, S key length, E model width, H query heads, p rotary dims, r rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from headwise.attention.masks import UNBOUNDED
from headwise.cache import LatentCache
from headwise.errors import UserError
from headwise.layout import HeadLayout
from headwise.models.checkpoint import Checkpoint
from headwise.nn import LatentAttention

__all__ = ["KIND", "LatentAdapter", "LatentCheckpoint", "put_layer", "window_of"]

KIND = "headwise_latent"


class LatentAdapter(nn.Module):
    """Latent attention in the place of a decoder's attention module: it takes what transformers hands to that.

    With a cache it takes those of ``headwise_cache(model, capacity, kind="latent")`` only, which store latents.

    Args:
        attention: the layer.
        layer: its number.
    """

    def __init__(self, attention: LatentAttention, layer: int) -> None:
        super().__init__()
        self.attention, self.layer_idx, self.is_causal = attention, layer, True

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: object = None,
        attention_mask: Tensor | None = None,
        cache: Any = None,
        past_key_values: Any = None,
        position_ids: Tensor | None = None,
        **_: object,
    ) -> tuple[Tensor, None]:
        """``[B, L, E]`` to the same shape, and no weights.

        Args:
            hidden_states: ``[B, L, E]``.
            position_embeddings: not used: the layer has frequencies of its own.
            attention_mask: boolean ``[B or 1, 1, L, S]`` as ``attn_implementation="headwise"`` has it made, or None.
            cache: of transformers' interface; older versions call it ``past_key_values``.
            past_key_values: see ``cache``.
            position_ids: ``[B or 1, L]``.

        Raises:
            TypeError: the cache, or the mask, is of another kind.
        """
        cache = past_key_values if cache is None else cache
        held = None if cache is None else self._latents_of(cache, hidden_states)
        sees = None
        if attention_mask is not None:
            if attention_mask.dtype != torch.bool:
                raise TypeError(
                    f"LatentAdapter: expected a boolean mask, got {attention_mask.dtype}; run the model with "
                    'attn_implementation="headwise"'
                )
            sees = attention_mask.any(-1)[:, 0].expand(len(hidden_states), -1)  # [B, L]: padding sees nothing
        result = self.attention(
            hidden_states, mask=attention_mask, query_mask=sees, causal=True, positions=position_ids, cache=held
        )
        return result.output, None

    def _latents_of(self, cache: Any, hidden: Tensor) -> LatentCache:
        layers = getattr(cache, "layers", ())
        layer = layers[self.layer_idx] if len(layers) > self.layer_idx else None
        if layer is not None and getattr(layer, "cache", cache) is None:
            widths = self.attention.latent_dim, self.attention.rope_head_dim
            layer.lazy_initialization(*(hidden.new_empty(len(hidden), 1, 0, width) for width in widths))
        held = getattr(layer, "cache", None)
        if not isinstance(held, LatentCache):
            raise TypeError(
                f"LatentAdapter: expected a cache of latents, got {type(cache).__name__}; pass "
                'headwise_cache(model, capacity, kind="latent"), or use_cache=False'
            )
        return held


def window_of(attention: LatentAttention) -> tuple[int | None, int | None] | None:
    """The window of all heads of a layer."""
    (window,) = attention.spans
    return None if window == UNBOUNDED else (window[0], window[1])


def put_layer(model: Any, place: nn.Module, attention: LatentAttention, layer: int) -> LatentAdapter:
    """Put latent attention into the place of an attention module of the model."""
    adapter = LatentAdapter(attention, layer).eval().requires_grad_(False)
    for parent in model.modules():
        for name, child in parent.named_children():
            if child is place:
                setattr(parent, name, adapter)
                return adapter
    raise ValueError(f"{type(model).__name__}: no module holds the attention of layer {layer}")


@dataclass
class LatentCheckpoint(Checkpoint):
    """A checkpoint with latent attention: it runs and is measured like another, and its heads can't be changed.

    ``layouts`` tell what attention works on: H query heads over one KV head, the latent with its rotary key, whose
    values are the latent. Build one with :meth:`of`.
    """

    @classmethod
    def of(
        cls, model: Any, adapters: Sequence[LatentAdapter], *, rank: int, rope: int, **told: Any
    ) -> LatentCheckpoint:
        """From a model all of whose attention modules are adapters by now.

        Args:
            model: its config is told what it has become.
            adapters: of the layers, in order.
            rank: width of the latents.
            rope: width of the rotary key.
            **told: tokenizer, name, source, objective, history and stored dtype of a :class:`Checkpoint`.
        """
        model.config.model_type = KIND  # so that nothing takes its projections for those of the original
        model.config.kv_lora_rank, model.config.qk_rope_head_dim = rank, rope  # for headwise_cache
        layouts = [
            HeadLayout(one.attention.num_heads, 1, rank + rope, rank, window=window_of(one.attention))
            for one in adapters
        ]
        layers: dict[nn.Module, tuple[int, ...]] = {adapter: (layer,) for layer, adapter in enumerate(adapters)}
        return cls(model, layouts=tuple(layouts), attention_layers=layers, **told)

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of latents and rotary keys in all layers, in the dtype that the model runs in."""
        return self.cache_bytes_in(next(self.model.parameters()).dtype)

    def cache_bytes_in(self, dtype: torch.dtype) -> int:
        """The same in another dtype."""
        return sum(layout.head_dim for layout in self.layouts) * dtype.itemsize

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise UserError(
            f"{self.name}: its attention is latent, so its heads can't be watched or changed; give the model that it "
            "was converted from"
        )

    def observe(self, *_: object, **__: object) -> AbstractContextManager[None]:
        """Refused."""
        self._refuse()

    def ablate(self, *_: object, **__: object) -> AbstractContextManager[None]:
        """Refused."""
        self._refuse()

    def gate(self, *_: object, **__: object) -> AbstractContextManager[None]:
        """Refused."""
        self._refuse()

    def read_layouts(self) -> None:
        """Refused."""
        self._refuse()
