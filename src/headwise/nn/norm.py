"""Root-mean-square normalisation of queries, keys and latents."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["RMSNorm"]


class RMSNorm(nn.RMSNorm):
    """``x / sqrt(mean(x ** 2) + eps) * weight`` over the last axis, as ``torch.nn.RMSNorm``, in one more variant.

    Half types are computed in float32 and rounded once, also under autocast. The state dict holds ``weight``
    ``[width]``.

    Args:
        width: of the last axis.
        eps: joins the mean square.
        unit_offset: multiply by ``1 + weight`` and start at weight 0, as Gemma does, instead of by ``weight``.
        device, dtype: of the weight.

    Source: Zhang and Sennrich 2019 (arXiv:1910.07467), section 4, with ``eps``.
    """

    def __init__(
        self,
        width: int,
        *,
        eps: float = 1e-6,
        unit_offset: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.unit_offset = unit_offset  # before the parent initialises the weight
        super().__init__(width, eps=eps, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Scale by 1."""
        (nn.init.zeros_ if self.unit_offset else nn.init.ones_)(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., width]`` to the same shape and dtype."""
        compute = torch.promote_types(x.dtype, torch.float32)
        weight = self.weight.to(compute)
        weight = 1 + weight if self.unit_offset else weight
        return functional.rms_norm(x.to(compute), self.normalized_shape, weight, self.eps).to(x.dtype)

    def extra_repr(self) -> str:
        """The settings, for ``print``."""
        return super().extra_repr() + (", unit_offset=True" if self.unit_offset else "")
