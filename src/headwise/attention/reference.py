"""The oracle: attention one query and one head at a time, in float64, straight from the formula.

It shares no code with the backends and they share none with it: it decides about each (query, key) pair in Python,
*picks* the keys that may be read (so that nothing else can leak in), and reads the compact K/V head ``h // R``. It is
slow and differentiable. Only tests and ``headwise verify`` should call it.

Axes: ``B`` batch, ``L`` query length, ``S`` key length, ``H`` query heads, ``G`` KV heads, ``R = H / G``, ``D`` head
dim, ``Dv`` value head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["ReferenceOutput", "reference_attention", "reference_visible"]


_OPTIONS = "mask bias causal window offset key_lengths cu_seqlens scale softcap sinks alibi_slopes".split()


class ReferenceOutput(NamedTuple):
    """Float64 results of :func:`reference_attention`.

    Attributes:
        output: ``[B, H, L, Dv]``.
        lse: ``[B, H, L]`` in nats, the sink included; ``-inf`` where a query sees no key.
        weights: ``[B, H, L, S]``; 0 where a key may not be read.
    """

    output: Tensor
    lse: Tensor
    weights: Tensor


@dataclass(frozen=True)
class _Call:
    """The arguments of one call, with the optional ones as given."""

    query: Tensor
    key: Tensor
    value: Tensor
    options: dict[str, Any]

    def option(self, name: str) -> Any:
        return self.options.get(name)


def reference_attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> ReferenceOutput:
    """Attention by definition. Arguments and meaning are those of :func:`headwise.attention.attention`.

    Args:
        query: ``[B, H, L, D]``.
        key: ``[B, G, S, D]``.
        value: ``[B, G, S, Dv]``.
        **options: ``mask``, ``bias``, ``causal``, ``window``, ``offset``, ``key_lengths``, ``cu_seqlens``, ``scale``,
            ``softcap``, ``sinks``, ``alibi_slopes``.

    Raises:
        TypeError: an option has another name.
    """
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise TypeError(
            f"reference_attention: no option is called {', '.join(unknown)}; there are {', '.join(_OPTIONS)}"
        )
    call = _Call(query.double(), key.double(), value.double(), options)
    batch, heads, queries, _ = query.shape
    rows = [
        _row(call, b, h, i) for b in range(batch) for h in range(heads) for i in range(queries)
    ]  # in the order of [B, H, L]
    if not rows:
        shape = (batch, heads, queries)
        return ReferenceOutput(*(call.query.new_zeros(shape + end) for end in ((value.shape[3],), (), (key.shape[2],))))
    output, lse, weights = (
        torch.stack(parts).unflatten(0, (batch, heads, queries)) for parts in zip(*rows, strict=True)
    )
    return ReferenceOutput(output, lse, weights)


def reference_visible(query: Tensor, key: Tensor, **options: Any) -> Tensor:
    """Which keys may be read by which queries, ``[B, H, L, S]``, True = may read; options as above."""
    call = _Call(query, key, key, options)
    (batch, heads, queries, _), keys = query.shape, key.shape[2]
    pairs = [
        _may_read(call, b, h, i, j)
        for b in range(batch)
        for h in range(heads)
        for i in range(queries)
        for j in range(keys)
    ]
    return torch.tensor(pairs, dtype=torch.bool).reshape(batch, heads, queries, keys)


def _row(call: _Call, b: int, h: int, i: int) -> tuple[Tensor, Tensor, Tensor]:
    """Output ``[Dv]``, LSE (a number) and weights ``[S]`` of one query of one head."""
    kv_head = h // (call.query.shape[1] // call.key.shape[1])
    readable = [j for j in range(call.key.shape[2]) if _may_read(call, b, h, i, j)]
    weights = call.query.new_zeros(call.key.shape[2])
    if not readable:
        return call.query.new_zeros(call.value.shape[3]), call.query.new_tensor(-torch.inf), weights
    logits = call.key[b, kv_head, readable] @ call.query[b, h, i] * _scale(call)
    cap = call.option("softcap")
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    logits = logits + torch.stack([_added(call, b, h, i, j) for j in readable])
    if bool((logits == -torch.inf).all()):
        return call.query.new_zeros(call.value.shape[3]), call.query.new_tensor(-torch.inf), weights
    sinks = call.option("sinks")
    counted = logits if sinks is None else torch.cat([logits, sinks[h].double()[None]])
    share = torch.softmax(counted, 0)[: len(readable)]
    weights = weights.index_put((torch.tensor(readable, device=weights.device),), share)
    return share @ call.value[b, kv_head, readable], torch.logsumexp(counted, 0), weights


def _may_read(call: _Call, b: int, h: int, i: int, j: int) -> bool:
    """Whether query ``i`` of head ``h`` may attend key ``j``: the rules one after the other."""
    lengths, mask = call.option("key_lengths"), call.option("mask")
    if lengths is not None and j >= int(lengths[b]):
        return False
    if mask is not None and not bool(_at(mask, b, h, i, j)):
        return False
    if _document(call, 0, i) != _document(call, 1, j):
        return False
    behind = _position(call, b, i) - j  # how far the key lies behind the query
    if call.option("causal") and behind < 0:
        return False
    left, right = _window(call, h)
    return (left is None or behind <= left) and (right is None or -behind <= right)


def _document(call: _Call, side: int, index: int) -> int:
    """In which packed document a query (side 0) or a key (side 1) lies."""
    return sum(int(stop) <= index for stop in _bounds(call, side)[1:])


def _bounds(call: _Call, side: int) -> Sequence[int]:
    given = call.option("cu_seqlens")
    if given is None:
        return [0, (call.query, call.key)[side].shape[2]]
    return [int(bound) for bound in (given[side] if isinstance(given, tuple) else given)]


def _position(call: _Call, b: int, i: int) -> int:
    if call.option("cu_seqlens") is not None:
        document = _document(call, 0, i)
        return i + _bounds(call, 1)[document + 1] - _bounds(call, 0)[document + 1]
    offset, lengths = call.option("offset"), call.option("key_lengths")
    if offset is None:
        held = call.key.shape[2] if lengths is None else int(lengths[b])
        offset = held - call.query.shape[2]
    elif isinstance(offset, Tensor):
        offset = int(offset[b])
    return int(offset) + i


def _window(call: _Call, h: int) -> Sequence[int | None]:
    window = call.option("window")
    if window is None:
        return (None, None)
    per_head = any(isinstance(entry, Sequence) for entry in window) or len(window) != 2
    return (window[h] or (None, None)) if per_head else window


def _scale(call: _Call) -> float:
    scale = call.option("scale")
    return float(call.query.shape[3] ** -0.5 if scale is None else scale)


def _added(call: _Call, b: int, h: int, i: int, j: int) -> Tensor:
    """What is added to the logit of one pair: bias and ALiBi."""
    bias, slopes = call.option("bias"), call.option("alibi_slopes")
    added = call.query.new_zeros(()) if bias is None else _at(bias, b, h, i, j).double()
    if slopes is not None:
        slope = slopes[b, h] if slopes.dim() == 2 else slopes[h]
        added = added - slope.double() * abs(_position(call, b, i) - j)
    return added


def _at(tensor: Tensor, b: int, h: int, i: int, j: int) -> Tensor:
    """The entry of a tensor that broadcasts to ``[B, H, L, S]``."""
    index = (b, h, i, j)[4 - tensor.dim() :]
    return tensor[tuple(0 if size == 1 else at for size, at in zip(tensor.shape, index, strict=True))]
