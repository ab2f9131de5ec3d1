"""The logical minimum: the entries that later steps still read, each in the bytes of its numbers, and nothing else.

No pages, no padding, no free places. A window of ``W`` holds ``W`` tokens, the query's own included; a step that
checks ``n`` drafts holds ``n`` more, since its first query still looks ``W`` back. States of fixed size hold one set:
going back behind a refused draft is computing again.

A chunk is counted at the fullest moment on the way to the context, which memory has to be there for: right behind the
end of a chunk only a token or two are still seen, yet a moment before it was all of it.
"""

from __future__ import annotations

from headwise.plan.layers import Architecture
from headwise.plan.request import Request
from headwise.plan.runtimes.base import BaseRuntime, counted, empty, encoder_tokens
from headwise.plan.states import Chunk, Encoder, Fixed, State, Window

__all__ = ["LogicalRuntime"]


class LogicalRuntime(BaseRuntime):
    """What no runtime can go below, keeping the same numbers in the same storage."""

    name = "logical"

    def entries(self, state: State, request: Request, architecture: Architecture) -> tuple[int, str]:
        """Entries that are still read; a shared prefix is counted once as far as it is still seen."""
        if not request.context:
            return empty(state, "slots" if isinstance(state.extent, Fixed) else "tokens")
        extent = state.extent
        if isinstance(extent, Encoder):
            return counted(encoder_tokens(state, request, architecture), 0, request.batch, "encoder tokens")
        if isinstance(extent, Fixed):
            return counted(extent.entries, 0, request.batch, "slots")
        if isinstance(extent, Chunk):
            return _fullest_chunk(extent.size, request)
        first = max(0, request.context - extent.size) if isinstance(extent, Window) else 0
        return _from(first, request.length, request)


def _from(first: int, length: int, request: Request) -> tuple[int, str]:
    """All tokens from ``first`` on are held, those of the prefix among them once."""
    shared = max(0, min(request.shared_prefix, length) - first)
    return counted(length - first, shared, request.batch)


def _chunk(size: int, context: int, request: Request) -> tuple[int, str]:
    return _from((context - 1) // size * size, context + request.speculative, request)


def _fullest_chunk(size: int, request: Request) -> tuple[int, str]:
    """A chunk can be fullest at two moments on the way: at the end of the last full one, and now."""
    now = _chunk(size, request.context, request)
    before = _chunk(size, request.context // size * size or request.context, request)
    return now if now[0] >= before[0] else (before[0], f"{before[1]} at the fullest")
