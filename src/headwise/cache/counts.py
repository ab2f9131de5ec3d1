"""How many tokens each sequence has, and the checks of every number and tensor that a cache is given.

Counts live on the host as plain integers: a cache never has to ask the device how full it is. Only numbers that are
*given* as tensors of another device are fetched from there, which waits for it once.

Axes: ``B`` batch, ``G`` KV heads, ``T`` new tokens.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import SupportsIndex, TypeAlias

import torch
from torch import Tensor

from headwise.attention.validation import FLOAT_TYPES

__all__ = [
    "Counts",
    "check_dtype",
    "check_sizes",
    "check_tokens",
    "is_uniform",
    "minus",
    "per_sequence",
    "read_counts",
    "read_index",
    "shared_or_each",
    "what_differs",
]

Counts: TypeAlias = tuple[int, ...]


def check_sizes(who: str, sizes: Mapping[str, object], least: int = 1) -> None:
    """Refuse a size that is no integer of at least ``least``."""
    kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < least:
            raise ValueError(f"{who}: expected {name} to be {kind}, got {size!r}")


def check_dtype(who: str, dtype: torch.dtype | None) -> None:
    """Refuse numbers that attention can't read; None stands for PyTorch's default dtype.

    Raises:
        TypeError: ``dtype`` is none of float16, bfloat16, float32 and float64.
    """
    if dtype is not None and dtype not in FLOAT_TYPES:
        known = ", ".join(map(str, FLOAT_TYPES))
        raise TypeError(f"{who}: expected dtype to be one of {known}, got {dtype!r}; attention reads no other numbers")


def check_tokens(named: Mapping[str, tuple[Tensor, int]], batch: int, heads: int, like: Tensor) -> int:
    """Hold new tokens against the cache and each other.

    Args:
        named: per argument the tensor ``[B, G, T, width]`` and the width expected of it; the first one counts ``T``.
        batch: ``B``.
        heads: ``G``.
        like: a tensor of the cache's dtype and device.

    Returns:
        ``T``.

    Raises:
        TypeError: something is no tensor, or has another dtype.
        ValueError: a shape or device differs, or gradients would be lost.
    """
    for name, (tensor, width) in named.items():
        _check_shape(name, tensor, {"batch": batch, "KV heads": heads, "width": width})
        _check_kind(name, tensor, like)
    (first, (tensor, _)), *rest = named.items()
    for name, (other, _) in rest:
        if other.shape[2] != tensor.shape[2]:
            raise ValueError(f"{name}: expected {tensor.shape[2]} tokens as in {first}, got {other.shape[2]}")
    return tensor.shape[2]


def _check_shape(name: str, tensor: Tensor, expected: Mapping[str, int]) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.dim() != 4:
        raise ValueError(
            f"{name}: expected 4 axes [batch, KV heads, tokens, width], got {tensor.dim()} in {list(tensor.shape)}"
        )
    got = dict(zip(expected, (tensor.shape[0], tensor.shape[1], tensor.shape[3]), strict=True))
    for axis, size in expected.items():
        if got[axis] != size:
            raise ValueError(
                f"{name}: expected {axis} {size} as in the cache, got {got[axis]} in {list(tensor.shape)}; "
                "caches hold compact KV heads [batch, KV heads, tokens, width]"
            )


def _check_kind(name: str, tensor: Tensor, like: Tensor) -> None:
    if tensor.dtype != like.dtype:
        raise TypeError(f"{name}: expected dtype {like.dtype} as in the cache, got {tensor.dtype}; cast it")
    if tensor.device != like.device:
        raise ValueError(f"{name}: expected device {like.device} as in the cache, got {tensor.device}; move it")
    if torch.is_grad_enabled() and tensor.requires_grad:
        raise ValueError(
            f"{name}: expected a tensor without gradient, since a cache keeps numbers and no graph; "
            "run under torch.no_grad() or detach it"
        )


def read_counts(name: str, numbers: SupportsIndex | Tensor | Sequence[int], batch: int) -> Counts:
    """One number for all sequences or one for each, as ``B`` integers of the host.

    Args:
        name: who asks, for errors.
        numbers: an integer (of Python, of numpy, or a tensor without axes) for all sequences; or ``[B]``.
        batch: ``B``.

    Raises:
        TypeError: something is no integer.
        ValueError: there are not ``B`` of them.
    """
    if type(numbers) is int:  # asked first, since a protocol takes as long as the rest of a rollback
        return (numbers,) * batch
    if isinstance(numbers, Tensor) and numbers.dim() == 0:
        return _integers(name, numbers[None]) * batch
    if isinstance(numbers, SupportsIndex) and not isinstance(numbers, Tensor):
        return (_integer(name, numbers),) * batch
    counts = _integers(name, numbers)
    if len(counts) != batch:
        raise ValueError(f"{name}: expected {batch} numbers, one per sequence, got {len(counts)}")
    return counts


def read_index(name: str, batch_index: Tensor | Sequence[int], batch: int) -> Counts:
    """Numbers of sequences, at least one, as integers of the host.

    Raises:
        TypeError: something is no integer.
        ValueError: there is none, or one is out of range.
    """
    index = _integers(name, batch_index)
    if not index:
        raise ValueError(f"{name}: expected at least one sequence, got none")
    for entry in index:
        if not 0 <= entry < batch:
            raise ValueError(f"{name}: expected sequences from 0 to {batch - 1}, got {entry} in {list(index)}")
    return index


def _integers(name: str, numbers: object) -> Counts:
    if isinstance(numbers, Tensor):
        if numbers.dtype.is_floating_point or numbers.dtype.is_complex or numbers.dtype == torch.bool:
            raise TypeError(f"{name}: expected integers, got {numbers.dtype}; cast with .long()")
        if numbers.dim() != 1:
            raise ValueError(f"{name}: expected one axis, got {list(numbers.shape)}")
        return tuple(numbers.tolist())
    if not isinstance(numbers, Sequence) or isinstance(numbers, str):
        raise TypeError(f"{name}: expected integers, got {type(numbers).__name__}")
    return tuple(_integer(name, number) for number in numbers)


def _integer(name: str, number: object) -> int:
    """An integer of any library as one of Python; truth values and fractions are none."""
    if isinstance(number, bool) or (isinstance(number, Tensor) and number.dtype == torch.bool):
        raise TypeError(f"{name}: expected integers, got {number!r}")
    try:
        return operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name}: expected integers, got {number!r}") from None


def is_uniform(counts: Counts) -> bool:
    """Whether all sequences have the same number."""
    return counts.count(counts[0]) == len(counts)


def minus(counts: Counts, others: Counts) -> Counts:
    """How much more each sequence has than in ``others``."""
    return tuple(count - other for count, other in zip(counts, others, strict=True))


def per_sequence(counts: Counts, device: torch.device) -> Tensor:
    """The numbers as int64 ``[B]``."""
    return torch.tensor(counts, dtype=torch.int64, device=device)


def shared_or_each(counts: Counts, device: torch.device) -> int | Tensor:
    """The number that all sequences share, or int64 ``[B]``."""
    return counts[0] if is_uniform(counts) else per_sequence(counts, device)


def what_differs(counts: Counts, all_of: int, device: torch.device) -> Tensor | None:
    """int64 ``[B]``, or None where every sequence has ``all_of``."""
    return None if counts == (all_of,) * len(counts) else per_sequence(counts, device)
