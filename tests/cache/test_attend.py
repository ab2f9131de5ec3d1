"""Attention over parts: which heads read which, and whose masks, windows, sinks and slopes are whose."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.attention import attention_weights
from headwise.attention.reference import reference_attention
from headwise.cache import DenseCache, Held, attend, attend_weights
from tests.helpers.compare import EXACT, assert_same, assert_same_function
from tests.helpers.operations import Operations

B, H, G, L, N, D, DV = 2, 15, 5, 3, 11, 7, 13
SPLITS = [[(0, 1, 2, 3, 4)], [(4, 3, 2, 1, 0)], [(0, 1), (2, 3, 4)], [(1, 4), (3,), (0, 2)]]


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    shapes = (B, H, L, D), (B, G, N, D), (B, G, N, DV)
    query, key, value = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return query, key, value


def parts_of(key: Tensor, value: Tensor, split: list[tuple[int, ...]], start: int = 0) -> list[Held]:
    """What a cache hands out that holds ``N`` tokens, of which the last ``L`` are new."""
    return [
        Held(heads, key[:, list(heads), start:], value[:, list(heads), start:], start, N - L - start, None)
        for heads in split
    ]


OPTIONS: dict[str, Any] = {
    "plain": {},
    "not causal": {"causal": False},
    "one window": {"window": (4, 0)},
    "windows": {"window": [(head % 6, 0) for head in range(H)]},
    "two-sided windows": {"window": [None if head % 2 else (head % 6, 1) for head in range(H)], "causal": False},
    "scale and soft-cap": {"scale": 0.3, "softcap": 2.0},
    "sinks": {"sinks": torch.randn(H, dtype=torch.float64)},
    "slopes": {"alibi_slopes": torch.rand(H, dtype=torch.float64)},
    "slopes per sequence": {"alibi_slopes": torch.rand(B, H, dtype=torch.float64)},
    "mask of keys": {"mask": torch.rand(B, 1, 1, N) < 0.7},
    "mask of queries": {"mask": torch.tensor([True, False, True])[:, None]},
    "mask per head": {"mask": torch.rand(H, L, N) < 0.7},
    "bias": {"bias": torch.randn(N, dtype=torch.float64)},
    "bias per head": {"bias": torch.randn(B, H, L, N, dtype=torch.float64)},
    "bias of heads alone": {"bias": torch.randn(H, 1, 1, dtype=torch.float64)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_parts_give_what_all_heads_at_once_give(split: list[tuple[int, ...]], options: dict[str, Any]) -> None:
    query, key, value = tensors()
    expected = reference_attention(query, key, value, **{"causal": True, "offset": N - L} | options)
    held = parts_of(key, value, split)
    assert_same(attend(query, held, **options), expected.output)
    assert_same(attend_weights(query, held, length=N, **options), expected.weights)


def test_kv_heads_are_interleaved_not_tiled() -> None:
    # Each KV head has one value of its own: what a query head returns says which one it read.
    query, key, _ = tensors()
    value = torch.arange(G, dtype=torch.float64)[None, :, None, None].expand(B, G, N, 1)
    for split in SPLITS:
        output = attend(query, parts_of(key, value, split))
        assert_same(
            output, torch.arange(H).div(H // G, rounding_mode="floor").double()[:, None, None].expand_as(output)
        )


@pytest.mark.parametrize("split", [0, 16])
@pytest.mark.parametrize("starts", [4, (0, 4), (2, 4)])
def test_what_is_dropped_has_no_column_to_read(
    starts: int | tuple[int, int], split: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that begin later, at one position or at one per sequence, with masks over all positions."""
    monkeypatch.setattr(importlib.import_module("headwise.cache.attend"), "SPLIT_QUERIES", split)
    query, key, value = tensors()
    mask, bias = torch.rand(B, H, L, N) < 0.8, torch.randn(B, H, L, N, dtype=torch.float64)
    window = [(4, 0)] * H
    each = [starts] * B if isinstance(starts, int) else list(starts)
    columns = [torch.arange(start, start + N - min(each)).clamp(max=N - 1) for start in each]
    keys, values = (torch.stack([side[row, :, index] for row, index in enumerate(columns)]) for side in (key, value))
    lengths = torch.tensor([N - start for start in each])
    for row, length in enumerate(lengths.tolist()):
        keys[row, :, length:] = values[row, :, length:] = torch.nan
    uniform = isinstance(starts, int)
    start = starts if uniform else torch.tensor(each)
    part = Held(tuple(range(G)), keys, values, start, N - L - start, None if uniform else lengths)
    options: dict[str, Any] = {"mask": mask, "bias": bias, "window": window}
    options["alibi_slopes"] = torch.rand(B, H, dtype=torch.float64)
    expected = reference_attention(query, key, value, causal=True, **options)
    assert_same(attend(query, [part], **options), expected.output)
    assert_same(attend_weights(query, [part], length=N, **options), expected.weights)


