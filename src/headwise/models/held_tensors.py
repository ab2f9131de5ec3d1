"""Keys and values on their way from a headwise cache to headwise's attention, through transformers' hands.

transformers passes what a cache hands out as two tensors. Where a cache holds blocks or codes these stand for it:
whoever looks into one gets the whole tensor, which is made then; headwise's attention asks for the part and reads it
in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from headwise.cache import Held

__all__ = ["HeldTensor", "held_part", "held_tensors"]

# What is known without looking into it.
_KNOWN: tuple[Any, ...] = (
    *(vars(torch._C.TensorBase)[name].__get__ for name in ("shape", "dtype", "device", "ndim", "requires_grad")),
    Tensor.size,
    Tensor.dim,
)


class HeldTensor(Tensor):
    """The keys or the values of a part, not made yet.

    Args:
        part: what a cache handed out.
        side: 0 for its keys, 1 for its values.
    """

    part: Held
    side: int

    @staticmethod
    def __new__(cls, part: Held, side: int) -> HeldTensor:
        """A tensor of the right shape without memory."""
        stored = part.stored
        assert stored is not None  # held_tensors asks
        shape = (*stored.shape, stored.widths[side])
        made: HeldTensor = Tensor._make_wrapper_subclass(cls, shape, dtype=stored.dtype, device=stored.device)
        made.part, made.side = part, side
        return made

    def __init__(self, part: Held, side: int) -> None:
        """Everything is done."""

    def whole(self) -> Tensor:
        """The tensor itself."""
        return self.part.values if self.side else self.part.keys

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Whatever is done with it is done with the whole tensor."""
        if function in _KNOWN:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        return function(*tree_map(_whole, args), **tree_map(_whole, kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """The same for those who come another way."""
        return function(*tree_map(_whole, args), **tree_map(_whole, kwargs or {}))


def _whole(given: Any) -> Any:
    return given.whole() if isinstance(given, HeldTensor) else given


def held_tensors(part: Held) -> tuple[Tensor, Tensor]:
    """Keys and values of a part: not made yet where kernels can read them as they lie."""
    stored = part.stored
    if stored is None or not stored.is_readable or torch.compiler.is_compiling():
        return part.keys, part.values
    return HeldTensor(part, 0), HeldTensor(part, 1)


def held_part(key: Tensor, value: Tensor) -> Held | None:
    """The part that these are the keys and values of, or None where they are tensors as any others."""
    if isinstance(key, HeldTensor) and isinstance(value, HeldTensor) and key.part is value.part:
        return key.part
    return None
