"""One call of an attention layer: where its tokens stand, what they may see, and a cache that survives any failure.

Axes: ``B`` batch, ``L`` query length, ``S`` key length (held and new), ``H`` query heads, ``G`` KV heads, ``D`` head
dim. Query ``i`` of sequence ``b`` stands at position ``start[b] + i``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headwise.attention import attention, attention_weights, validation
from headwise.attention.masks import Span, WindowArgument, head_spans, known_range
from headwise.attention.packing import PackingArgument, check_packing
from headwise.attention.problem import Problem
from headwise.cache import Held, KeyValueCache, attend, attend_weights
from headwise.cache.base import BaseCache
from headwise.nn.checks import check_padding, check_queries_see, check_some_are_real

__all__ = ["Call", "Heads"]


@dataclass(frozen=True)
class Heads:
    """What a layer itself brings to its attention, for the heads that this process computes.

    Attributes:
        window: ``(left, right)``, one per head, or None.
        scale, softcap, sinks: see :func:`headwise.attention.attention`.
    """

    window: WindowArgument
    scale: float | None
    softcap: float | None
    sinks: Tensor | None


@dataclass(frozen=True, kw_only=True)
class Call:
    """What the caller of a layer asked for, see :meth:`headwise.nn.GroupedQueryAttention.forward`, and what follows.

    Attributes:
        crossed: whether keys come from another sequence than the queries.
        start: position of the first new token, for all sequences or ``[B]``; 0 without a cache.
        length: ``S`` of the longest sequence, new tokens included.
        key_lengths: ``S`` of each sequence ``[B]``, or None where all are equal.
    """

    mask: Tensor | None
    bias: Tensor | None
    key_mask: Tensor | None
    query_mask: Tensor | None
    causal: bool
    cu_seqlens: PackingArgument
    cache: KeyValueCache | None
    lengths: Tensor | Sequence[int] | None
    need_weights: bool
    backend: str | None
    crossed: bool = False
    start: int | Tensor = 0
    length: int = 0
    key_lengths: Tensor | None = None

    def placed(self, hidden: Tensor, keys: int) -> Call:
        """The call with ``start``, ``length`` and ``key_lengths`` settled, for ``hidden`` ``[B, L, E]``.

        Raises:
            ValueError: a cache is used without ``causal``, with packed documents or for another batch, ``lengths``
                without a cache, or ``lengths`` are no numbers from 0 to ``L``.
        """
        self._check_cache_use(hidden.shape[0])
        if self.cache is None:
            return replace(self, length=keys)
        batch, queries, device = hidden.shape[0], hidden.shape[1], hidden.device
        held = self.cache.lengths
        known = known_range(held)  # None where asking would wait for the device
        start: int | Tensor = known[0] if known and known[0] == known[1] else held
        if self.lengths is None:
            ends = None if isinstance(start, int) else start + queries
            return replace(self, start=start, length=self.cache.length + queries, key_lengths=ends)
        new = validation.check_positions("lengths", self.lengths, batch, device)
        assert new is not None
        ends = held + new
        if bool(((new < 0) | (new > queries)).any()):
            raise ValueError(
                f"lengths: expected numbers from 0 to {queries} (the tokens that came), got {new.tolist()}; they count "
                "the leading tokens that are real"
            )
        return replace(self, start=start, length=int(ends.max()), key_lengths=ends)

    def _check_cache_use(self, batch: int) -> None:
        if self.cache is None and self.lengths is not None:
            raise ValueError("lengths: expected none without a cache; mark padding with key_mask")
        if self.cache is None:
            return
        # The class first: asking a protocol reads every property of the cache, which takes longer than the append.
        known = isinstance(self.cache, BaseCache)
        if not known and (isinstance(self.cache, type) or not isinstance(self.cache, KeyValueCache)):
            raise TypeError(f"cache: expected a cache of headwise.cache, got {type(self.cache).__name__}; build one")
        if not self.causal:
            raise ValueError(
                "cache: expected causal=True with a cache, got causal=False; "
                "without it earlier tokens would have had to see later ones"
            )
        if self.cu_seqlens is not None:
            raise ValueError("cu_seqlens: expected none with a cache, whose sequences are the batch; pass lengths")
        if self.cache.batch_size != batch:
            raise ValueError(f"cache: expected batch_size {batch} as in hidden, got {self.cache.batch_size}")

    def positions(self, hidden: Tensor) -> Tensor:
        """Positions of the new tokens, ``[L]``, or ``[B, L]`` where sequences differ; of packed ones within each."""
        queries, device = hidden.shape[1], hidden.device
        steps = torch.arange(queries, device=device)
        packing = check_packing(self.cu_seqlens, (hidden.shape[0], 1, queries, queries))
        if packing is not None:
            bounds = packing[0].to(device)
            # Scores need distances only, but angles of small positions are the more exact ones.
            return steps - bounds[torch.searchsorted(bounds[1:], steps, right=True)]
        return steps + (self.start if isinstance(self.start, int) else self.start[:, None])

    def options(self, query: Tensor, kv_heads: int, heads: Heads) -> dict[str, Any]:
        """The checked keyword arguments of attention, padding included.

        Args:
            query: ``[B, H, L, D]``.
            kv_heads: ``G``.
            heads: what the layer brings.

        Raises:
            TypeError, ValueError: a mask, bias or window doesn't fit, or (in eager mode on a CPU) a query that is no
                padding sees no key.
        """
        batch, count, queries, head_dim = query.shape
        shape = (batch, count, queries, self.length)
        check_padding("key_mask", "keys", self.key_mask, [batch, self.length])
        check_padding("query_mask", "queries", self.query_mask, [batch, queries])
        mask, padding = validation.check_mask(self.mask, shape, query.device), self.key_mask
        if padding is not None:
            padding = padding[:, None, None, :]  # [B, 1, 1, S]
            mask = padding if mask is None else mask & padding
        options: dict[str, Any] = {"mask": mask, "bias": self.bias, "causal": self.causal, "window": heads.window}
        options |= {"scale": heads.scale, "softcap": heads.softcap, "sinks": heads.sinks}
        if self.cache is not None:
            self._check_cache_reach(head_spans(heads.window, True, count))
        if self.cache is not None and mask is None and self.bias is None:
            pass  # nothing else can be wrong, and each query sees itself
        elif self.cache is not None or (query.device.type == "cpu" and not torch.compiler.is_compiling()):
            # Keys don't matter for what may be seen; these take no memory.
            keys = query.new_empty(1, 1, 1, 1).expand(batch, kv_heads, self.length, head_dim)
            self._check_sight(Problem.of(query, keys, **options, **self._places()))
        return options

    def _check_cache_reach(self, spans: Sequence[Span]) -> None:
        """A cache that drops what a head still sees would change the result without a word."""
        windows = getattr(self.cache, "windows", None)
        if windows is None:
            return
        group = len(spans) // len(windows)
        for head, kept in enumerate(windows):
            seen = [left for left, _ in (spans[head * group : (head + 1) * group] or spans[:1])]
            if kept is not None and any(left is None or left > kept for left in seen):
                raise ValueError(
                    f"cache: expected KV head {head} to keep what its query heads see (windows {seen} before their own "
                    f"position), got a window of {kept}; give the layer or the call that window"
                )

    def _places(self) -> dict[str, Any]:
        if self.cache is None:
            return {"cu_seqlens": self.cu_seqlens}
        return {"offset": self.start, "key_lengths": self.key_lengths}

    def _check_sight(self, problem: Problem) -> None:
        if problem.query.device.type == "cpu" and not torch.compiler.is_compiling():
            if self.key_mask is not None:
                check_some_are_real(self.key_mask)
            check_queries_see(problem, self._real_queries(problem.batch_size, problem.query_length))

    def _real_queries(self, batch: int, queries: int) -> Tensor | None:
        """Which queries are no padding, ``[B, L]``, or None for all: given, or where key mask and lengths say so."""
        if self.query_mask is not None:
            return self.query_mask
        real = None
        steps = torch.arange(queries)
        if self.key_mask is not None and not self.crossed and self.length >= queries:
            last = self.length - queries if self.cache is None else self.start
            columns = last + steps if isinstance(last, int) else last[:, None] + steps
            columns = columns.clamp(max=self.length - 1).expand(batch, -1)  # [B, L]
            real = self.key_mask.gather(1, columns)
        if self.lengths is not None:
            filled = steps < torch.as_tensor(self.lengths)[:, None]
            real = filled if real is None else real & filled
        return real

    def over(self, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """Heads ``[B, H, L, Dv]`` and weights (where asked for) over given keys and values."""
        heads = attention(query, key, value, backend=self.backend, cu_seqlens=self.cu_seqlens, **options)
        weights = attention_weights(query, key, cu_seqlens=self.cu_seqlens, **options) if self.need_weights else None
        return heads, weights

    def over_held(self, query: Tensor, held: Sequence[Held], options: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """The same over what a cache handed out."""
        heads = attend(query, held, backend=self.backend, **options)
        weights = attend_weights(query, held, length=self.length, **options) if self.need_weights else None
        return heads, weights

    @contextmanager
    def appended(self, append: Callable[..., tuple[Held, ...]], *tokens: Tensor) -> Iterator[tuple[Held, ...]]:
        """Append to the cache, and take that back if what is done with it fails.

        Args:
            append: the cache's way of taking ``tokens``.
            tokens: each ``[B, heads, L, width]``.
        """
        assert self.cache is not None
        count = tokens[0].shape[2] if self.lengths is None else self.lengths
        kept = self._snapshot_where_needed(tokens[0].shape[2])
        held = append(*tokens, self.lengths)
        try:
            yield held
        except BaseException:
            if kept is not None:
                self.cache.restore(kept)
            else:
                # Where even a single token can't be taken back, what went wrong must be seen, not that.
                with suppress(ValueError):
                    self.cache.rollback(count)
            raise

    def _snapshot_where_needed(self, tokens: int) -> Any:
        """A copy of a cache that can't take back as many tokens as come.

        A single token without a named backend goes without one, which would cost more than its attention: all its
        arguments were checked before, so that nothing can refuse it. Interrupted or out of memory at that moment, such
        a cache keeps the token.
        """
        assert self.cache is not None
        margin = getattr(self.cache, "margin", tokens)
        return self.cache.snapshot() if tokens > margin and (tokens > 1 or self.backend is not None) else None
