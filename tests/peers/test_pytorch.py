"""PyTorch as a judge: scaled dot product attention and ``nn.MultiheadAttention``; FlexAttention has a file of its own.

In float64 only rounding may differ, in outputs and in gradients; in the other types errors against float64 may be at
most twice PyTorch's own.

Axes: ``B`` batch, ``L`` query length, ``S`` key length, ``E`` model width, ``H`` query heads, ``G`` KV heads, ``D``
head dim, ``Dv`` value head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from headwise.attention import attention
from headwise.nn import GroupedQueryAttention, masks_from_torch
from tests.helpers.compare import assert_same, assert_same_function

BATCH, QUERIES, KEYS, WIDTH, VALUE_WIDTH = 2, 7, 11, 13, 17

# The grid that PyTorch tests grouped heads with, and layouts of real decoders.
HEAD_LAYOUTS = [(65, 5), (16, 4), (27, 1), (5, 1), (28, 4), (12, 2), (9, 3)]


def random_tensors(
    heads: int, kv_heads: int, queries: int = QUERIES, keys: int = KEYS, batch: int = BATCH, value_width: int = WIDTH
) -> dict[str, Tensor]:
    """Query ``[B, H, L, D]``, key ``[B, G, S, D]`` and value ``[B, G, S, Dv]`` in float64."""
    shapes = {
        "query": (batch, heads, queries, WIDTH),
        "key": (batch, kv_heads, keys, WIDTH),
        "value": (batch, kv_heads, keys, value_width),
    }
    return {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}


def pytorch(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None, **options: Any) -> list[Tensor]:
    """PyTorch's unfused path, which takes everything; ``bias`` is its floating mask."""
    if bias is not None:
        options["attn_mask"] = bias
    with sdpa_kernel(SDPBackend.MATH):
        return [scaled_dot_product_attention(query, key, value, enable_gqa=True, **options)]


# Keyword arguments of PyTorch and of headwise that mean the same, for H heads, L queries and S keys; what is called
# "bias" is a tensor that both take and that has a gradient.
MASKS: dict[str, Callable[[int, int, int], tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]]]] = {
    "none": lambda H, L, S: ({}, {}, {}),
    "scale": lambda H, L, S: ({"scale": 0.7}, {"scale": 0.7}, {}),
    # PyTorch's causal order is aligned at the upper left, whatever the lengths are.
    "causal": lambda H, L, S: ({"is_causal": True}, {"causal": True, "offset": 0}, {}),
    "mask [L, S]": lambda H, L, S: same_mask(torch.rand(L, S) < 0.6),
    "mask [B, 1, 1, S]": lambda H, L, S: same_mask(torch.rand(BATCH, 1, 1, S) < 0.6),
    "mask [B, H, L, S]": lambda H, L, S: same_mask(torch.rand(BATCH, H, L, S) < 0.6),
    "rows that see nothing": lambda H, L, S: same_mask(
        (torch.arange(L) % 3 > 0)[:, None] & (torch.rand(H, L, S) < 0.8)
    ),
    "bias [L, S]": lambda H, L, S: ({}, {}, {"bias": torch.randn(L, S, dtype=torch.float64)}),
    "bias [1, H, L, S]": lambda H, L, S: ({}, {}, {"bias": torch.randn(1, H, L, S, dtype=torch.float64)}),
    "bias [B, H, L, S]": lambda H, L, S: ({}, {}, {"bias": torch.randn(BATCH, H, L, S, dtype=torch.float64)}),
    "bias with -inf": lambda H, L, S: (
        {},
        {},
        {"bias": torch.randn(L, S, dtype=torch.float64).masked_fill(torch.rand(L, S) < 0.3, -torch.inf)},
    ),
}


def same_mask(mask: Tensor) -> tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]]:
    """Boolean masks say True = may attend on both sides."""
    return {"attn_mask": mask}, {"mask": mask}, {}


@pytest.mark.parametrize("backend", [None, "math"])
@pytest.mark.parametrize(("queries", "keys"), [(QUERIES, KEYS), (KEYS, QUERIES), (KEYS, KEYS)])
@pytest.mark.parametrize("masked", MASKS)
def test_outputs_and_gradients_under_masks(masked: str, queries: int, keys: int, backend: str | None) -> None:
    theirs, ours, bias = MASKS[masked](6, queries, keys)
    assert_same_function(
        lambda query, key, value, bias=None: [attention(query, key, value, bias=bias, backend=backend, **ours)],
        lambda **tensors: pytorch(**tensors, **theirs),
        random_tensors(6, 2, queries, keys, value_width=VALUE_WIDTH) | bias,
    )


