"""Statistics of heads in PyTorch's operations, for every relation, dtype and device.

Symbols: ``B`` batch, ``L`` query length, ``S`` key length, ``H`` query heads, ``N`` relations.

Blocks of queries are turned into weights, reduced and dropped, so that memory grows with ``L`` and not with ``L * S``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.attention.blocks import Workspace
from headwise.attention.problem import Problem
from headwise.attention.relation_checks import keys_of
from headwise.attention.softmax import Softmax, softmax_with_sink

if TYPE_CHECKING:
    from headwise.attention.statistics import Relation

__all__ = ["Fields", "reduced"]

Fields = dict[str, Tensor]  # of HeadStatistics, by name


def reduced(
    problem: Problem, relations: Sequence[Relation], first_key: int, key_length: int, max_block_bytes: int | None
) -> Fields:
    """The fields of one document, whose keys start at ``first_key`` of all ``key_length``."""
    workspace = problem.workspace(max_block_bytes)
    parts = [
        _block(problem, _softmax(problem, rows, workspace), relations, rows, first_key, key_length)
        for rows in list(problem.blocks(max_block_bytes)) or [(0, 0)]
    ]
    return {field: torch.cat([part[field] for part in parts], dim=-1) for field in parts[0]}


def _softmax(problem: Problem, rows: tuple[int, int], workspace: Workspace) -> Softmax:
    scores = problem.scores(*rows, problem.key_range(*rows), workspace)
    return softmax_with_sink(scores, problem.sinks, in_place=True)


def _block(
    problem: Problem,
    softmax: Softmax,
    relations: Sequence[Relation],
    rows: tuple[int, int],
    first_key: int,
    key_length: int,
) -> Fields:
    """Some queries of a document whose keys start at ``first_key`` of all ``key_length``."""
    low, high = keys = problem.key_range(*rows)
    weights = softmax.exponentials.div_(softmax.total)  # [B, H, rows, keys]
    visible = problem.visible(*rows, keys)  # [B or 1, H or 1, rows, keys]
    positions = problem.positions(*rows)  # [B or 1, rows]
    part = {
        "lse": softmax.lse,
        "seeing": visible.any(-1),
        "entropy": torch.special.entr(weights).sum(-1),
        "largest": weights.amax(-1) if weights.shape[-1] else softmax.lse.new_zeros(softmax.lse.shape),
        "distance": _mean_distance(weights, positions - low),
    }
    reached = slice(first_key + low, first_key + high)
    asked = (positions + first_key, problem.batch_size, key_length)
    sets = [keys_of(relation, *asked)[..., reached] for relation in relations]
    part.update(_masses(weights, visible, sets))
    return part


def _mean_distance(weights: Tensor, positions: Tensor) -> Tensor:
    keys = torch.arange(weights.shape[-1], device=weights.device)
    distance = (positions[:, None, :, None] - keys).abs().to(weights.dtype)  # [B or 1, 1, rows, S]
    return (weights * distance).sum(-1)


def _masses(weights: Tensor, visible: Tensor, sets: Sequence[Tensor]) -> Fields:
    """Over all relations the mass, its value under uniform attention, and whether the row says anything.

    ``sets`` are the keys of each relation, ``[B or 1, rows, keys]``.
    """
    if not sets:
        empty = weights.new_zeros((0, *weights.shape[:-1]))
        return {"mass": empty, "uniform": empty, "informative": empty.bool()}
    # One matrix product reads the weights once for all relations: several times as fast as a masked sum for each.
    stacked = torch.stack(torch.broadcast_tensors(*sets), dim=2)  # [B or 1, rows, N, keys]
    keys = stacked.to(weights.dtype).transpose(-2, -1)
    mass = weights.transpose(1, 2) @ keys  # [B, rows, H, N]
    hits = visible.transpose(1, 2).to(weights.dtype) @ keys  # [B or 1, rows, H or 1, N]
    seen = visible.sum(-1).transpose(1, 2)[..., None]  # [B or 1, rows, H or 1, 1]
    per_row = {"mass": mass, "uniform": hits / seen.clamp(min=1), "informative": (hits > 0) & (hits < seen)}
    return {name: values.permute(3, 0, 2, 1) for name, values in per_row.items()}
