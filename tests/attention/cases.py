"""Random attention calls for property tests: every option of the signature, alone and together.

Sizes are different primes per axis wherever head counts allow it, so that no wrong reshape passes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

HEADS = [(28, 4), (12, 2), (71, 1), (65, 5), (9, 3), (4, 4), (3, 1), (1, 1)]  # (H, G)
GIVEN_TENSORS = ("bias", "sinks", "alibi_slopes")  # options that carry a gradient


@dataclass(frozen=True)
class Case:
    """One call: tensors in float64 and the options that go with them."""

    query: Tensor
    key: Tensor
    value: Tensor
    options: dict[str, Any] = field(default_factory=dict)

    def inputs(self) -> dict[str, Tensor]:
        """Everything that has a gradient, by name."""
        given = {name: self.options[name] for name in GIVEN_TENSORS if name in self.options}
        return {"query": self.query, "key": self.key, "value": self.value, **given}

    def fixed(self) -> dict[str, Any]:
        """The options without a gradient."""
        return {name: given for name, given in self.options.items() if name not in GIVEN_TENSORS}

    def without(self, *names: str) -> Case:
        """The same call without some options."""
        kept = {name: given for name, given in self.options.items() if name not in names}
        return Case(self.query, self.key, self.value, kept)

    def poisoned(self, read: Tensor, poison: float) -> Case:
        """The same call with ``poison`` in keys and values that nobody reads; ``read`` is ``[B, H, L, S]``."""
        groups = self.key.shape[1]
        unread = ~read.any(2).unflatten(1, (groups, -1)).any(2)  # [B, G, S]
        key, value = (tensor.masked_fill(unread[..., None], poison) for tensor in (self.key, self.value))
        return Case(self.query, key, value, self.options)


def make_case(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, width: int, value_width: int | None = None
) -> Case:
    """A call without options."""
    value_width = width if value_width is None else value_width
    return Case(
        torch.randn(batch, heads, queries, width, dtype=torch.float64),
        torch.randn(batch, kv_heads, keys, width, dtype=torch.float64),
        torch.randn(batch, kv_heads, keys, value_width, dtype=torch.float64),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Calls with any options."""
    heads, kv_heads = draw(st.sampled_from(HEADS))
    batch = draw(st.sampled_from([1, 2] if heads < 28 else [1]))
    queries = draw(st.sampled_from([1, 3, 5] if heads < 28 else [1, 2]))
    keys = draw(st.sampled_from([1, 2, 7, 11]))
    width, value_width = draw(st.sampled_from([(7, 7), (13, 13), (7, 13), (13, 7), (1, 1)]))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    case = make_case(batch, heads, kv_heads, queries, keys, width, value_width)
    case.options.update(draw(visibility(batch, heads, queries, keys)))
    case.options.update(draw(score_options(batch, heads, queries, keys)))
    return case


@st.composite
def visibility(draw: st.DrawFn, batch: int, heads: int, queries: int, keys: int) -> dict[str, Any]:
    """What decides which keys a query may read."""
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        options["causal"] = True
    if draw(st.booleans()):
        shape = draw(broadcast_shapes(batch, heads, queries, keys))
        options["mask"] = torch.rand(shape) < draw(st.sampled_from([0.0, 0.4, 0.8, 1.0]))
    if draw(st.booleans()):
        options["window"] = draw(windows(heads))
    offset = draw(st.sampled_from(["default", "number", "tensor"]))
    if offset == "number":
        options["offset"] = draw(st.integers(-3, keys + 2))
    elif offset == "tensor":
        options["offset"] = torch.randint(-3, keys + 2, (batch,))
    if draw(st.booleans()):
        options["key_lengths"] = torch.randint(0, keys + 1, (batch,))
    return options


def windows(heads: int) -> st.SearchStrategy[Any]:
    """One window, or one per head."""
    bound = st.none() | st.integers(0, 4)
    one = st.tuples(bound, bound)
    return one | st.lists(st.none() | one, min_size=heads, max_size=heads)


@st.composite
def broadcast_shapes(draw: st.DrawFn, *full: int) -> tuple[int, ...]:
    """A shape that broadcasts to ``full``, with leading axes of 1 or none."""
    shape = tuple(draw(st.sampled_from([1, size])) for size in full)
    return shape[draw(st.integers(0, 4)) :]


@st.composite
def score_options(draw: st.DrawFn, batch: int, heads: int, queries: int, keys: int) -> dict[str, Any]:
    """What changes the scores or the softmax."""
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        options["bias"] = torch.randn(draw(broadcast_shapes(batch, heads, queries, keys)), dtype=torch.float64)
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([0.0, 0.3, -1.7]))
    if draw(st.booleans()):
        options["softcap"] = draw(st.sampled_from([0.5, 30.0]))
    if draw(st.booleans()):
        options["sinks"] = torch.randn(heads, dtype=torch.float64) * 3
    if draw(st.booleans()):
        shape = draw(st.sampled_from([(heads,), (batch, heads)]))
        options["alibi_slopes"] = torch.rand(shape, dtype=torch.float64)
    return options
