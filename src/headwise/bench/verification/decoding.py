"""Whether a model decodes with a cache what it says without one.

Symbols: B batch, L length, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.bench.verification import caches
from headwise.models import Checkpoint
from headwise.models.interface import NAME

__all__ = ["Decoding", "check_decoding"]

_STEPS = 32  # tokens that are decoded one by one


@dataclass(frozen=True)
class Decoding:
    """Logits of the same tokens, read at once and decoded one by one.

    Attributes:
        largest: the largest |difference| of a logit; NaN if one is.
        allowed: what rounding may make of it, see :func:`check_decoding`.
        agreement: share of positions whose largest logit is at the same token.
        prefilled: tokens that the cache held before.
        decoded: tokens that were decoded one by one.
    """

    largest: float
    allowed: float
    agreement: float
    prefilled: int
    decoded: int

    @property
    def agrees(self) -> bool:
        """Whether the difference is rounding."""
        return self.largest <= self.allowed  # NaN is not

    def record(self) -> dict[str, Any]:
        """As JSON holds it."""
        largest = None if self.largest != self.largest else self.largest
        return {**vars(self), "largest": largest, "agrees": self.agrees}


@torch.inference_mode()
def check_decoding(checkpoint: Checkpoint, tokens: Tensor) -> Decoding:
    """Read rows once without a cache, and once into transformers' cache, the last tokens one by one.

    What rounding may do is told by the model itself: four times what it does between headwise attention and
    transformers' eager attention on the same rows, which are the same function. At least it is 64 units of the dtype at
    the largest logit (at most a twentieth of that), as on loading, since two ways may round alike.

    Args:
        checkpoint: a decoder.
        tokens: int64 ``[B, L]``, L at least 2.
    """
    steps = min(_STEPS, tokens.shape[1] // 2)
    start = tokens.shape[1] - steps
    whole = checkpoint.forward(tokens).logits[:, start - 1 :].double()  # [B, steps + 1, V]
    cache = caches.new_cache(checkpoint)
    pieces = [tokens[:, :start], *tokens[:, start:].split(1, dim=1)]
    decoded = torch.cat([caches.advance(checkpoint, cache, piece)[:, -1:] for piece in pieces], dim=1).double()
    eager = _eager_logits(checkpoint, tokens)[:, start - 1 :].double()
    least = min(64 * torch.finfo(checkpoint.model.dtype).eps, 0.05) * whole.abs().max().item()
    return Decoding(
        largest=(decoded - whole).abs().max().item(),
        allowed=max(least, 4 * (eager - whole).abs().max().item()),
        agreement=(decoded.argmax(-1) == whole.argmax(-1)).double().mean().item(),
        prefilled=start,
        decoded=steps,
    )


def _eager_logits(checkpoint: Checkpoint, tokens: Tensor) -> Tensor:
    try:
        checkpoint.model.set_attn_implementation("eager")
        logits: Tensor = checkpoint.forward(tokens).logits
        return logits
    finally:
        checkpoint.model.set_attn_implementation(NAME)
