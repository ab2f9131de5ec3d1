"""Training in several processes, on PyTorch's own engines.

``ddp`` (DistributedDataParallel) keeps the whole model on every rank and averages gradients. ``fsdp`` (FSDP2's
``fully_shard``; Zhao et al. 2023) keeps a part of every weight on each rank. Both take the same rows in the same order
as one process does, so they give the same curve but for rounding.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import UserError
from headwise.models.probes import body_of

__all__ = ["ENGINES", "Ranks", "joined", "launched", "like", "whole"]

ENGINES = ("none", "ddp", "fsdp")


def launched() -> bool:
    """Whether this process was started by ``torchrun``."""
    return "TORCHELASTIC_RUN_ID" in os.environ


@dataclass(frozen=True)
class Ranks:
    """The processes that train together.

    Attributes:
        rank, size: of this process, and how many there are.
        engine: ``none``, ``ddp`` or ``fsdp``.
    """

    rank: int = 0
    size: int = 1
    engine: str = "none"

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    def share(self, count: int) -> list[int]:
        """Which of ``count`` rows this rank takes: all ranks take equally many, so some rows may be taken twice."""
        each = -(-count // self.size)
        return [min(place, count - 1) for place in range(self.rank * each, (self.rank + 1) * each)]

    def summed(self, tensor: Tensor) -> Tensor:
        """Its sum over all ranks."""
        if self.engine != "none":
            torch.distributed.all_reduce(tensor)
        return tensor

    def gathered(self, values: Tensor, count: int) -> Tensor:
        """What the ranks found for their shares of ``count`` rows, ``[share, ...]`` each, in the order of the rows."""
        if self.engine == "none":
            return values
        found = [torch.empty_like(values) for _ in range(self.size)]
        torch.distributed.all_gather(found, values.contiguous())
        return torch.cat(found)[:count]

    def wait(self) -> None:
        """Until all are here."""
        if self.engine != "none":
            torch.distributed.barrier()

    def wrapped(self, module: nn.Module, model: Any) -> nn.Module:
        """A module whose gradients are averaged over the ranks.

        Args:
            module: computes the loss; the model is inside.
            model: the model, whose layers ``fsdp`` gathers one after the other.
        """
        device = next(model.parameters()).device
        if self.engine == "ddp":
            return nn.parallel.DistributedDataParallel(module, device_ids=None if device.type == "cpu" else [device])
        if self.engine == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh(device.type, (self.size,))
            for layer in _layers(model):
                fully_shard(layer, mesh=mesh)
            fully_shard(module, mesh=mesh)
        return module

    def keeping(self, module: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Around a part of a batch: gradients stay on their ranks until the last part."""
        if self.engine == "fsdp":
            module.set_requires_gradient_sync(last)  # type: ignore[operator]
        if self.engine == "ddp" and not last:
            return module.no_sync()  # type: ignore[operator]
        return nullcontext()


@contextmanager
def joined(engine: str | None, device: torch.device) -> Iterator[Ranks]:
    """The ranks that ``torchrun`` started, or this process alone.

    Args:
        engine: ``ddp``, ``fsdp`` or ``none``; None for ``ddp`` under ``torchrun``, else ``none``.
        device: where the model lies; a CPU talks by gloo, a GPU by NCCL.

    Raises:
        UserError: no such engine, or one for several processes without ``torchrun``.
    """
    if engine is not None and engine not in ENGINES:
        raise UserError(f"uptrain: expected the engine {', '.join(ENGINES)}, got {engine!r}")
    started = torch.distributed.is_available() and torch.distributed.is_initialized()
    together = started or launched()
    chosen = engine or ("ddp" if together else "none")
    if (chosen != "none") != together:
        found = "several processes" if together else "one process"
        hint = "give ddp or fsdp" if together else "start it with torchrun --nproc-per-node N"
        raise UserError(f"uptrain: expected what {chosen} needs, got {found}; {hint}")
    if not together:
        yield Ranks()
        return
    if not started:
        torch.distributed.init_process_group("gloo" if device.type == "cpu" else "nccl")
    try:
        yield Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size(), chosen)
    finally:
        if not started:
            torch.distributed.destroy_process_group()


def whole(tensor: Tensor) -> Tensor:
    """A tensor with all its parts, where ``fsdp`` has spread them; all ranks must ask together."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """A whole tensor spread as another one is."""
    mesh = getattr(other, "device_mesh", None)
    if mesh is None:
        return tensor.to(other.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(other.device), mesh, other.placements)  # type: ignore[attr-defined]


def _layers(model: Any) -> list[nn.Module]:
    """The blocks of a model: its longest list of modules."""
    lists = [module for module in body_of(model).modules() if isinstance(module, nn.ModuleList)]
    return max((list(one) for one in lists), key=len, default=[])
