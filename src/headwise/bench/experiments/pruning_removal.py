"""Removing heads in two ways, by zeros and by cutting weights out, and how long each then takes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headwise.bench.experiments.training import Decoder
from headwise.bench.timing import measure_paired
from headwise.nn import GroupedQueryAttention

__all__ = ["Head", "removal_times", "without_heads", "zeroed"]

Head = tuple[int, int]  # (layer, head)


@contextmanager
def zeroed(model: Decoder, heads: Iterable[Head]) -> Iterator[None]:
    """Heads write zeros within the block: their columns of the output projection are 0."""
    attentions: Sequence[Any] = list(model.attentions)
    before = [attention.o_proj.weight.detach().clone() for attention in attentions]
    try:
        with torch.no_grad():
            for layer, head in heads:
                attention = attentions[layer]
                attention.o_proj.weight[:, head * attention.head_dim : (head + 1) * attention.head_dim] = 0
        yield
    finally:
        with torch.no_grad():
            for attention, weight in zip(attentions, before, strict=True):
                attention.o_proj.weight.copy_(weight)


def without_heads(model: Decoder, heads: Iterable[Head]) -> Decoder:
    """A copy in which the heads' rows and columns are gone. Every layer must keep one head."""
    gone = set(heads)
    smaller = copy.deepcopy(model)
    attentions: Sequence[Any] = list(model.attentions)
    for layer, attention in enumerate(attentions):
        kept = [head for head in range(attention.num_heads) if (layer, head) not in gone]
        smaller.attentions[layer] = _with_heads(attention, kept)
    return smaller


def _with_heads(attention: Any, kept: Sequence[int]) -> GroupedQueryAttention:
    """The layer with some of its heads, each of which has a KV head of its own."""
    width = attention.head_dim
    made = GroupedQueryAttention(attention.embed_dim, len(kept), head_dim=width, rope=attention.rope)
    places = torch.cat([torch.arange(head * width, (head + 1) * width) for head in kept])
    state = {
        name: weight[:, places] if name.startswith("o_proj") else weight[places]
        for name, weight in attention.state_dict().items()
        if name.split(".")[0] in ("q_proj", "k_proj", "v_proj", "o_proj")
    }
    made.load_state_dict(state, strict=False)  # what rope holds is the same module
    return made


def removal_times(model: Decoder, heads: Sequence[Head], rows: Tensor, rounds: int) -> dict[str, float]:
    """Heads zeroed and cut out: how long the same rows take, after both gave the same.

    Raises:
        AssertionError: they don't, so that their times mean nothing.
    """
    tokens = rows[:, :-1]
    masked, smaller = copy.deepcopy(model), without_heads(model, heads)
    with zeroed(masked, heads), torch.no_grad():
        outputs = [each(tokens) for each in (masked, smaller)]
        torch.testing.assert_close(outputs[1], outputs[0], atol=1e-4, rtol=1e-4)
        rivals = {"whole": model, "zeroed": masked, "removed": smaller}
        times = measure_paired({name: partial(each, tokens) for name, each in rivals.items()}, rounds=rounds, warmup=2)
    return {
        "apart": (outputs[1] - outputs[0]).abs().max().item(),
        **{f"{name}_ms": 1e3 * times.median(name) for name in rivals},
        "zeroed_time": times.median_ratio("zeroed", "whole"),
        "removed_time": times.median_ratio("removed", "whole"),
    }
