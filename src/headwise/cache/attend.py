"""Attention over what a cache hands out: one call per part, heads put back in order.

A part (:class:`~headwise.cache.Held`) holds some of the KV heads and the positions that these can still see. Masks and
biases speak of absolute positions, windows, sinks and slopes of query heads; here each part gets its share of them.

Axes: ``B`` batch, ``L`` query length, ``H`` query heads, ``G`` KV heads, ``R = H / G``, ``n`` tokens held by a part,
``D`` head dim, ``Dv`` value head dim. Query head ``h`` reads KV head ``h // R``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from headwise.attention import attention, attention_weights, validation
from headwise.attention.masks import Span, WindowArgument, head_spans, is_cheap_to_look_at, known_range
from headwise.cache.held import Held
from headwise.cache.in_place import attend_in_place
from headwise.cache.planes import pick

__all__ = ["attend", "attend_weights"]

# Up to so many queries, sequences of different lengths are taken one by one on a CPU: a view of each then holds nothing
# that must not be read, while a call for all would have to copy keys and values to blank that out. For more queries
# that copy costs little beside the attention itself.
SPLIT_QUERIES = 16


def attend(
    query: Tensor,
    held: Sequence[Held],
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = True,
    window: WindowArgument = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """Attention of new queries over what :meth:`KeyValueCache.append` handed out for them.

    Args:
        query: ``[B, H, L, D]``, the queries of the appended tokens, all of them in the same order. Over what ``held()``
            gave, any number of queries, the first of which stands behind the last token.
        held: the parts, as ``append`` returned them; together they hold each of ``G`` KV heads once, and ``G`` divides
            ``H``.
        mask: booleans that broadcast to ``[B, H, L, length]``, True = may attend; column ``j`` is the token at
            absolute position ``j`` of its sequence, and ``length`` that of the longest sequence.
        bias: floats that broadcast to ``[B, H, L, length]``, added to the scores.
        causal: hide keys after the query's own position.
        window: ``(left, right)``, or one per **query** head, see :func:`headwise.attention.attention`. A cache that
            keeps only a window must be given that window (or a smaller one): slots that it happens to hold longer
            are visible otherwise.
        scale, softcap, sinks, alibi_slopes, backend: see :func:`headwise.attention.attention`.

    Returns:
        ``[B, H, L, Dv]``.

    Raises:
        ValueError: the parts and the heads don't fit together, there are more or fewer queries than tokens were
            appended, or a mask or bias has another number of columns.
        TypeError, ValueError: as :func:`headwise.attention.attention`.
    """
    shares = _Shares(query, held, mask=mask, bias=bias, causal=causal, window=window)
    outputs = []
    for part, heads in zip(held, shares.heads, strict=True):
        options = shares.options(part, heads, scale, softcap, sinks, alibi_slopes)
        own = pick(query, 1, heads)
        in_place = attend_in_place(own, part, options, backend)
        if in_place is not None:
            outputs.append(in_place)
            continue
        calls = _sequences(own, part, options) or [(own, part, options)]
        done = [attention(some, piece.keys, piece.values, backend=backend, **rest) for some, piece, rest in calls]
        outputs.append(torch.cat(done) if len(done) > 1 else done[0])
    return _in_order(outputs, shares.heads)


def attend_weights(
    query: Tensor,
    held: Sequence[Held],
    *,
    length: int,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = True,
    window: WindowArgument = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
) -> Tensor:
    """The whole map of weights ``[B, H, L, length]``, one column per absolute position; 0 where nothing is held.

    Args:
        length: how many tokens the longest sequence has, :attr:`KeyValueCache.length` after the append.

    The other arguments, and what is raised, are those of :func:`attend`. Memory grows with ``B * H * L * length``.
    """
    shares = _Shares(query, held, mask=mask, bias=bias, causal=causal, window=window)
    if shares.length is not None and length != shares.length:
        raise ValueError(
            f"attend_weights: expected length {shares.length}, the end of what is held, got {length}; "
            "pass the length of the cache"
        )
    maps = []
    for part, heads in zip(held, shares.heads, strict=True):
        options = shares.options(part, heads, scale, softcap, sinks, alibi_slopes)
        maps.append(_spread(attention_weights(pick(query, 1, heads), part.keys, **options), part, length))
    return _in_order(maps, shares.heads)


class _Shares:
    """What each part needs of arguments that speak of all heads and all positions."""

    def __init__(
        self,
        query: Tensor,
        held: Sequence[Held],
        *,
        mask: Tensor | None,
        bias: Tensor | None,
        causal: bool,
        window: WindowArgument,
    ) -> None:
        self.heads = _query_heads(query, held)
        self.length = _length(held)
        self._spans = head_spans(window, causal, query.shape[1])
        self._mask = validation.check_mask(mask, self._shape(query, mask), query.device)
        self._bias = validation.check_bias(bias, self._shape(query, bias), query.device)

    def _shape(self, query: Tensor, given: object) -> tuple[int, ...]:
        """``[B, H, L, length]``; where the length would have to be asked of a device, a given tensor's own."""
        columns = self.length
        if columns is None:
            columns = given.shape[-1] if isinstance(given, Tensor) and given.dim() else 1
        return (*query.shape[:3], columns)

    def options(
        self,
        part: Held,
        heads: Sequence[int],
        scale: float | None,
        softcap: float | None,
        sinks: Tensor | None,
        alibi_slopes: Tensor | None,
    ) -> dict[str, Any]:
        """The keyword arguments of :func:`headwise.attention.attention` for one part."""
        spans: WindowArgument = self._spans[0] if len(self._spans) == 1 else _of_heads(self._spans, heads)
        return {
            "mask": None if self._mask is None else _cut(self._mask, part, heads),
            "bias": None if self._bias is None else _cut(self._bias, part, heads),
            "window": spans,  # causal order is in them
            "offset": part.offset,
            "key_lengths": part.key_lengths,
            "scale": scale,
            "softcap": softcap,
            "sinks": None if sinks is None else pick(sinks, -1, heads),
            "alibi_slopes": None if alibi_slopes is None else pick(alibi_slopes, -1, heads),
        }