def test_gradients_reach_what_is_not_in_the_cache() -> None:
    query, key, value = tensors()
    held = parts_of(key, value, [(1, 4), (3,), (0, 2)])
    bias, sinks = torch.randn(H, L, N, dtype=torch.float64), torch.randn(H, dtype=torch.float64)
    assert_same_function(
        lambda query, bias, sinks: [attend(query, held, bias=bias, sinks=sinks)],
        lambda query, bias, sinks: [reference_attention(query, key, value, causal=True, bias=bias, sinks=sinks).output],
        {"query": query, "bias": bias, "sinks": sinks},
        atol=10 * EXACT,  # sums over 2 * 15 * 3 * 13 products
    )


def test_a_part_with_all_heads_is_not_copied() -> None:
    query, key, value = tensors()
    part = parts_of(key, value, [(0, 1, 2, 3, 4)])
    with Operations() as whole:
        attention_weights(query, key, causal=True, offset=N - L)
    with Operations() as ran:
        attend_weights(query, part, length=N)
    assert sorted(ran.names) == sorted([*whole.names, "aten::constant_pad_nd"])


def test_a_backend_can_be_named() -> None:
    query, key, value = tensors()
    held = parts_of(key, value, [(0, 1), (2, 3, 4)])
    with pytest.raises(ValueError, match=r"^backend: expected None or one of .*, got 'none such'$"):
        attend(query, held, backend="none such")


@pytest.mark.parametrize(
    ("split", "heads", "message"),
    [
        ([(0, 1), (3, 4)], H, "held: expected parts that hold KV heads 0 to G - 1, each once, got heads [0, 1, 3, 4]"),
        ([(0, 1), (1, 2)], H, "held: expected parts that hold KV heads 0 to G - 1, each once, got heads [0, 1, 1, 2]"),
        ([], H, "held: expected parts that hold KV heads 0 to G - 1, each once, got heads []"),
        ([(0, 1)], 15, "query: expected a head count that 2 KV heads divide, got 15; query head h reads KV head"),
    ],
)
def test_heads_that_do_not_fit_are_refused(split: list[tuple[int, ...]], heads: int, message: str) -> None:
    query, key, value = tensors()
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        attend(query[:, :heads], parts_of(key, value, split))
    with pytest.raises(
        ValueError, match=r"^query: expected 4 axes \[batch, heads, length, head_dim\], got \[15, 3, 7\]$"
    ):
        attend(query[0], parts_of(key, value, [(0, 1, 2, 3, 4)]))


@pytest.mark.parametrize("name", ["mask", "bias"])
@pytest.mark.parametrize("columns", [N - 1, N + 1])
def test_masks_must_span_all_positions(name: str, columns: int) -> None:
    query, key, value = tensors()
    given: dict[str, Any] = {name: torch.ones(columns, dtype=torch.bool if name == "mask" else torch.float64)}
    message = re.escape(f"{name}: expected a shape that broadcasts to [batch, heads, queries, keys] = [2, 15, 3, 11]")
    # A part that begins later has 7 keys, and yet the mask has 11 columns.
    for start in (0, 4):
        with pytest.raises(ValueError, match=f"^{message}"):
            attend(query, parts_of(key, value, [(0, 1, 2, 3, 4)], start), **given)


def test_the_map_must_span_all_positions() -> None:
    query, key, value = tensors()
    message = "attend_weights: expected length 11, the end of what is held, got 12; pass the length of the cache"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        attend_weights(query, parts_of(key, value, [(0, 1, 2, 3, 4)]), length=12)


def test_a_part_alone_or_a_cache_is_refused() -> None:
    cache = DenseCache(1, 2, 5, 7)
    held = cache.append(torch.zeros(1, 2, 3, 7), torch.zeros(1, 2, 3, 7))
    for given, name in ((held[0], "Held"), (cache, "DenseCache")):
        message = f"held: expected the parts that append or held() of a cache gave, got {name}; one part alone goes in"
        with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
            attend(torch.zeros(1, 4, 3, 7), given)
