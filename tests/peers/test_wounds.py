"""Known wounds of the field: each test shows one where it is still open today, and that headwise doesn't have it.

The sources are public issues. Where a library has mended its wound since, the test says so and holds it to that, so
that we learn when it comes back. Caches have a file of their own, ``test_wounds_of_caches.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers import masking_utils
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from headwise.attention import attention, attention_weights, attention_with_lse
from headwise.nn import GroupedQueryAttention
from tests.helpers.compare import assert_same
from tests.helpers.operations import Operations

B, H, G, L, S, D, DV = 2, 6, 2, 5, 7, 11, 13
PYTORCH = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]


def tensors(queries: int = L, keys: int = S, value_width: int = D) -> tuple[Tensor, Tensor, Tensor]:
    """Query ``[B, H, L, D]``, key ``[B, G, S, D]``, value ``[B, G, S, Dv]`` in float64."""
    shapes = (B, H, queries, D), (B, G, keys, D), (B, G, keys, value_width)
    query, key, value = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return query, key, value


def sdpa(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return scaled_dot_product_attention(query, key, value, enable_gqa=True, **options)


def leaves(*given: Tensor) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in given]


# Which keys a causal query sees.


def test_a_decoded_token_sees_all_that_is_cached():
    """pytorch#108108, #115111, #144858: with one query ``is_causal`` attends to key 0 and to nothing else."""
    query, key, value = tensors(queries=1)
    first = value[:, :, :1].repeat_interleave(H // G, 1)
    torch.testing.assert_close(sdpa(query, key, value, is_causal=True), first)  # open: the query has no say at all
    assert_same(attention(query, key, value, causal=True), sdpa(query, key, value))


def test_queries_behind_a_cache_stand_at_its_end():
    """pytorch#108108: fewer queries than keys are aligned at the upper left there, at the lower right here."""
    query, key, value = tensors(L, S)
    lower = torch.ones(L, S, dtype=torch.bool).tril(S - L)
    assert_same(attention(query, key, value, causal=True), sdpa(query, key, value, attn_mask=lower))
    upper = sdpa(query, key, value, is_causal=True)
    assert_same(attention(query, key, value, causal=True, offset=0), upper)  # open, and to be had here by its name
    assert (attention(query, key, value, causal=True) - upper).abs().amax(-1).min() > 1e-3


def test_more_queries_than_keys_leave_the_first_ones_blind():
    """pytorch#108108, second example: at the upper left no query is blind. mlx#2835 has the same quarrel.

    ``causal_lower_right`` of PyTorch agrees with headwise.
    """
    query, key, value = tensors(S, L)
    output, lse = attention_with_lse(query, key, value, causal=True)
    blind = S - L
    assert not output[:, :, :blind].any()
    assert bool((lse[:, :, :blind] == -torch.inf).all())
    assert lse[:, :, blind:].isfinite().all()
    repeated = (tensor.repeat_interleave(H // G, 1) for tensor in (key, value))
    assert_same(output, scaled_dot_product_attention(query, *repeated, attn_mask=causal_lower_right(S, L)))
    assert sdpa(query, key, value, is_causal=True)[:, :, :blind].any()  # open


def test_a_window_of_w_counts_the_own_key():
    """A ``sliding_window`` of w is ``(w - 1, 0)``: w keys with the query's own. Taking w for the left bound sees one
    more.

    In transformers (5.24) the same field means w - 1 keys back in causal masks and w keys to either side in others.
    """
    query, key, value = tensors()
    seen: dict[int, Tensor] = {}
    for window in range(1, S + 2):
        causal = masking_utils.sliding_window_causal_mask_function(window)
        both = masking_utils.sliding_window_bidirectional_mask_function(window)
        position, keys = torch.arange(S - L, S)[:, None], torch.arange(S)
        mask = causal(0, 0, position, keys)
        seen[window] = attention(query, key, value, causal=True, window=(window - 1, 0))
        assert_same(seen[window], sdpa(query, key, value, attn_mask=mask))
        two_sided = attention(query, key, value, window=(window, window))
        assert_same(two_sided, sdpa(query, key, value, attn_mask=both(0, 0, position, keys)))
    assert all((seen[window] - seen[window + 1]).abs().max() > 1e-3 for window in range(1, S))
    assert torch.equal(seen[S], seen[S + 1])


# Rows that see nothing.


def test_a_head_that_sees_nothing_spoils_no_other():
    """pytorch#160064: one head masked in full makes the whole output of ``nn.MultiheadAttention`` NaN.

    pytorch#41508: and the gradients of all that shares weights with it.
    """
    heads, length = 3, 5
    module = nn.MultiheadAttention(heads * 2, heads, batch_first=True)
    x = torch.randn(1, length, heads * 2)
    hidden = torch.tensor([False, False, True])[:, None, None].expand(-1, length, length)  # True = ignore there
    output, weights = module(x, x, x, attn_mask=hidden, average_attn_weights=False)
    assert output.isnan().all()  # open
    weights[0, 0].square().sum().backward()  # of a head that sees everything
    assert module.in_proj_weight.grad.isnan().any()

    query, key, value = leaves(*torch.randn(3, 1, heads, length, 2, dtype=torch.float64))
    output, lse = attention_with_lse(query, key, value, mask=~hidden)
    output.square().sum().backward()
    assert not output[:, 2].any()
    assert bool((lse[:, 2] == -torch.inf).all())
    assert_same(output[:, :2], attention(query[:, :2], key[:, :2], value[:, :2]))
    for tensor in (query, key, value):
        assert tensor.grad.isfinite().all()
        assert tensor.grad[:, :2].any()
        assert not tensor.grad[:, 2].any()
    assert not attention_weights(query, key, mask=~hidden)[:, 2].any()


def test_a_layer_says_which_query_sees_nothing():
    """pytorch#160064: NaN tells nobody where the mask was wrong."""
    layer = GroupedQueryAttention(6, 3)
    mask = torch.ones(1, 3, 5, 5, dtype=torch.bool)
    mask[:, 2, 4] = False
    with pytest.raises(ValueError, match=r"got none for query 4 of sequence 0 \(head 2\)"):
        layer(torch.randn(1, 5, 6), mask=mask)


@pytest.mark.parametrize("backend", PYTORCH)
def test_a_row_that_sees_nothing_is_zero(backend):
    """pytorch#103749, #103963: such a row was NaN in ``scaled_dot_product_attention``.

    Mended there in 2.5: output 0 and finite gradients, as here.
    """
    mask = torch.ones(L, S, dtype=torch.bool)
    mask[2] = False
    for function in (sdpa_with(backend), masked):
        query, key, value = leaves(*tensors())
        output = function(query, key, value, mask)
        output.sum().backward()
        assert not output[:, :, 2].any()
        assert not query.grad[:, :, 2].any()
        assert all(tensor.grad.isfinite().all() for tensor in (query, key, value))


def test_the_log_of_nothing_is_minus_infinity():
    """PyTorch's CPU kernel (2.13) reports an LSE of 0 for a row that sees nothing, as if it held a weight of 1.

    Joined with another part by its LSE, such a part takes a share that isn't its own.
    """
    query, key, value = tensors()
    lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, attn_mask=torch.full((1, 1, L, S), -torch.inf, dtype=torch.float64)
    )[1]
    assert not lse.any()  # open
    assert bool((attention_with_lse(query, key, value, mask=torch.tensor(False)).lse == -torch.inf).all())


# Memory that nobody may read.


def sdpa_with(backend: SDPBackend) -> Callable[..., Tensor]:
    def function(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return sdpa(query, key, value, attn_mask=mask)

    return function


def masked(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return attention(query, key, value, mask=mask)


# Ways to say that the last two keys are not to be read.
HIDDEN: dict[str, dict[str, Any]] = {
    "mask": {"mask": torch.tensor([True] * (S - 2) + [False] * 2)},
    "key lengths": {"key_lengths": [S - 2] * B},
    "causal order": {"causal": True, "offset": S - 2 - L},
    "window": {"window": (2, 0), "offset": S - 2 - L},
}


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["key", "value"])
@pytest.mark.parametrize("backend", PYTORCH)
def test_what_is_masked_leaks_through_zero_times_nan_in_pytorch(backend, where, poison):
    """pytorch#101967; the same in FlashAttention 3 and 4 (flash-attention#1745, #2374): open."""
    query, key, value = tensors()
    (key if where == "key" else value)[:, :, -2:] = poison
    assert sdpa_with(backend)(query, key, value, HIDDEN["mask"]["mask"].expand(L, S)).isnan().any()


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["key", "value"])
@pytest.mark.parametrize("options", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("backend", ["sdpa", "math", None])
def test_what_is_masked_leaks_nowhere(backend, options, where, poison):
    """pytorch#101967, flash-attention#1745, #2374: neither into the output nor into a gradient."""
    clean = leaves(*tensors())
    poisoned = leaves(*clean)
    with torch.no_grad():
        poisoned[1 if where == "key" else 2][:, :, -2:] = poison
    outputs = [attention(*inputs, **options, backend=backend) for inputs in (clean, poisoned)]
    for output in outputs:
        output.square().sum().backward()
    assert_same(outputs[1], outputs[0])
    for one, other in zip(poisoned, clean, strict=True):
        assert_same(one.grad, other.grad)
    assert not poisoned[1].grad[:, :, -2:].any()
    assert not poisoned[2].grad[:, :, -2:].any()


# Heads that share keys and values.


def test_masked_groups_are_not_repeated():
    """pytorch#190523: grouped heads outside of the fused kernel copy K and V for every query head.

    On a CPU (2.13) that is so for values of another width; transformers (5.24) does it itself under any mask, except
    for a single query.
    """
    query, key, value = tensors(value_width=DV)
    mask = torch.ones(B, 1, L, S, dtype=torch.bool)
    repeated = key.nbytes * H // G
    with Operations(query, key, value) as ran:
        sdpa(query, key, value, attn_mask=mask)
    assert ran.largest_bytes >= repeated  # open
    module = SimpleNamespace(num_key_value_groups=H // G, is_causal=True)
    with Operations(query, key, key) as ran:
        sdpa_attention_forward(module, query, key, key, mask)
    assert ran.largest_bytes >= repeated  # open
    query, key, value = tensors(queries=2, keys=97, value_width=DV)
    with Operations(query, key, value) as ran:
        attention(query, key, value, mask=torch.ones(B, 1, 2, 97, dtype=torch.bool))
    assert ran.largest_bytes <= max(key.nbytes, value.nbytes), ran.largest_name


def tiled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The other convention: query head h reads KV head h mod G."""
    return scaled_dot_product_attention(query, key.repeat(1, H // G, 1, 1), value.repeat(1, H // G, 1, 1))


def test_interleaved_weights_read_as_tiled_are_another_model():
    """x-transformers (2.31, ``attend.py``) tiles KV heads, and so did ONNX's Attention at first (onnx#7274).

    Head h reads ``h // R`` in Hugging Face, PyTorch and here. Both conventions take the same shapes, so that nothing
    but the numbers tells them apart. Moving head ``g * R + r`` to place ``r * G + g`` goes from one to the other.
    """
    layer = GroupedQueryAttention(D, H, G, head_dim=4).double()
    x = torch.randn(B, L, D, dtype=torch.float64)
    expected = layer(x).output
    order = torch.arange(H).view(G, H // G).T.flatten()

    def read_as_tiled(query_weight: Tensor, out_weight: Tensor) -> Tensor:
        weights = (query_weight, layer.k_proj.weight, layer.v_proj.weight)
        heads = [(x @ weight.T).unflatten(-1, (-1, 4)).transpose(1, 2) for weight in weights]
        return tiled(*heads).transpose(1, 2).flatten(2) @ out_weight.T

    query_weight, out_weight = layer.q_proj.weight, layer.o_proj.weight
    assert (read_as_tiled(query_weight, out_weight) - expected).abs().max() > 1e-3
    moved_query = query_weight.unflatten(0, (H, 4))[order].flatten(0, 1)
    moved_out = out_weight.unflatten(1, (H, 4))[:, order].flatten(1)
    assert_same(read_as_tiled(moved_query, moved_out), expected)
    query, key, value = tensors()
    assert_same(attention(query, key, value), sdpa(query, key, value))  # PyTorch interleaves as well
