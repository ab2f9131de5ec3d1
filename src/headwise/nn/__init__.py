"""Attention layers: multi-head, grouped-query and multi-query attention in one module, and what they are made of.

Tensor parallelism is loaded on first use: ``torch.distributed.tensor`` takes about as long to import as PyTorch itself,
and few need it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headwise.nn.context import context_parallel_attention, merge_over_ranks
from headwise.nn.grouped import GroupedQueryAttention
from headwise.nn.interop import TorchMasks, masks_from_torch
from headwise.nn.latent import LatentAttention, LatentForm
from headwise.nn.norm import RMSNorm
from headwise.nn.outputs import LayerOutput, ProjectedContext
from headwise.nn.rope import RotaryEmbedding, to_half_split, to_interleaved

if TYPE_CHECKING:
    from headwise.nn.parallel import HeadParallel, local_kv_heads, tensor_parallel_plan

__all__ = [
    "GroupedQueryAttention",
    "HeadParallel",
    "LatentAttention",
    "LatentForm",
    "LayerOutput",
    "ProjectedContext",
    "RMSNorm",
    "RotaryEmbedding",
    "TorchMasks",
    "context_parallel_attention",
    "local_kv_heads",
    "masks_from_torch",
    "merge_over_ranks",
    "tensor_parallel_plan",
    "to_half_split",
    "to_interleaved",
]

_PARALLEL = ("HeadParallel", "local_kv_heads", "tensor_parallel_plan")


def __getattr__(name: str) -> Any:
    if name not in _PARALLEL:
        raise AttributeError(f"module 'headwise.nn' has no attribute {name!r}; it offers {', '.join(__all__)}")
    value = getattr(import_module("headwise.nn.parallel"), name)
    globals()[name] = value  # from now on without this detour
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
