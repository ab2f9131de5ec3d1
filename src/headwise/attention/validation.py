"""What the arguments of one attention call must look like, checked once at the public door.

Axes: ``B`` batch, ``L`` query length, ``S`` key length, ``H`` query heads, ``G`` KV heads, ``D`` head dim,
``Dv`` value head dim. Every error names the argument, what was expected, what came, and what to do about it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor

from headwise.attention.masks import is_cheap_to_look_at

FLOAT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def shape_text(tensor: Tensor) -> str:
    """The shape of ``tensor`` as it is written in messages, for example ``[2, 3, 5, 7]``."""
    return str(list(tensor.shape))


def check_tensors(query: Tensor, key: Tensor, value: Tensor | None) -> None:
    """Hold query ``[B, H, L, D]``, key ``[B, G, S, D]`` and value ``[B, G, S, Dv]`` against each other.

    Raises:
        TypeError: something is no tensor, or has another dtype than the query.
        ValueError: a rank, batch, head count, width, length or device does not fit.
    """
    named = {"query": query, "key": key} | ({} if value is None else {"value": value})
    for name, tensor in named.items():
        _check_operand(name, tensor, query)
    if query.shape[0] != key.shape[0]:
        raise ValueError(
            f"key: expected batch {query.shape[0]} as in query {shape_text(query)}, got {key.shape[0]} in "
            f"{shape_text(key)}; expand the smaller one"
        )
    _check_heads(query.shape[1], key.shape[1])
    if query.shape[3] != key.shape[3]:
        raise ValueError(
            f"key: expected head_dim {query.shape[3]} as in query {shape_text(query)}, got {key.shape[3]} in "
            f"{shape_text(key)}; query and key must share their width (only value may differ)"
        )
    if query.shape[3] == 0:
        raise ValueError(f"query: expected a positive head_dim, got {shape_text(query)}; the last axis is head_dim")
    if value is not None and value.shape[:3] != key.shape[:3]:
        raise ValueError(
            f"value: expected [batch, KV heads, length] = {list(key.shape[:3])} as in key, got "
            f"{list(value.shape[:3])} in {shape_text(value)}; key and value come in pairs"
        )


def _check_operand(name: str, tensor: Tensor, query: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}; convert it first")
    if tensor.dim() != 4:
        raise ValueError(
            f"{name}: expected 4 axes [batch, heads, length, head_dim], got {tensor.dim()} in "
            f"{shape_text(tensor)}; add the missing axis or transpose heads before length"
        )
    if tensor.dtype not in FLOAT_TYPES:
        names = ", ".join(str(kind).removeprefix("torch.") for kind in FLOAT_TYPES)
        raise TypeError(f"{name}: expected one of {names}, got {tensor.dtype}; cast it with .to(...)")
    if tensor.dtype != query.dtype:
        raise TypeError(f"{name}: expected dtype {query.dtype} as in query, got {tensor.dtype}; cast one of them")
    check_device(name, tensor, query.device)


def _check_heads(heads: int, kv_heads: int) -> None:
    if heads == 0 or kv_heads == 0:
        raise ValueError(f"query, key: expected at least one head each, got {heads} query and {kv_heads} KV heads")
    if heads % kv_heads:
        raise ValueError(
            f"query: expected a head count that {kv_heads} KV heads divide, got {heads}; query head h reads "
            "KV head h // (heads / KV heads), so every KV head must serve equally many"
        )


def holds_integers(tensor: Tensor) -> bool:
    """Whether its dtype is one of whole numbers; booleans are none."""
    return not (tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool)


def check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    """Refuse a tensor that lives elsewhere than the query does."""
    if tensor.device != device:
        raise ValueError(f"{name}: expected device {device} as in query, got {tensor.device}; move it with .to(...)")


def check_mask(mask: Tensor | None, shape: Sequence[int], device: torch.device) -> Tensor | None:
    """A boolean mask (True = may attend) as four axes, each full or 1."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask: expected a bool tensor (True = may attend), got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(
            f"mask: expected dtype torch.bool (True = may attend), got {mask.dtype}; "
            "pass numbers that are added to the scores as bias="
        )
    return _broadcastable("mask", mask, shape, device)


def check_bias(bias: Tensor | None, shape: Sequence[int], device: torch.device) -> Tensor | None:
    """A floating bias, added to the scores, as four axes, each full or 1."""
    if bias is None:
        return None
    if not isinstance(bias, Tensor):
        raise TypeError(f"bias: expected a floating tensor, got {type(bias).__name__}")
    if not bias.dtype.is_floating_point:
        raise TypeError(
            f"bias: expected a floating dtype, got {bias.dtype}; pass a boolean mask (True = may attend) as mask="
        )
    return _broadcastable("bias", bias, shape, device)


