"""Gradients of attention, block by block of queries, from the log-sum-exp alone.

No weight is kept from the forward pass: a block's weights are ``exp(score - LSE)`` again, so that memory grows with the
lengths and not with their product, for grouped heads, windows, soft-cap, bias, sinks and slopes alike.

With ``P`` the weights, ``dO`` and ``dLSE`` the gradients of output and LSE, and ``dP = dO Vᵀ``:
``dS = P (dP - sum(P dP) + dLSE)``, from which every gradient follows by the chain rule. The sum over the row is taken
from the block itself and not as ``dO · O``: in half precision ``O`` has been rounded.

Source: Dao et al. 2022 (arXiv:2205.14135), appendix B.4, whose row sum is ``dO · O``.

Symbols: ``B`` batch, ``L`` query length, ``S`` key length, ``H`` query heads, ``G`` KV heads, ``R = H / G``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.attention.blocks import Workspace, cut, fold_heads
from headwise.attention.problem import Problem

__all__ = ["Gradients", "gradients"]


@dataclass
class Gradients:
    """Gradients of one call in the compute dtype, each of its input's shape; None where it wasn't asked for.

    Attributes:
        query, key, value, bias, sinks, alibi_slopes: of the inputs of the same names; ``bias`` and ``alibi_slopes``
            with four axes, as :class:`Problem` holds them.
    """

    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    bias: Tensor | None
    sinks: Tensor | None
    alibi_slopes: Tensor | None

    def within(self, rows: Sequence[int], columns: Sequence[int]) -> Gradients:
        """Views of the part that belongs to some queries and some keys."""
        return Gradients(
            query=None if self.query is None else self.query[:, :, slice(*rows)],
            key=None if self.key is None else self.key[:, :, slice(*columns)],
            value=None if self.value is None else self.value[:, :, slice(*columns)],
            bias=None if self.bias is None else cut(self.bias, *rows, *columns),
            sinks=self.sinks,
            alibi_slopes=self.alibi_slopes,
        )


def gradients(
    problem: Problem, lse: Tensor, output_gradient: Tensor, lse_gradient: Tensor, wanted: Sequence[str]
) -> Gradients:
    """Gradients of the inputs named in ``wanted`` (fields of :class:`Gradients`).

    Args:
        problem: the call, packed or not.
        lse: ``[B, H, L]``, as the forward pass gave it.
        output_gradient: ``[B, H, L, Dv]``.
        lse_gradient: ``[B, H, L]``.
    """
    totals = Gradients(
        **{
            name: torch.zeros(getattr(problem, name).shape, dtype=problem.compute_dtype, device=problem.query.device)
            if name in wanted
            else None
            for name in Gradients.__dataclass_fields__
        }
    )
    queries, keys = problem.document_bounds()
    for number, document in enumerate(problem.documents()):
        rows, columns = queries[number : number + 2], keys[number : number + 2]
        upstream = (tensor[:, :, slice(*rows)] for tensor in (lse, output_gradient, lse_gradient))
        _add_document(document, totals.within(rows, columns), *upstream)
    return totals


def _add_document(
    problem: Problem, totals: Gradients, lse: Tensor, output_gradient: Tensor, lse_gradient: Tensor
) -> None:
    dtype, workspace = problem.compute_dtype, problem.workspace()
    for start, stop in problem.blocks():
        low, high = problem.key_range(start, stop)
        if low < high:
            upstream = output_gradient[:, :, start:stop].to(dtype), lse_gradient[:, :, start:stop].to(dtype)
            _Block(problem, (start, stop), (low, high), lse[:, :, start:stop], workspace).add_to(totals, *upstream)


class _Block:
    """The queries of some rows and the keys that they can reach."""

    def __init__(
        self, problem: Problem, rows: tuple[int, int], keys: tuple[int, int], lse: Tensor, workspace: Workspace
    ) -> None:
        self.problem, self.rows, self.keys, self.lse, self.workspace = problem, rows, keys, lse, workspace
        visible = problem.visible(*rows, keys) if problem.hides(*rows, keys) else None
        self.query = problem.clean_query(*rows, visible)  # [B, H, rows, D]
        self.hidden = None if visible is None else ~visible

    def add_to(self, totals: Gradients, output_gradient: Tensor, lse_gradient: Tensor) -> None:
        blind = self.lse == -torch.inf  # [B, H, rows]
        # Padding may send anything back, NaN included.
        output_gradient = output_gradient.masked_fill(blind[..., None], 0.0)
        lse_gradient = lse_gradient.masked_fill(blind, 0.0)
        weights, slope = self._weights(self.lse.masked_fill(blind, 0.0))
        self._add_value(totals, weights, output_gradient)
        by_weight = self._by_weight(output_gradient)
        mean = torch.mul(weights, by_weight, out=self._third(weights)).sum(-1)  # [B, H, rows]
        by_score = by_weight.sub_((mean - lse_gradient)[..., None]).mul_(weights)
        if self.hidden is not None:
            # 0 * NaN, where a value that others read is NaN.
            by_score = by_score.masked_fill_(self.hidden, 0.0)
        self._add_sinks(totals, blind, lse_gradient - mean)
        self._add_bias(totals, by_score)
        if slope is not None:
            by_score = by_score.mul_(slope)
        self._add_products(totals, by_score.mul_(self.problem.scale))

    @property
    def groups(self) -> int:
        return self.problem.num_kv_heads

    def _heads(self, folded: Tensor) -> Tensor:
        """``[B, G, R * rows, keys]`` to ``[B, H, rows, keys]``."""
        rows = self.rows[1] - self.rows[0]
        return folded.view(self.problem.batch_size, self.problem.num_heads, rows, folded.shape[-1])

    def _third(self, like: Tensor) -> Tensor:
        return self.workspace.take("third", like.shape)

    def _by_weight(self, output_gradient: Tensor) -> Tensor:
        """The gradient of the weights, ``[B, H, rows, keys]``."""
        folded = fold_heads(output_gradient, self.groups)  # [B, G, R * rows, Dv]
        value = self.problem.clean_value[:, :, slice(*self.keys)].transpose(-2, -1)  # [B, G, Dv, keys]
        out = self.workspace.take("by_weight", (*folded.shape[:3], value.shape[3]))
        return self._heads(torch.matmul(folded, value, out=out))

    def _weights(self, lse: Tensor) -> tuple[Tensor, Tensor | None]:
        """Weights ``[B, H, rows, keys]`` again, and the slope of the soft-cap where there is one."""
        scores = self.problem.products(self.query, *self.keys, self.workspace)
        slope = None
        if self.problem.softcap is not None:
            bent = scores.div_(self.problem.softcap).tanh_()
            slope = torch.mul(bent, bent, out=self.workspace.take("slope", bent.shape)).neg_().add_(1.0)
            scores = bent.mul_(self.problem.softcap)
        self.problem.add_to(scores, *self.rows, self.keys)
        if self.hidden is not None:
            scores = scores.masked_fill_(self.hidden, -torch.inf)
        return scores.sub_(lse[..., None]).exp_(), slope

    def _add_value(self, totals: Gradients, weights: Tensor, output_gradient: Tensor) -> None:
        if totals.value is not None:
            folded = fold_heads(weights, self.groups).transpose(-2, -1)  # [B, G, keys, R * rows]
            totals.value[:, :, slice(*self.keys)] += folded @ fold_heads(output_gradient, self.groups)

    def _add_products(self, totals: Gradients, by_product: Tensor) -> None:
        folded = fold_heads(by_product, self.groups)  # [B, G, R * rows, keys]
        if totals.query is not None:
            totals.query[:, :, slice(*self.rows)] = self._heads(
                folded @ self.problem.clean_key[:, :, slice(*self.keys)]
            )
        if totals.key is not None:
            totals.key[:, :, slice(*self.keys)] += folded.transpose(-2, -1) @ fold_heads(self.query, self.groups)

    def _add_bias(self, totals: Gradients, by_score: Tensor) -> None:
        if totals.bias is not None:
            part = cut(totals.bias, *self.rows, *self.keys)
            part += by_score.sum_to_size(part.shape)
        slopes = totals.alibi_slopes
        if slopes is not None:
            distance = self.problem.distance(*self.rows, self.keys)
            slopes -= torch.mul(by_score, distance, out=self._third(by_score)).sum_to_size(slopes.shape)

    def _add_sinks(self, totals: Gradients, blind: Tensor, slope: Tensor) -> None:
        """``slope`` ``[B, H, rows]`` is what a row's LSE and output lose as its denominator grows."""
        if totals.sinks is not None and self.problem.sinks is not None:
            sink = self.problem.sinks.to(slope.dtype)[:, None]  # [H, 1]
            share = (sink - self.lse.masked_fill(blind, torch.inf)).exp()  # 0 where a row sees nothing
            totals.sinks += (share * slope).sum((0, 2))