def _sequences(query: Tensor, part: Held, options: dict[str, Any]) -> list[tuple[Tensor, Held, dict[str, Any]]]:
    """One call for each sequence, with its own number of keys; none where a single call for all is better."""
    lengths = part.key_lengths
    if lengths is None or query.shape[2] > SPLIT_QUERIES or not is_cheap_to_look_at(lengths):
        return []
    calls = []
    for row, length in enumerate(lengths.tolist()):
        here = slice(row, row + 1)
        piece = part._replace(keys=part.keys[here, :, :length], values=part.values[here, :, :length])
        offset = part.offset if isinstance(part.offset, int) else int(part.offset[row])
        own: dict[str, Any] = options | {"offset": offset, "key_lengths": None}
        for name in ("mask", "bias"):
            if own[name] is not None:
                given = own[name] if own[name].shape[0] == 1 else own[name][here]
                own[name] = given if given.shape[3] == 1 else given[..., :length]
        slopes = own["alibi_slopes"]
        own["alibi_slopes"] = slopes[here] if slopes is not None and slopes.dim() == 2 else slopes
        calls.append((query[here], piece, own))
    return calls


def _query_heads(query: Tensor, held: Sequence[Held]) -> list[tuple[int, ...]]:
    """The query heads of every part; KV head ``g`` serves heads ``g * R`` to ``g * R + R - 1``."""
    if query.dim() != 4:
        raise ValueError(f"query: expected 4 axes [batch, heads, length, head_dim], got {list(query.shape)}")
    if isinstance(held, Held) or not isinstance(held, Sequence):
        raise TypeError(
            f"held: expected the parts that append or held() of a cache gave, got {type(held).__name__}; "
            "one part alone goes in as [part]"
        )
    kv_heads = sorted(chain.from_iterable(part.kv_heads for part in held))
    if not kv_heads or kv_heads != list(range(len(kv_heads))):
        raise ValueError(f"held: expected parts that hold KV heads 0 to G - 1, each once, got heads {kv_heads}")
    if query.shape[1] % len(kv_heads):
        raise ValueError(
            f"query: expected a head count that {len(kv_heads)} KV heads divide, got {query.shape[1]}; query head h "
            "reads KV head h // (heads / KV heads)"
        )
    for part in held:
        if part.queries is not None and part.queries != query.shape[2]:
            raise ValueError(
                f"query: expected {part.queries} queries, one for each token of the append, got {query.shape[2]}; pass "
                "the queries of all of them, or append those tokens by themselves whose queries you need"
            )
    R = query.shape[1] // len(kv_heads)
    return [tuple(head * R + member for head in part.kv_heads for member in range(R)) for part in held]


