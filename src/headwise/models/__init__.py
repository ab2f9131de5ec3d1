"""Opening real checkpoints, running them on headwise attention, and watching or changing their heads."""

from headwise.models.cache import headwise_cache
from headwise.models.checkpoint import Check, Checkpoint
from headwise.models.interface import register
from headwise.models.layers import attention_layer
from headwise.models.load import load
from headwise.models.probes import HeadCall

__all__ = ["Check", "Checkpoint", "HeadCall", "attention_layer", "headwise_cache", "load", "register"]
