"""The logical minimum: the entries that later steps still read, each in the bytes of its numbers, and nothing else.

No pages, no padding, no free places. A window of ``W`` holds ``W`` tokens, the query's own included; a step that
checks ``n`` drafts holds ``n`` more, since its first query still looks ``W`` back. Chunks are counted at the fullest
moment on the way to the context. States of fixed size hold one set: going back behind a refused draft is computing
again.
"""

from __future__ import annotations

from headwise.plan.layers import Architecture
from headwise.plan.request import Request
from headwise.plan.runtimes.base import BaseRuntime, counted, encoder_tokens
from headwise.plan.states import Chunk, Encoder, Fixed, State, Window

__all__ = ["LogicalRuntime"]


class LogicalRuntime(BaseRuntime):
    """What no runtime can go below, keeping the same numbers in the same storage."""

    name = "logical"

    def entries(self, state: State, request: Request, architecture: Architecture) -> tuple[int, str]:
        """Entries that are still read; a shared prefix is counted once as far as it is still seen."""
        if not request.context:
            return 0, "0 tokens"
        extent = state.extent
        if isinstance(extent, Encoder):
            return counted(encoder_tokens(state, request, architecture), 0, request.batch, "encoder tokens")
        if isinstance(extent, Fixed):
            return counted(extent.entries, 0, request.batch, "slots")
        if isinstance(extent, Chunk):
            return max(_chunk(extent.size, moment, request) for moment in _fullest(extent.size, request.context))
        first = max(0, request.context - extent.size) if isinstance(extent, Window) else 0
        return _from(first, request.length, request)


def _from(first: int, length: int, request: Request) -> tuple[int, str]:
    """All tokens from ``first`` on are held, those of the prefix among them once."""
    return counted(length - first, max(0, request.shared_prefix - first), request.batch)


def _chunk(size: int, context: int, request: Request) -> tuple[int, str]:
    return _from((context - 1) // size * size, context + request.speculative, request)


def _fullest(size: int, context: int) -> set[int]:
    """Contexts on the way at which a chunk can be fullest: the end of the last full one, and now."""
    return {context, context // size * size or context}
