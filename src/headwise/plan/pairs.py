"""How many pairs of a query and a key there are: counted exactly, with and without the causal half.

Symbols: ``T`` tokens, ``W`` window, ``C`` chunk. Three counts are kept apart because each is right for something:

- ``visible``: pairs that a query may attend to; the rest is zero after the softmax. What a kernel must compute.
- ``bound``: the same without using the causal half, ``T * T`` in a full layer and ``T * W`` in a local one: the usual
  estimate, and what a kernel computes that only skips what lies outside of windows and chunks.
- ``dense``: every query with every key that is there, ``T * T`` in every layer: what eager attention computes and what
  a stored map holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwise.plan.states import Chunk, Encoder, Extent, Fixed, Grows, Window

__all__ = ["Pairs", "decode_pairs", "mixed_pair_work", "prefill_pairs"]


@dataclass(frozen=True)
class Pairs:
    """Three counts of the same thing; they can be added and multiplied.

    Attributes:
        visible: what a query may attend to, exactly.
        bound: without the causal half.
        dense: every query with every key.
    """

    visible: int = 0
    bound: int = 0
    dense: int = 0

    def __add__(self, other: Pairs) -> Pairs:
        return Pairs(self.visible + other.visible, self.bound + other.bound, self.dense + other.dense)

    def __mul__(self, factor: int) -> Pairs:
        return Pairs(self.visible * factor, self.bound * factor, self.dense * factor)

    def most(self, other: Pairs) -> Pairs:
        """The larger of each count."""
        return Pairs(max(self.visible, other.visible), max(self.bound, other.bound), max(self.dense, other.dense))

    def as_dict(self) -> dict[str, int]:
        """The counts by name."""
        return {"visible": self.visible, "bound": self.bound, "dense": self.dense}


def prefill_pairs(extent: Extent, causal: bool, tokens: int, keys: int | None = None) -> Pairs:
    """The pairs of one head when ``tokens`` tokens are read at once.

    Args:
        extent: which keys a query sees. ``Fixed`` is no attention and has no pairs.
        causal: whether a query sees no later keys.
        tokens: how many queries there are.
        keys: how many keys there are, where these are not the queries' own tokens (``Encoder``).
    """
    if isinstance(extent, Fixed):
        return Pairs()
    if isinstance(extent, Encoder):
        seen = tokens * (tokens if keys is None else keys)
        return Pairs(seen, seen, seen)
    square = tokens * tokens
    if isinstance(extent, Grows):
        return Pairs(_triangle(tokens) if causal else square, square, square)
    if isinstance(extent, Window):
        bound = tokens * min(tokens, extent.size)
        return Pairs(
            _causal_window(tokens, extent.size) if causal else _centred_window(tokens, extent.size), bound, square
        )
    whole, rest = divmod(tokens, extent.size)
    bound = whole * extent.size**2 + rest**2
    visible = whole * _triangle(extent.size) + _triangle(rest)
    return Pairs(visible if causal else bound, bound, square)


def decode_pairs(extent: Extent, context: int, keys: int | None = None) -> Pairs:
    """The pairs of one head for the last of ``context`` tokens, those before it being cached.

    Args:
        extent: which keys the query sees, its own among them.
        context: tokens, the query's own included.
        keys: how many keys the encoder left (``Encoder``).
    """
    if isinstance(extent, Fixed) or context < 1:
        return Pairs()
    if isinstance(extent, Encoder):
        seen = keys or 0
        return Pairs(seen, seen, seen)
    held = extent.tokens(context)
    if isinstance(extent, Chunk):
        # The first token of a new chunk sees itself alone, though a rolling cache may still hold the last chunk.
        return Pairs((context - 1) % extent.size + 1, held, held)
    return Pairs(held, held, held)


def mixed_pair_work(local_heads: int, global_heads: int, tokens: int, window: int, dim: int) -> Pairs:
    """Multiply-adds of the scores of a layer in which some heads see a window and the others everything.

    ``bound`` is ``local_heads * T * W * dim + global_heads * T * T * dim``; the values cost the same again.
    """
    local = prefill_pairs(Window(window), True, tokens) * (local_heads * dim)
    return local + prefill_pairs(Grows(), True, tokens) * (global_heads * dim)


def _triangle(count: int) -> int:
    return count * (count + 1) // 2


def _causal_window(tokens: int, size: int) -> int:
    """The sum of ``min(i, size)`` for the tokens i = 1, 2, ..."""
    full = min(tokens, size)
    return _triangle(full) + (tokens - full) * size


def _centred_window(tokens: int, size: int) -> int:
    """Every query sees its own key, those before it up to ``(size - 1) // 2``, those after it up to ``size // 2``."""
    before, after = _causal_window(tokens, (size - 1) // 2 + 1), _causal_window(tokens, size // 2 + 1)
    return before + after - tokens