def _broadcastable(name: str, tensor: Tensor, shape: Sequence[int], device: torch.device) -> Tensor:
    check_device(name, tensor, device)
    sizes = (1,) * (4 - tensor.dim()) + tuple(tensor.shape)
    if len(sizes) != 4 or any(size not in (1, full) for size, full in zip(sizes, shape, strict=True)):
        raise ValueError(
            f"{name}: expected a shape that broadcasts to [batch, heads, queries, keys] = {list(shape)}, got "
            f"{shape_text(tensor)}; one of [batch, keys] is passed as {name}[:, None, None, :], one of "
            f"[batch, queries, keys] as {name}[:, None]"
        )
    return tensor.reshape(sizes)


def check_sinks(sinks: Tensor | None, heads: int, device: torch.device) -> Tensor | None:
    """One logit per query head, ``[H]``."""
    return None if sinks is None else _head_numbers("sinks", sinks, [(heads,)], device)


def check_slopes(slopes: Tensor | None, heads: int, batch: int, device: torch.device) -> Tensor | None:
    """One ALiBi slope per query head, ``[H]`` or ``[B, H]``, as ``[1 or B, H, 1, 1]``."""
    if slopes is None:
        return None
    return _head_numbers("alibi_slopes", slopes, [(heads,), (batch, heads)], device).reshape(-1, heads, 1, 1)


def _head_numbers(name: str, tensor: Tensor, shapes: list[tuple[int, ...]], device: torch.device) -> Tensor:
    if not isinstance(tensor, Tensor) or not tensor.dtype.is_floating_point:
        got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(f"{name}: expected a floating tensor with one number per query head, got {got}")
    if tuple(tensor.shape) not in shapes:
        texts = " or ".join(str(list(sizes)) for sizes in shapes)
        raise ValueError(f"{name}: expected shape {texts}, one number per query head, got {shape_text(tensor)}")
    check_device(name, tensor, device)
    return tensor


def check_positions(
    name: str, numbers: Tensor | Sequence[int] | None, batch: int, device: torch.device
) -> Tensor | None:
    """One integer per sequence, ``[B]``, as a LongTensor."""
    if numbers is None:
        return None
    tensor = numbers if isinstance(numbers, Tensor) else torch.as_tensor(numbers, device=device)
    if not holds_integers(tensor):
        raise TypeError(f"{name}: expected integers, got {tensor.dtype}; cast with .long()")
    if tuple(tensor.shape) != (batch,):
        raise ValueError(f"{name}: expected shape [{batch}], one number per sequence, got {shape_text(tensor)}")
    check_device(name, tensor, device)
    return tensor.long()


def check_key_lengths(
    lengths: Tensor | Sequence[int] | None, batch: int, keys: int, device: torch.device
) -> Tensor | None:
    """How many leading keys each sequence holds, ``[B]``.

    The range is checked on a CPU in eager mode only: elsewhere it would wait for the device or break the graph.
    """
    tensor = check_positions("key_lengths", lengths, batch, device)
    if tensor is not None and is_cheap_to_look_at(tensor) and bool(((tensor < 0) | (tensor > keys)).any()):
        raise ValueError(
            f"key_lengths: expected numbers from 0 to {keys} (the key length), got {tensor.tolist()}; "
            "it counts the leading keys that are held, new ones included"
        )
    return tensor


def settle_offset(
    offset: int | Tensor | Sequence[int] | None,
    lengths: Tensor | None,
    shape: tuple[int, int, int, int],
    device: torch.device,
) -> int | Tensor:
    """The absolute position of the first query, for all sequences or ``[B]``: the last query stands at the last key
    unless an offset is given."""
    batch, _, queries, keys = shape
    if offset is None:
        return keys - queries if lengths is None else lengths - queries
    if isinstance(offset, (int, torch.SymInt)) and not isinstance(offset, bool):
        return offset
    if not isinstance(offset, (Tensor, Sequence)):
        raise TypeError(f"offset: expected an integer, a LongTensor [{batch}] or None, got {type(offset).__name__}")
    checked = check_positions("offset", offset, batch, device)
    assert checked is not None
    return checked


def check_scale(scale: float | None, head_dim: int) -> float:
    """The factor of the scores; ``1 / sqrt(D)`` where none is given."""
    return head_dim**-0.5 if scale is None else _finite("scale", scale)


def check_softcap(softcap: float | None) -> float | None:
    """The bound of the scaled scores, ``softcap * tanh(score / softcap)``."""
    if softcap is None:
        return None
    number = _finite("softcap", softcap)
    if number <= 0:
        raise ValueError(f"softcap: expected a positive number, got {number}; leave it None for no soft-cap")
    return number


def _finite(name: str, number: object) -> float:
    if isinstance(number, bool) or not isinstance(number, Real):
        raise TypeError(f"{name}: expected a number or None, got {type(number).__name__}")
    # A number that a compiled graph leaves open is none that math could look at.
    if not torch.compiler.is_compiling() and not math.isfinite(number):
        raise ValueError(f"{name}: expected a finite number, got {number}")
    return float(number)