@pytest.mark.parametrize("backend", [None, "math"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads"), HEAD_LAYOUTS)
def test_outputs_and_gradients_of_head_layouts(heads: int, kv_heads: int, causal: bool, backend: str | None) -> None:
    assert_same_function(
        lambda query, key, value: [attention(query, key, value, causal=causal, backend=backend)],
        lambda query, key, value: pytorch(query, key, value, is_causal=causal),
        random_tensors(heads, kv_heads, QUERIES, QUERIES),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "kv_heads"), HEAD_LAYOUTS)
def test_errors_of_head_layouts_are_at_most_twice_those_of_pytorch(
    heads: int, kv_heads: int, dtype: torch.dtype
) -> None:
    held = {name: tensor.to(dtype) for name, tensor in random_tensors(heads, kv_heads, 31, 37).items()}
    (exact,) = pytorch(**{name: tensor.double() for name, tensor in held.items()}, is_causal=True)
    (theirs,), ours = pytorch(**held, is_causal=True), attention(**held, causal=True, offset=0)
    our_error, their_error = (float((result.double() - exact).square().mean().sqrt()) for result in (ours, theirs))
    assert 0 < our_error <= 2 * their_error, f"headwise errs by {our_error:.3g}, PyTorch by {their_error:.3g}"


def test_aligned_at_the_lower_right_is_another_mask_in_pytorch() -> None:
    """With a cache PyTorch's ``is_causal`` would let every new query see the first keys only (pytorch#108108)."""
    tensors = random_tensors(6, 2, 1, KEYS)
    (upper_left,), (everything,) = pytorch(**tensors, is_causal=True), pytorch(**tensors)
    assert_same(upper_left, tensors["value"][:, :, :1].repeat_interleave(3, 1))
    assert_same(attention(**tensors, causal=True), everything)
    assert_same(attention(**tensors, causal=True, offset=0), upper_left)


@pytest.mark.parametrize("backend", [None, "math"])
@pytest.mark.parametrize("causal", [False, True])
def test_packed_documents_are_calls_of_their_own(causal: bool, backend: str | None) -> None:
    """Outputs and gradients of documents side by side, one of them empty, are those of PyTorch on each alone."""
    bounds = [0, 5, 5, 8, 19, 20]

    def alone(query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        documents = (
            pytorch(*(tensor[:, :, start:stop] for tensor in (query, key, value)), is_causal=causal)[0]
            for start, stop in pairwise(bounds)
            if start < stop
        )
        return [torch.cat(list(documents), 2)]

    assert_same_function(
        lambda query, key, value: [attention(query, key, value, causal=causal, cu_seqlens=bounds, backend=backend)],
        alone,
        random_tensors(6, 2, 20, 20, batch=1, value_width=VALUE_WIDTH),
    )


@pytest.mark.parametrize("backend", [None, "math"])
def test_packed_documents_are_a_mask_of_blocks(backend: str | None) -> None:
    """With biases and with other keys than queries, which PyTorch can only be told as a mask over everything."""
    queries, keys = [0, 2, 5, 9], [0, 4, 4, 11]
    document, seen_by = (
        torch.repeat_interleave(torch.arange(3), torch.tensor(bounds).diff()) for bounds in (queries, keys)
    )
    same = document[:, None] == seen_by  # the second document has no keys
    tensors = random_tensors(6, 2, 9, 11, batch=1) | {"bias": torch.randn(1, 6, 9, 11, dtype=torch.float64)}
    packing = (queries, keys)
    assert_same_function(
        lambda query, key, value, bias: [
            attention(query, key, value, bias=bias, cu_seqlens=packing, backend=backend),
        ],
        lambda query, key, value, bias: pytorch(query, key, value, bias=bias.masked_fill(~same, -torch.inf)),
        tensors,
    )


def multihead_module(width: int, heads: int, dtype: torch.dtype = torch.float64) -> nn.MultiheadAttention:
    module = nn.MultiheadAttention(width, heads, batch_first=True)
    for parameter in module.parameters():  # its biases start at zero, which would hide them
        nn.init.normal_(parameter, std=0.5)
    return module.to(dtype)


CROSS_MASKS: dict[str, dict[str, Tensor]] = {
    "none": {},
    "padding": {"key_padding_mask": torch.arange(KEYS) >= torch.tensor([[KEYS], [4]])},
    "mask": {"attn_mask": torch.arange(KEYS) > torch.arange(QUERIES)[:, None] + 2},
    "mask and padding": {
        "attn_mask": torch.arange(KEYS) > torch.arange(QUERIES)[:, None],
        "key_padding_mask": torch.arange(KEYS) >= torch.tensor([[9], [2]]),
    },
    "heads and padding": {
        "attn_mask": (torch.arange(BATCH * 5 * QUERIES * KEYS).view(-1, QUERIES, KEYS) % 3 == 1),
        "key_padding_mask": torch.arange(KEYS) >= torch.tensor([[KEYS], [6]]),
    },
    "floats": {
        "attn_mask": torch.linspace(-2, 2, BATCH * 5 * QUERIES * KEYS, dtype=torch.float64)
        .view(-1, QUERIES, KEYS)
        .cos(),
        "key_padding_mask": torch.linspace(-1, 1, BATCH * KEYS, dtype=torch.float64).view(BATCH, KEYS),
    },
}


@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("masked", CROSS_MASKS)
def test_multihead_cross_attention(masked: str, averaged: bool) -> None:
    module, ignored = multihead_module(35, 5), CROSS_MASKS[masked]
    layer, masks = GroupedQueryAttention.from_torch(module), masks_from_torch(**ignored, num_heads=5)

    def theirs(hidden: Tensor, context: Tensor) -> list[Tensor]:
        return list(module(hidden, context, context, average_attn_weights=averaged, **ignored))

    def ours(hidden: Tensor, context: Tensor) -> list[Tensor]:
        output, weights = layer(hidden, context, mask=masks.mask, bias=masks.bias, need_weights=True)
        assert weights is not None
        return [output, weights.mean(1) if averaged else weights]

    inputs = {
        "hidden": torch.randn(BATCH, QUERIES, 35, dtype=torch.float64),
        "context": torch.randn(BATCH, KEYS, 35, dtype=torch.float64),
    }
    assert_same_function(ours, theirs, inputs)


def test_a_head_that_sees_nothing_spoils_no_other() -> None:
    """With ``need_weights`` PyTorch's module turns the whole output into NaN (pytorch#160064)."""
    module, hidden = multihead_module(20, 4), torch.randn(BATCH, QUERIES, 20, dtype=torch.float64)
    ignored = torch.zeros(BATCH * 4, QUERIES, QUERIES, dtype=torch.bool)
    ignored[1] = True  # head 1 of the first sequence
    expected, _ = module(hidden, hidden, hidden, attn_mask=ignored, need_weights=False)
    assert not expected.isnan().any()
    masks = masks_from_torch(ignored, num_heads=4)
    # The layer takes a query that sees nothing for a mistake unless it is padding.
    padding = torch.tensor([[False], [True]]).expand(BATCH, QUERIES)
    layer = GroupedQueryAttention.from_torch(module)
    output, weights = layer(hidden, mask=masks.mask, query_mask=padding, need_weights=True)
    assert_same(output, expected)
    assert weights is not None
    sums = torch.ones(BATCH, 4, QUERIES, dtype=torch.float64)
    sums[0, 1] = 0
    assert_same(weights.sum(-1), sums)


@pytest.mark.parametrize("masked", ["causal", "padding"])
def test_errors_of_the_layer_are_at_most_twice_those_of_the_fast_path(masked: str) -> None:
    """``nn.MultiheadAttention`` runs one fused operation in inference."""
    module, hidden = multihead_module(48, 3, torch.float32).eval(), torch.randn(BATCH, 29, 48)
    blocked = torch.ones(29, 29, dtype=torch.bool).triu(1)
    ignored = {
        "causal": {"attn_mask": blocked, "is_causal": True},
        "padding": {"key_padding_mask": torch.arange(29) >= torch.tensor([[29], [17]])},
    }[masked]
    masks = masks_from_torch(ignored.get("attn_mask"), ignored.get("key_padding_mask"), num_heads=3)
    with torch.no_grad():
        precise, wide = deepcopy(module).double(), hidden.double()
        exact, _ = precise(wide, wide, wide, need_weights=False, **ignored)
        theirs, _ = module(hidden, hidden, hidden, need_weights=False, **ignored)
        ours, _ = GroupedQueryAttention.from_torch(module)(hidden, mask=masks.mask)
    our_error, their_error = (float((result.double() - exact).square().mean().sqrt()) for result in (ours, theirs))
    assert 0 < our_error <= 2 * their_error, f"headwise errs by {our_error:.3g}, PyTorch by {their_error:.3g}"
