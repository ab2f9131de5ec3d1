"""Layouts as layers that run: headwise's own, and for shared KV heads a plain one that repeats keys and values.

Symbols: ``B`` batch, ``L`` query length, ``S`` key length, ``E`` model width, ``H`` query heads, ``G`` KV heads,
``R = H / G``, ``D`` head dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.bench.layouts.costs import Cost, Load
from headwise.bench.layouts.specs import LayoutSpec
from headwise.cache import DenseCache, LatentCache, WindowCache
from headwise.cache.base import BaseCache
from headwise.nn import GroupedQueryAttention, LatentAttention, RotaryEmbedding

__all__ = ["Runner", "build_runner", "new_cache", "projection_parameters", "repeating"]


@dataclass(frozen=True)
class Runner:
    """One implementation of a layout.

    Attributes:
        spec: the layout.
        layer: its weights.
        repeats: whether keys and values are repeated for every query head, as a plain implementation does it.
        cost: what was counted; it says in which form a latent layer runs.
        backend: of headwise attention; None: chosen by the call. One that repeats has none.
    """

    spec: LayoutSpec
    layer: nn.Module
    cost: Cost
    repeats: bool = False
    backend: str | None = None

    @property
    def name(self) -> str:
        """How results call it."""
        return f"{self.spec.name} repeated" if self.repeats else self.spec.name

    def cache(self, load: Load) -> BaseCache:
        """An empty cache that has room for ``load`` and no more."""
        return new_cache(self.spec, load)

    def run(self, hidden: Tensor, cache: BaseCache | None = None) -> Tensor:
        """The layer's output ``[B, L, E]`` behind what the cache holds, causally."""
        if self.repeats:
            return _repeated(self.layer, hidden, cache)
        options: dict[str, Any] = {"causal": True, "cache": cache, "backend": self.backend}
        if self.spec.latent:
            options["form"] = self.cost.decode_form if hidden.shape[1] == 1 else self.cost.prefill_form
        output: Tensor = self.layer(hidden, **options).output
        return output


def build_runner(spec: LayoutSpec, cost: Cost, load: Load, *, seed: int, backend: str | None = None) -> Runner:
    """A layer with random weights: the same seed gives the same.

    All layouts have rotary positions, since latent ones can't be without.
    """
    made: dict[str, Any] = {"dtype": getattr(torch, load.dtype)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer: nn.Module
        if spec.latent:
            layer = LatentAttention(
                spec.width, spec.heads, latent_dim=spec.latent, nope_head_dim=spec.head_dim, rope_head_dim=spec.rope,
                value_head_dim=spec.head_dim, **made,
            )  # fmt: skip
        else:
            layer = GroupedQueryAttention(
                spec.width, spec.heads, spec.kv_heads, spec.head_dim, rope=RotaryEmbedding(spec.head_dim),
                window=_windows(spec), **made,
            )  # fmt: skip
    return Runner(spec, layer.eval(), cost, backend=backend)


def repeating(runner: Runner) -> Runner:
    """The same layer, with keys and values repeated for every query head."""
    return Runner(runner.spec, runner.layer, runner.cost, repeats=True)


def new_cache(spec: LayoutSpec, load: Load) -> BaseCache:
    """An empty cache of the layout's own kind, as large as the load needs."""
    made: dict[str, Any] = {"dtype": getattr(torch, load.dtype)}
    batch, context = load.batch, load.context
    if spec.latent:
        return LatentCache(batch, context, spec.latent, spec.rope, **made)
    if not spec.local_heads:
        return DenseCache(batch, spec.kv_heads, context, spec.head_dim, **made)
    seen = [spec.window - 1] * spec.local_heads + [None] * (spec.heads - spec.local_heads)
    # One token is taken back between two runs of decoding, which a window without a margin can't.
    return WindowCache(batch, spec.heads, seen, spec.head_dim, margin=1, slack=spec.slack, capacity=context, **made)


def projection_parameters(layer: nn.Module) -> int:
    """Weights of all projections, counted over the tensors; norms are not projections."""
    return sum(each.weight.numel() for each in layer.modules() if isinstance(each, nn.Linear))


def _windows(spec: LayoutSpec) -> list[tuple[int, int] | None] | None:
    if not spec.local_heads:
        return None
    return [(spec.window - 1, 0)] * spec.local_heads + [None] * (spec.heads - spec.local_heads)


def _repeated(layer: Any, hidden: Tensor, cache: BaseCache | None) -> Tensor:
    """Shared heads without any care: K and V copied ``R`` times, then attention of ``H`` heads on ``H``."""
    query, key, value = (
        project(hidden).unflatten(-1, (-1, layer.head_dim)).transpose(1, 2)
        for project in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    start = 0 if cache is None else cache.length
    rotation = layer.rope.rotation(start + torch.arange(hidden.shape[1]), query.dtype)
    query, key = layer.rope.rotate(query, rotation), layer.rope.rotate(key, rotation)
    if cache is not None:
        (held,) = cache.append(key, value)
        key, value = held.keys, held.values  # [B, G, S, D]
    times = layer.num_heads // layer.num_kv_heads
    key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)  # [B, H, S, D]
    # A query behind a cache sees all that is held; several of them only come with an empty one.
    many = hidden.shape[1] > 1
    heads = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=many)
    output: Tensor = layer.o_proj(heads.transpose(1, 2).flatten(2))
    return output
