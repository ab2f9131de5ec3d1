"""Keeping autocast out of attention: products are accumulated in float32 whatever a model around it does."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

__all__ = ["full_precision"]


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """A context without autocast on ``device``; nothing at all where there is none to switch off (``meta``)."""
    kind = device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()
