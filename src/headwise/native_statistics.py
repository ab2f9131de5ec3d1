"""The door to the compiled part for statistics of heads. As :mod:`headwise.native`, importing it loads nothing.

Symbols: `B` batch, `H` query heads, `L` query length, `S` key length, `Dv` value head dim, `N` relations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from headwise.native import _call, _Described, _described, _required

__all__ = ["EQUAL", "MEMBERS", "SINGLE", "Results", "head_statistics"]

# Forms of relations, as native/statistics.hpp numbers them; behind each stand its arrays.
SINGLE = 0  # index: int64 [B or 1, L], the key of each query; none where there is no such key
EQUAL = 1  # query_ids, key_ids, excluded: int64 [B or 1, L], [B or 1, S] and [B or 1, L] or None
MEMBERS = 2  # members: bool [B or 1, S]


class Results(NamedTuple):
    """What is written, whole; all of it contiguous.

    Attributes:
        mass: float32 `[N, B, H, L]`, the share of the softmax on the keys of each relation.
        entropy: float32 `[B, H, L]`, in nats.
        largest: float32 `[B, H, L]`, the largest weight.
        distance: float32 `[B, H, L]`, the mean of |query position - key position|.
        hits: int64 `[N, B, H or 1, L]`, visible keys of each relation; 1 where all heads see the same keys.
        seen: int64 `[B, H or 1, L]`, visible keys.
    """

    mass: Any
    entropy: Any
    largest: Any
    distance: Any
    hits: Any
    seen: Any


def head_statistics(
    query: Any,
    key: Any,
    value: Any,
    output: Any,
    relations: Sequence[tuple[Any, ...]],
    results: Results,
    *,
    offsets: Sequence[int],
    scale: float,
    lse: Any = None,
    key_lengths: Sequence[int] | None = None,
    left: Sequence[int] | None = None,
    right: Sequence[int] | None = None,
    mask: Any = None,
    bias: Any = None,
    sinks: Any = None,
    slopes: Any = None,
    softcap: float = 0.0,
    threads: int = 1,
    isa: str = "",
) -> None:
    """Attention as :func:`headwise.native.prefill_attention` computes it, and what is read off its weights meanwhile.

    Args:
        query: see :func:`headwise.native.decode_attention`, as all that isn't named here.
        key: as there.
        value: as there; with `Dv` = 0 there is nothing but statistics.
        output: as there.
        relations: N tuples of a form and its arrays, whose last axis has stride 1.
        results: what is written.
        offsets: position of the first query, one per sequence.
        scale: factor of the scores.
        lse: float32 `[B, H, L]`, contiguous, which is written; None: not asked for.
        key_lengths, left, right, mask, bias, sinks, slopes, softcap, threads, isa: as there.

    Raises:
        NativeMissingError: the compiled part isn't there.
        TypeError: a tensor has a dtype that the kernels don't know.
        ValueError: shapes, strides or numbers don't fit, a tensor isn't on the CPU, or there is no such `isa`.

    Source: the online softmax of Milakov and Gimelshein 2018 (arXiv:1805.02867), here with further sums.
    """
    described = [
        (form, *(None if one is None else _told(f"relation {n}", one) for one in arrays))
        for n, (form, *arrays) in enumerate(relations)
    ]
    written = [_told(name, tensor) for name, tensor in zip(Results._fields, results, strict=True)]
    options = (lse, offsets, key_lengths, left, right, mask, bias, sinks, slopes, scale, softcap, threads, isa)
    _call(_required().head_statistics, query, key, value, output, *options, described, written)


def _told(name: str, tensor: Any) -> _Described:
    """As other tensors are described, int64 as well."""
    if str(tensor.dtype) == "torch.int64" and tensor.device.type == "cpu":
        return _described(name, tensor, ("int64",))
    return _described(name, tensor)
