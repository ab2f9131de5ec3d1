"""The models of `induction`: what their heads attend to, and what they write taken away.

Symbols: B rows, L length, E width, H heads of a layer, D head dim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from headwise.attention import head_statistics
from headwise.bench.experiments.induction_task import Rows, Settings
from headwise.bench.experiments.training import Decoder, seeded
from headwise.nn import GroupedQueryAttention, RotaryEmbedding
from headwise.study.relations import Match, Offset

__all__ = ["build", "head_scores", "without_heads"]


def build(layers: int, seed: int, settings: Settings) -> Decoder:
    """A model of attention layers only."""
    width, heads = settings.width, settings.heads
    with seeded(seed, "weights"):
        rope = RotaryEmbedding(width // heads)
        attentions = [GroupedQueryAttention(width, heads, rope=rope) for _ in range(layers)]
        return Decoder(settings.vocabulary, settings.vocabulary, attentions)


def head_scores(model: Decoder, rows: Rows) -> tuple[Tensor, Tensor]:
    """Previous-token and induction score of every head.

    Returns:
        Attention to the previous token over all queries, and to what followed the last copies of the query's token
        over the queries that have one: two of ``[layers, H]``.
    """
    relations = [Offset(1), Match(1, rows.tokens)]
    scores: list[Tensor] = []
    hooks = [
        attention.register_forward_pre_hook(
            lambda layer, arguments: scores.append(_scores_of(layer, arguments[0], relations))
        )
        for attention in model.attentions
    ]
    try:
        with torch.no_grad():
            model(rows.tokens)
    finally:
        for hook in hooks:
            hook.remove()
    previous, induction = torch.stack(scores, 1)
    return previous, induction


def _scores_of(layer: Any, hidden: Tensor, relations: Sequence[Any]) -> Tensor:
    """``[relations, H]`` over all rows, from the queries and keys that the layer makes of its input ``[B, L, E]``."""
    query = layer.q_proj(hidden).unflatten(-1, (layer.num_heads, layer.head_dim)).transpose(1, 2)  # [B, H, L, D]
    rotation = layer.rope.rotation(torch.arange(hidden.shape[1]), query.dtype)
    query, key = (layer.rope.rotate(each, rotation) for each in (query, layer.project_context(hidden).key))
    read = head_statistics(query, key, relations, causal=True)
    return torch.stack([read.score(relation.name).nanmean(0) for relation in relations])


@contextmanager
def without_heads(model: Decoder, heads: Iterable[tuple[int, int]], *, mean: bool = True) -> Iterator[None]:
    """Replace what heads write by its mean over all rows and positions, or by 0, within the block.

    Args:
        model: is as before behind the block.
        heads: (layer, head).
        mean: whether the mean takes its place.
    """
    taken: dict[int, list[int]] = {}
    for layer, head in heads:
        taken.setdefault(layer, []).append(head)
    with ExitStack() as stack:
        for number, chosen in taken.items():
            attention: Any = model.attentions[number]
            hook = attention.o_proj.register_forward_pre_hook(_replacing(chosen, attention.head_dim, mean))
            stack.callback(hook.remove)
        yield


def _replacing(heads: Sequence[int], width: int, mean: bool) -> Any:
    """A hook before the output projection, whose input ``[B, L, H * D]`` holds the heads side by side."""

    def replace(module: Any, arguments: tuple[Tensor]) -> tuple[Tensor]:
        outputs = arguments[0].clone()
        for head in heads:
            part = outputs[..., head * width : (head + 1) * width]
            part[:] = part.mean((0, 1)) if mean else 0.0
        return (outputs,)

    return replace
