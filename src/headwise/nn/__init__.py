"""Attention layers: multi-head, grouped-query and multi-query attention in one module."""

from headwise.nn.grouped import GroupedQueryAttention, LayerOutput
from headwise.nn.interop import TorchMasks, masks_from_torch

__all__ = ["GroupedQueryAttention", "LayerOutput", "TorchMasks", "masks_from_torch"]
