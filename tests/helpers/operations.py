"""Watches what PyTorch really runs: the name of every operation, and the memory behind everything it returns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu"


class Operations(TorchDispatchMode):
    """Within ``with Operations() as ran:``, ``ran.names`` and ``ran.largest_bytes`` tell what happened.

    ``largest_bytes`` is the largest storage behind any result, so that an expanded view counts as what it views and a
    copy counts in full. What lay in memory before (``known``) doesn't count.
    """

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self.names: list[str] = []
        self.largest_bytes = 0
        self.largest_name = ""
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.name()
        self.names.append(name)
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in self._known:
                size = tensor.untyped_storage().nbytes()
                if size > self.largest_bytes:
                    self.largest_bytes, self.largest_name = size, name
        return result
