"""transformers in float64 throughout.

Its modules round to float32 on the way (softmax, norms, angles) even where everything else is float64. Under this mode
these roundings are to float64, so that the same code is an exact judge.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Widened(TorchFunctionMode):
    """Within ``with Widened():`` whatever asks for float32 gets float64."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.float:
            return args[0].double()
        widened = [torch.float64 if argument is torch.float32 else argument for argument in args]
        named = {
            name: torch.float64 if argument is torch.float32 else argument for name, argument in (kwargs or {}).items()
        }
        return function(*widened, **named)