def _of_heads(spans: Sequence[Span], heads: Sequence[int]) -> WindowArgument:
    chosen = [spans[head] for head in heads]
    return chosen[0] if len(set(chosen)) == 1 else chosen


def _cut(tensor: Tensor, part: Held, heads: Sequence[int]) -> Tensor:
    """A mask or bias ``[B or 1, H or 1, L or 1, length or 1]`` over the heads and the positions of a part."""
    if tensor.shape[1] != 1:
        tensor = pick(tensor, 1, heads)
    if tensor.shape[3] == 1:
        return tensor
    tokens = part.tokens
    if isinstance(part.start, int):
        return tensor.narrow(3, part.start, tokens)
    # Behind the end of a short sequence there is no column; what the last one says there is read by nobody.
    columns = _columns(part.start, tokens, tensor.shape[3])[:, None, None, :]  # [B, 1, 1, n]
    tensor = tensor.expand(columns.shape[0], -1, -1, -1)
    return tensor.gather(3, columns.expand(-1, tensor.shape[1], tensor.shape[2], -1))


def _columns(start: Tensor, tokens: int, length: int) -> Tensor:
    """Absolute positions ``[B, n]`` of the slots of a part, none beyond the last of ``length``."""
    return (start[:, None] + torch.arange(tokens, device=start.device)).clamp(max=length - 1)


def _spread(weights: Tensor, part: Held, length: int) -> Tensor:
    """Weights ``[B, heads, L, n]`` over the slots of a part as ``[B, heads, L, length]`` over all positions."""
    tokens = weights.shape[3]
    if isinstance(part.start, int):
        return torch.nn.functional.pad(weights, (part.start, length - part.start - tokens))
    columns = _columns(part.start, tokens, length)[:, None, None, :].expand_as(weights)
    # Slots behind the end of a sequence have weight 0, so that adding them to the last column changes nothing.
    return weights.new_zeros((*weights.shape[:3], length)).scatter_add(3, columns, weights)


def _length(held: Sequence[Held]) -> int | None:
    """The end of what is held, in absolute positions; None where finding out would wait for a device."""
    ends = [_end(part) for part in held]
    known = [end for end in ends if end is not None]
    return max(known) if len(known) == len(ends) else None


def _end(part: Held) -> int | None:
    if isinstance(part.start, int):
        return part.start + part.tokens
    held = part.tokens if part.key_lengths is None else part.key_lengths
    bounds = known_range(part.start + held)
    return None if bounds is None else bounds[1]


def _in_order(tensors: list[Tensor], heads: list[tuple[int, ...]]) -> Tensor:
    """Parts joined along the head axis, query heads 0 to H - 1."""
    if len(tensors) == 1 and list(heads[0]) == list(range(len(heads[0]))):
        return tensors[0]
    order = list(chain.from_iterable(heads))
    back = sorted(range(len(order)), key=order.__getitem__)
    return pick(torch.cat(tensors, 1), 1, back)
