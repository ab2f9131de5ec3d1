"""Relations between a query and its keys: what a head can be read by.

Symbols: B batch, L query length, S key length. Positions are absolute and count from 0.

A head's score on a relation is the mass that its softmax puts on the relation's keys. A new score is a new relation,
not a new code path: give it a ``name`` and a ``keys`` method, and it is read as these are, with its value under even
attention (which scores a study tests is listed in ``scores``). With a ``form`` as well it is read by the compiled
kernels; the relations here are defined by theirs. What isn't of the kind that they tell is refused when one is made:
TypeError for another kind of thing, ValueError for another shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any

import torch
from torch import Tensor

from headwise.attention.forms import EqualIds, Members, SingleKey
from headwise.attention.packing import check_packing
from headwise.attention.validation import holds_integers

__all__ = ["Keys", "Match", "Offset", "Target"]


@dataclass(frozen=True)
class Offset:
    """The key ``distance`` places back; 1 is the previous token (Olsson et al. 2022), a negative one looks ahead."""

    distance: int
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "distance", _whole_number("Offset", "distance", self.distance))
        object.__setattr__(self, "name", self.name or f"offset {self.distance}")

    def keys(self, queries: Tensor, key_length: int) -> Tensor:
        """Boolean ``[B or 1, rows, S]`` from absolute query positions ``[B or 1, rows]``."""
        return self.form(queries, key_length).keys(key_length)

    def form(self, queries: Tensor, key_length: int) -> SingleKey:
        """The same without a map."""
        return SingleKey(queries - self.distance)


# Compared by identity: whether two hold equal tensors is nothing that == could answer with one boolean.
@dataclass(frozen=True, eq=False)
class Match:
    """Keys whose token ``shift`` places before equals the query's own token.

    ``Match(0, tokens)`` is the duplicate-token relation: earlier (in an encoder: other) copies of the same token.
    ``Match(1, tokens)`` is the induction relation: the tokens that followed earlier copies (Olsson et al. 2022). The
    query's own position never counts as the copy.

    Args:
        shift: how far before the key the copy stands.
        tokens: integers ``[B, S]``, any of them, ids of the tokens at the keys' positions.
        cu_seqlens: where packed documents start and end, as in :func:`headwise.attention.attention`: a token of one
            document isn't what stands before the first of the next.
    """

    shift: int
    tokens: Tensor = field(repr=False)
    name: str = ""
    cu_seqlens: Tensor | Sequence[int] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shift", _whole_number("Match", "shift", self.shift))
        object.__setattr__(self, "name", self.name or f"match {self.shift}")
        if self.shift < 0:
            raise ValueError(f"Match: expected a shift of 0 or more, got {self.shift}; Offset looks ahead")
        _check_integers("Match", "tokens [B, S]", self.tokens)
        if self.tokens.ndim != 2:
            raise ValueError(
                f"Match: expected tokens [B, S], got shape {list(self.tokens.shape)}; "
                "add the batch axis with tokens[None]"
            )
        keys = self.tokens.shape[1]
        packing = check_packing(self.cu_seqlens, (1, 1, keys, keys))
        object.__setattr__(self, "cu_seqlens", None if packing is None else packing[1])

    def keys(self, queries: Tensor, key_length: int) -> Tensor:
        """Boolean ``[B, rows, S]`` from absolute query positions ``[B or 1, rows]``."""
        return self.form(queries, key_length).keys(key_length)

    def form(self, queries: Tensor, key_length: int) -> EqualIds:
        """The same without a map."""
        if self.tokens.shape[1] != key_length:
            raise ValueError(
                f"Match {self.name!r}: expected tokens for {key_length} keys, got {self.tokens.shape[1]}; "
                "they are those of the whole key sequence"
            )
        tokens = _places(self.tokens.to(queries.device).long())  # ids of a form are not negative
        own, known = _at_queries(tokens, queries)  # [B, rows]
        places = torch.arange(key_length, device=queries.device)
        sources = places - self.shift  # where the copy would stand
        before = tokens[:, sources.clamp(min=0)]  # [B, S]
        there = sources >= self._starts(places)
        return EqualIds(torch.where(known, own, -1), torch.where(there, before, -1), queries + self.shift)

    def _starts(self, places: Tensor) -> Tensor | int:
        """Where the document of each place starts."""
        if self.cu_seqlens is None:
            return 0
        assert isinstance(self.cu_seqlens, Tensor)  # since the constructor
        bounds = self.cu_seqlens.to(places.device)
        return bounds[torch.searchsorted(bounds, places, right=True) - 1]


@dataclass(frozen=True, eq=False)
class Keys:
    """A fixed class of keys, the same for every query: the first token, delimiters, one sentence.

    Args:
        mask: boolean ``[S]`` or ``[B, S]``.
    """

    mask: Tensor = field(repr=False)
    name: str = "keys"

    def __post_init__(self) -> None:
        if not isinstance(self.mask, Tensor) or self.mask.dtype != torch.bool:
            got = self.mask.dtype if isinstance(self.mask, Tensor) else type(self.mask).__name__
            raise TypeError(f"Keys {self.name!r}: expected a tensor of booleans, True for its keys, got {got}")
        _check_axes(f"Keys {self.name!r}", "mask", self.mask)

    def keys(self, queries: Tensor, key_length: int) -> Tensor:
        """Boolean ``[B or 1, rows, S]`` from absolute query positions ``[B or 1, rows]``."""
        return self.form(queries, key_length).keys(key_length)

    def form(self, queries: Tensor, key_length: int) -> Members:
        """The same without a map."""
        if self.mask.shape[-1] != key_length:
            raise ValueError(
                f"Keys {self.name!r}: expected a mask over {key_length} keys, got shape {list(self.mask.shape)}; "
                "they are those of the whole key sequence"
            )
        return Members(_rows(self.mask.to(queries.device)), queries.shape[-1])


@dataclass(frozen=True, eq=False)
class Target:
    """One labelled key per query: a dependency's head, an antecedent, the token that must be copied.

    Args:
        index: integers ``[S]`` or ``[B, S]``, for every position the position of its key; −1 where there is none.
    """

    index: Tensor = field(repr=False)
    name: str = "target"

    def __post_init__(self) -> None:
        _check_integers(f"Target {self.name!r}", "labels [S] or [B, S]", self.index)
        _check_axes(f"Target {self.name!r}", "labels", self.index)

    def keys(self, queries: Tensor, key_length: int) -> Tensor:
        """Boolean ``[B or 1, rows, S]`` from absolute query positions ``[B or 1, rows]``."""
        return self.form(queries, key_length).keys(key_length)

    def form(self, queries: Tensor, key_length: int) -> SingleKey:
        """The same without a map."""
        if self.index.shape[-1] != key_length:
            raise ValueError(
                f"Target {self.name!r}: expected one label for each of {key_length} positions, "
                f"got {self.index.shape[-1]}; use -1 where there is no target"
            )
        labels = _rows(self.index.to(queries.device).long())  # [B or 1, S]
        chosen, known = _at_queries(labels, queries)  # [B or 1, rows]
        return SingleKey(torch.where(known, chosen, -1))


_FAR = 2**62  # a position and so many places more are still an int64


def _whole_number(relation: str, what: str, given: Any) -> int:
    try:
        number = None if isinstance(given, bool) else index(given)
    except TypeError:
        number = None
    if number is None:
        got = repr(given) if isinstance(given, (bool, float, str)) else type(given).__name__
        raise TypeError(f"{relation}: expected {what} as a whole number of places, got {got}")
    if abs(number) > _FAR:
        raise ValueError(f"{relation}: expected {what} of at most 2**62 places, got {number}")
    return number


def _check_integers(relation: str, what: str, given: Any) -> None:
    if not isinstance(given, Tensor) or not holds_integers(given):
        got = given.dtype if isinstance(given, Tensor) else type(given).__name__
        raise TypeError(f"{relation}: expected {what} as a tensor of integers, got {got}; make one with torch.tensor")


def _check_axes(relation: str, what: str, given: Tensor) -> None:
    if given.ndim not in (1, 2):
        raise ValueError(f"{relation}: expected {what} [S] or [B, S], got shape {list(given.shape)}")


def _places(ids: Tensor) -> Tensor:
    """Other ids, equal where these are, from 0 on: where each stands among all of them in order.

    What is taken off negative ids to make them positive may overflow; this holds for any, and waits for no device.
    """
    flat = ids.flatten()
    return torch.searchsorted(flat.sort().values, flat).view(ids.shape)


def _rows(tensor: Tensor) -> Tensor:
    """``[S]`` or ``[B, S]`` to ``[B or 1, S]``."""
    return tensor if tensor.ndim == 2 else tensor[None]


def _at_queries(values: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """What stands at the queries' positions, ``[B or 1, rows]``, and where there is such a position at all.

    A query may stand before the first or behind the last of the ``values`` ``[B or 1, S]``.
    """
    batch = max(values.shape[0], queries.shape[0])
    known = (queries >= 0) & (queries < values.shape[1])
    inside = queries.clamp(0, max(values.shape[1] - 1, 0))
    if values.shape[1] == 0:
        return inside.expand(batch, -1), known.expand(batch, -1)
    return values.expand(batch, -1).gather(1, inside.expand(batch, -1)), known
