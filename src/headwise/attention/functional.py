"""The public operations: attention with grouped heads, its log-sum-exp, and its weights on request.

Axes: ``B`` batch, ``L`` query length, ``S`` key length, ``H`` query heads, ``G`` KV heads, ``D`` head dim, ``Dv``
value head dim. Query head ``h`` reads KV head ``h // (H / G)``; K and V are never repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.attention.backends import BACKENDS, choose_backend
from headwise.attention.masks import WindowArgument
from headwise.attention.packing import PackingArgument
from headwise.attention.precision import full_precision
from headwise.attention.problem import Problem
from headwise.attention.softmax import softmax_with_sink

__all__ = ["AttentionOutput", "attention", "attention_weights", "attention_with_lse"]


class AttentionOutput(NamedTuple):
    """What :func:`attention_with_lse` returns.

    Attributes:
        output: ``[B, H, L, Dv]`` in the dtype of the query.
        lse: ``[B, H, L]``, the natural logarithm of the softmax denominator (sink included), in float32 (float64 for
            float64 inputs); ``-inf`` for a query that sees no key.
    """

    output: Tensor
    lse: Tensor


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    window: WindowArgument = None,
    offset: int | Tensor | None = None,
    key_lengths: Tensor | Sequence[int] | None = None,
    cu_seqlens: PackingArgument = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """Softmax attention with grouped heads.

    Gradients go to all floating inputs; gradients of gradients need ``backend="math"``.

    Scores are scaled, soft-capped, biased and masked, in that order; the softmax counts the sink in its denominator
    only. A query that sees no key gets output 0 and gradient 0. What lies in keys and values that no query may read
    (NaN included) reaches neither the output nor a gradient. Half types are accumulated in float32.

    Args:
        query: ``[B, H, L, D]``, float16, bfloat16, float32 or float64.
        key: ``[B, G, S, D]`` with ``H`` divisible by ``G``.
        value: ``[B, G, S, Dv]``.
        mask: booleans that broadcast to ``[B, H, L, S]``; **True = may attend**.
        bias: floats that broadcast to ``[B, H, L, S]``, added after the soft-cap. ``-inf`` gives weight 0, but the
            key and value there must still be finite: only masks mark memory as unread.
        causal: hide keys after the query's own position.
        window: ``(left, right)``: how many keys before and after its own position a query sees, None = unbounded;
            or a sequence with one of those (or None) per query head.
        offset: absolute position of the first query, an integer or a LongTensor ``[B]``. Default: the last query
            stands at the last key, that is ``S - L``, or ``key_lengths - L`` per sequence.
        key_lengths: how many leading keys each sequence holds, ``[B]``; later ones are never read.
        cu_seqlens: documents packed side by side without padding, in a batch of 1: the running total of their lengths,
            ``[N + 1]`` from 0 to ``L``, or a pair of these for queries and keys. None of them sees another; causal
            order, windows and distances are those within the document, whose last query stands at its last key. In
            eager mode every document is a call of its own (no pair of two documents is computed); reading the bounds
            waits for a device that isn't the CPU. Not together with ``offset`` or ``key_lengths``.
        scale: factor of the scores, default ``1 / sqrt(D)``.
        softcap: bound of the scaled scores, ``softcap * tanh(score / softcap)``.
        sinks: logits ``[H]`` that join the softmax denominator and have no value.
        alibi_slopes: ``[H]`` or ``[B, H]``; ``-slope * |query position - key position|`` is added to the bias.
        backend: ``None`` (choose), ``"native"``, ``"sdpa"`` or ``"math"``.

    Returns:
        ``[B, H, L, Dv]`` in the dtype of the query.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: shapes, devices or numbers do not fit, or the named backend can't do what is asked.

    Source: Vaswani et al. 2017, section 3.2.1; grouped heads: Ainslie et al. 2023 (arXiv:2305.13245); sinks as in
    gpt-oss; ALiBi: Press et al. 2022 (arXiv:2108.12409), whose distance is one-sided, here two-sided.
    """
    problem = Problem.of(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        causal=causal,
        window=window,
        offset=offset,
        key_lengths=key_lengths,
        cu_seqlens=cu_seqlens,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
    )
    return _run(problem, backend, need_lse=False)[0]


def attention_with_lse(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    window: WindowArgument = None,
    offset: int | Tensor | None = None,
    key_lengths: Tensor | Sequence[int] | None = None,
    cu_seqlens: PackingArgument = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    backend: str | None = None,
) -> AttentionOutput:
    """As :func:`attention`, with the log-sum-exp of every row; both outputs carry gradients.

    Parts of the keys are joined by :func:`headwise.attention.merge`. Give it the ``sinks`` then and none of them here:
    every part would count them again, except for a query that sees none of its keys, whose part is left out with them.

    Returns:
        An :class:`AttentionOutput` of the output ``[B, H, L, Dv]`` and the LSE ``[B, H, L]`` in nats.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: shapes, devices or numbers do not fit, or the named backend can't do what is asked.
    """
    problem = Problem.of(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        causal=causal,
        window=window,
        offset=offset,
        key_lengths=key_lengths,
        cu_seqlens=cu_seqlens,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
    )
    output, lse = _run(problem, backend, need_lse=True)
    assert lse is not None
    return AttentionOutput(output, lse)


def attention_weights(
    query: Tensor,
    key: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    window: WindowArgument = None,
    offset: int | Tensor | None = None,
    key_lengths: Tensor | Sequence[int] | None = None,
    cu_seqlens: PackingArgument = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
) -> Tensor:
    """The whole map of weights, ``[B, H, L, S]`` in the dtype of the query; memory grows with ``B * H * L * S``.

    Arguments are those of :func:`attention`. A row sums to 1, to less with a sink, and to 0 where it sees no key.
    To reduce weights without holding the map, use :func:`headwise.attention.head_statistics`.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: shapes, devices or numbers do not fit.
    """
    problem = Problem.of(
        query,
        key,
        mask=mask,
        bias=bias,
        causal=causal,
        window=window,
        offset=offset,
        key_lengths=key_lengths,
        cu_seqlens=cu_seqlens,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
    )
    with full_precision(query.device):
        return _weights(problem)


def _run(problem: Problem, backend: str | None, need_lse: bool) -> tuple[Tensor, Tensor | None]:
    if problem.value is None:
        raise TypeError("value: expected a torch.Tensor, got NoneType; for weights alone call attention_weights")
    if problem.packing is None or torch.compiler.is_compiling():
        return _compute(problem, backend, need_lse)
    outputs, lses = zip(*(_compute(part, backend, need_lse) for part in problem.documents()), strict=True)
    return torch.cat(outputs, 2), torch.cat(lses, 2) if need_lse else None


def _compute(problem: Problem, backend: str | None, need_lse: bool) -> tuple[Tensor, Tensor | None]:
    chosen = choose_backend(BACKENDS, backend, problem, need_lse)
    with full_precision(problem.query.device):
        return chosen.compute(problem, need_lse)


def _weights(problem: Problem) -> Tensor:
    """All rows, ``[B, H, L, S]``; of packed documents those of each lie on its own keys."""
    _, bounds = problem.document_bounds()
    rows = [
        pad(_rows(part, start, stop), (low, problem.key_length - high))
        for part, (low, high) in zip(problem.documents(), pairwise(bounds), strict=True)
        for start, stop in list(part.blocks()) or [(0, 0)]
    ]
    return torch.cat(rows, 2)


def _rows(problem: Problem, start: int, stop: int) -> Tensor:
    softmax = softmax_with_sink(problem.scores(start, stop), problem.sinks)
    return (softmax.exponentials / softmax.total).to(problem.query.dtype)
