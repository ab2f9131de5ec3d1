"""Tensors that ranks share, and whose gradients are sums over ranks."""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate
from torch.nn import functional

from headwise.nn.heads import local

__all__ = ["LocalLinear", "SharedLinear", "entered", "share", "whole"]


def entered(tensor: Tensor, mesh: DeviceMesh, placement: Placement | None = None) -> DTensor:
    """A plain tensor as a ``DTensor``, by default one that is the same on every rank; its gradient is summed then."""
    if isinstance(tensor, DTensor):
        return tensor
    return DTensor.from_local(tensor, mesh, [Replicate() if placement is None else placement], run_check=False)


def share(tensor: DTensor) -> Tensor:
    """What is the same on every rank, as a plain tensor of which each rank's gradient is a share of the whole one."""
    return tensor.to_local(grad_placements=[Partial()])


def whole(tensor: Tensor) -> DTensor:
    """A ``DTensor`` that lies on every rank in full: shares are summed here, and on the way back those of its gradient.

    Without this a share of a gradient would stay one, as what the parameter's ``grad`` holds.
    """
    assert isinstance(tensor, DTensor)
    return tensor.redistribute(placements=[Replicate()])


class LocalLinear(nn.Linear):
    """A projection by the rows that lie here. The gradient of a plain input is what these rows send back."""

    def __init__(self, spread: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = spread.in_features, spread.out_features
        self.weight, self.bias = spread.weight, spread.bias
        self.train(spread.training)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """``[..., in_features]`` to the features of these rows."""
        bias = None if self.bias is None else self._rows(self.bias)
        return functional.linear(input, self._rows(self.weight), bias)

    def _rows(self, parameter: Tensor) -> Tensor:
        return local(parameter)


class SharedLinear(LocalLinear):
    """A projection that lies on every rank in full and of which this rank computes some rows.

    Gradients of the parameters and of the input are summed over ranks.
    """

    def __init__(self, spread: nn.Linear, mesh: DeviceMesh, rows: slice) -> None:
        super().__init__(spread)
        self._mesh, self._own = mesh, rows

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return super().forward(share(entered(input, self._mesh)))

    def _rows(self, parameter: Tensor) -> Tensor:
        return share(whole(parameter))[self._own]
