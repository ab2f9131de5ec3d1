"""Context parallelism: keys and values lie spread over ranks by their positions, and attention joins the parts.

Every rank attends from all queries to the keys that lie with it, and the partial results are merged over the process
group by their log-sum-exps, as :func:`headwise.attention.merge` does it in one process. What ranks exchange grows with
the queries, ``B * H * L * (Dv + 2)`` numbers, and with neither the keys nor the number of ranks.

Axes: ``B`` batch, ``L`` query length, ``S`` length of the keys of a rank, ``H`` query heads, ``G`` KV heads, ``D`` head
dim, ``Dv`` value head dim.

Source: Jia and Van Essen 2024 (DeFT) and Dao et al. 2023 (Flash-Decoding) for the identity. Gradients follow from it:
with ``w = exp(lse_r - lse)``, a part's output receives ``w dO`` and its LSE ``w (dO . (O_r - O) + dLSE)``, for which a
rank needs nothing from another; only the gradients of what all ranks share are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable

from headwise.attention import AttentionOutput, attention_with_lse, validation
from headwise.attention.masks import WindowArgument

__all__ = ["context_parallel_attention", "merge_over_ranks"]


def context_parallel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    start: int | Tensor = 0,
    group: distributed.ProcessGroup | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    window: WindowArgument = None,
    offset: int | Tensor | None = None,
    key_lengths: Tensor | Sequence[int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    backend: str | None = None,
) -> AttentionOutput:
    """Attention over keys and values that lie spread over the ranks of a group.

    All ranks hold the same queries; each holds one run of consecutive keys, of any length, also none. All get the same
    result, that of :func:`headwise.attention.attention_with_lse` over all keys. Every rank of the group must call this.

    A long cache, decoded on several machines with ``torchrun --nnodes 4 script.py``: each rank keeps the prefix that
    begins at position ``start``, the last one also takes the new tokens::

        last = rank == ranks - 1
        if last:
            cache.append(new_key, new_value)
        (part,) = cache.held()  # of a DenseCache; empty at first is fine
        output, lse = context_parallel_attention(
            new_query, part.keys, part.values, start=start, causal=True, offset=position, key_lengths=part.key_lengths
        )

    Gradients: those of ``query``, ``sinks`` and ``alibi_slopes`` come out whole on every rank, those of ``key``,
    ``value`` and ``bias`` are of this rank's own; provided that every rank computes the same loss from the output, as
    under tensor parallelism. They can be taken once, not differentiated again.

    Where queries are spread too, gather them first (``torch.distributed.nn.functional.all_gather``) and keep the own
    rows of the output. For keys that are no single run, as in a zigzag split, attend to each run and join with
    :func:`headwise.attention.merge`, then with :func:`merge_over_ranks`.

    Args:
        query: ``[B, H, L, D]``, the same on every rank.
        key: ``[B, G, S, D]``, the keys of this rank; ``S`` may differ between ranks and be 0.
        value: ``[B, G, S, Dv]``.
        start: absolute position of this rank's first key, an integer or a LongTensor ``[B]``.
        group: the ranks among which the keys are spread; default all.
        mask: booleans that broadcast to ``[B, H, L, S]``, True = may attend: the columns of this rank's keys.
        bias: floats that broadcast to ``[B, H, L, S]``, likewise.
        causal, window: see :func:`headwise.attention.attention`; both speak of absolute positions.
        offset: absolute position of the first query, an integer or a LongTensor ``[B]``; has to be given with
            ``causal``, ``window`` or ``alibi_slopes``, since no rank knows the length of all keys.
        key_lengths: how many leading keys of this rank each sequence holds, ``[B]``; later ones are never read.
        scale, softcap, backend: see :func:`headwise.attention.attention`.
        sinks: logits ``[H]``, the same on every rank; they count once.
        alibi_slopes: ``[H]`` or ``[B, H]``, the same on every rank.

    Returns:
        Output ``[B, H, L, Dv]`` in the dtype of the query and LSE ``[B, H, L]`` in nats, as
        :class:`~headwise.attention.AttentionOutput`; the same on every rank. A query that sees no key on any rank gets
        output 0 and LSE ``-inf``.

    Raises:
        RuntimeError: no process group was set up.
        TypeError, ValueError: as :func:`headwise.attention.attention`; or ``offset`` is missing, or this rank doesn't
            belong to the group. All of this is found before ranks wait for each other; a rank that raises alone leaves
            the others waiting until the group's timeout.
    """
    _check_group("context_parallel_attention", group)
    validation.check_tensors(query, key, value)
    (batch, heads), device = query.shape[:2], query.device
    if offset is None and (causal or window is not None or alibi_slopes is not None):
        raise ValueError(
            "offset: expected the absolute position of the first query with causal, window or alibi_slopes, got None; "
            "a rank doesn't know how many keys the others hold"
        )
    validation.check_slopes(alibi_slopes, heads, batch, device)
    sinks = validation.check_sinks(sinks, heads, device)
    options: dict[str, Any] = {"mask": mask, "causal": causal, "window": window, "key_lengths": key_lengths}
    options |= {"scale": scale, "softcap": softcap, "backend": backend, "bias": bias}
    if offset is not None:
        options["offset"] = _position("offset", offset, batch, device) - _position("start", start, batch, device)
    query, slopes = _Shared.apply(group, query, alibi_slopes)
    part = attention_with_lse(query, key, value, alibi_slopes=slopes, **options)
    # Without keys too the result depends on the query: in the backward pass the other ranks wait for this one's share.
    return AttentionOutput(*_Joined.apply(*part, sinks, group))


def merge_over_ranks(
    output: Tensor, lse: Tensor, *, group: distributed.ProcessGroup | None = None, sinks: Tensor | None = None
) -> AttentionOutput:
    """:func:`headwise.attention.merge` of one part from every rank of a group.

    Two reductions, whatever the number of ranks: the largest LSE, and the sum of the parts relative to it. A part in
    which a query sees no key (LSE ``-inf``) counts nothing, whatever its output holds.

    Gradients of ``output`` and ``lse`` are those of this rank's part, so that what flows on to the queries is this
    rank's share of their gradient; that of ``sinks`` is the whole one. Provided that every rank computes the same loss
    from the result. They can be taken once.

    Args:
        output: ``[B, H, L, Dv]``, attention over the keys of this rank.
        lse: ``[B, H, L]``, its log-sum-exp without a sink.
        group: the ranks whose parts are joined; default all.
        sinks: logits ``[H]``, the same on every rank; they count once.

    Returns:
        Output in the dtype of ``output`` and LSE in float32 (float64 for float64 outputs), the sink included; the same
        on every rank.

    Raises:
        RuntimeError: no process group was set up.
        TypeError: ``sinks`` isn't floating.
        ValueError: shapes don't fit on this rank, or it doesn't belong to the group.
    """
    _check_group("merge_over_ranks", group)
    if output.dim() != 4 or lse.shape != output.shape[:3]:
        raise ValueError(
            "merge_over_ranks: expected output [B, H, L, Dv] and LSE [B, H, L], got "
            f"{list(output.shape)} and {list(lse.shape)}"
        )
    sinks = validation.check_sinks(sinks, lse.shape[1], lse.device)
    return AttentionOutput(*_Joined.apply(output, lse, sinks, group))


class _Shared(torch.autograd.Function):
    """What every rank holds alike: the same forward, and the sum of all ranks' gradients backward.

    One node for query and slopes, so that all ranks sum them in the same order.
    """

    @staticmethod
    def forward(
        ctx: Any, group: distributed.ProcessGroup | None, query: Tensor, slopes: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        ctx.group = group
        return query.view_as(query), None if slopes is None else slopes.view_as(slopes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        wanted = zip(gradients, ctx.needs_input_grad[1:], strict=True)
        return None, *(_summed(gradient, ctx.group) if asked else None for gradient, asked in wanted)


class _Joined(torch.autograd.Function):
    """The merge: collectives forward, none backward."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, lse: Tensor, sinks: Tensor | None, group: distributed.ProcessGroup | None
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(output.dtype, torch.float32)
        part = lse.to(dtype)
        highest = part.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(highest, distributed.ReduceOp.MAX, group)
        blind = highest == -torch.inf  # [B, H, L]: nothing is seen on any rank
        logits = None if sinks is None else sinks.to(dtype)[:, None]  # [H, 1]
        # Far above all scores, a sink would overflow when taken relative to them.
        level = (highest if logits is None else torch.maximum(highest, logits)).masked_fill(blind, 0.0)
        shares = (part - level).exp()  # 0 where this rank's LSE is -inf
        own = output.to(dtype).masked_fill((part == -torch.inf)[..., None], 0.0)  # select: it may hold NaN
        sums = _summed(torch.cat([own * shares[..., None], shares[..., None]], -1), group)  # [B, H, L, Dv + 1]
        total = sums[..., -1] if logits is None else sums[..., -1] + (logits - level).exp()
        total = total.masked_fill(blind, 1.0)
        joined, joined_lse = sums[..., :-1] / total[..., None], level + total.log()
        ctx.save_for_backward(own, part, joined, joined_lse, blind, sinks)
        ctx.output_dtype, ctx.lse_dtype = output.dtype, lse.dtype
        return joined.to(output.dtype), joined_lse.masked_fill(blind, -torch.inf)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, output_gradient: Tensor, lse_gradient: Tensor) -> tuple[Tensor | None, ...]:
        own, part, joined, joined_lse, blind, sinks = ctx.saved_tensors
        # Padding may send anything back, NaN included.
        output_gradient = output_gradient.to(own.dtype).masked_fill(blind[..., None], 0.0)
        lse_gradient = lse_gradient.to(own.dtype).masked_fill(blind, 0.0)
        shares = (part - joined_lse).exp()  # [B, H, L]
        by_output = shares[..., None] * output_gradient
        by_lse = shares * ((output_gradient * (own - joined)).sum(-1) + lse_gradient)
        by_sinks = None
        if sinks is not None:
            sunk = (sinks.to(own.dtype)[:, None] - joined_lse).exp().masked_fill(blind, 0.0)
            by_sinks = (sunk * (lse_gradient - (output_gradient * joined).sum(-1))).sum((0, 2)).to(sinks.dtype)
        return by_output.to(ctx.output_dtype), by_lse.to(ctx.lse_dtype), by_sinks, None


def _summed(tensor: Tensor, group: distributed.ProcessGroup | None) -> Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(total, group=group)
    return total


def _position(name: str, position: int | Tensor, batch: int, device: torch.device) -> int | Tensor:
    if isinstance(position, int) and not isinstance(position, bool):
        return position
    if not isinstance(position, Tensor):
        raise TypeError(f"{name}: expected an integer or a LongTensor [{batch}], got {type(position).__name__}")
    checked = validation.check_positions(name, position, batch, device)
    assert checked is not None
    return checked


def _check_group(name: str, group: distributed.ProcessGroup | None) -> None:
    if not (distributed.is_available() and distributed.is_initialized()):
        raise RuntimeError(
            f"{name}: expected a process group, got none; start with torchrun and call "
            "torch.distributed.init_process_group first"
        )
    if distributed.get_rank(group) < 0:
        # PyTorch would warn and leave this rank's part as the whole.
        raise ValueError(f"group: expected one that rank {distributed.get_rank()} belongs to, got another")
