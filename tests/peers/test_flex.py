"""FlexAttention as a judge: scores changed and pairs hidden by functions of (batch, head, query, key).

On a CPU it has no gradient, but in float64 it gives outputs and log-sum-exps (natural logarithm, ``-inf`` for a row
that sees nothing), so those are compared up to rounding. What it is told here is written down pair by pair, without any
of headwise's conventions.

Axes: ``B`` batch, ``L`` query length, ``S`` key length, ``H`` query heads, ``G`` KV heads, ``D`` head dim.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as flex_attention_module
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from headwise.attention import AttentionOutput, attention, attention_with_lse
from tests.helpers.compare import assert_same

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, WIDTH = 2, 6, 2, 7, 11, 13
AHEAD = KEYS - QUERIES  # the last query stands at the last key


@pytest.fixture(autouse=True)
def _call_it_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without it every call is traced before it runs the same operations, which takes half a second each.
    monkeypatch.setattr(flex_attention_module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, raising=False)


ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def random_tensors(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Query ``[B, H, L, D]``, key and value ``[B, G, S, D]``."""
    shapes = ((heads, queries), (kv_heads, keys), (kv_heads, keys))
    query, key, value = (torch.randn(batch, *shape, WIDTH, dtype=dtype) for shape in shapes)
    return query, key, value


def flex(
    tensors: Sequence[Tensor], score_mod: ScoreMod | None = None, mask_mod: MaskMod | None = None
) -> AttentionOutput:
    """What FlexAttention gives."""
    query, key, value = tensors
    block_mask = None
    if mask_mod is not None:
        block_mask = create_block_mask(mask_mod, *query.shape[:3], key.shape[2], device="cpu")
    request = AuxRequest(lse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it isn't compiled here
        output, extra = flex_attention(
            query, key, value, score_mod=score_mod, block_mask=block_mask, enable_gqa=True, return_aux=request
        )
    return AttentionOutput(output, extra.lse)


def assert_judged(tensors: Sequence[Tensor], judged: AttentionOutput, **options: Any) -> None:
    """headwise gives what FlexAttention gave, by whatever backend it chooses and by the one that does everything."""
    for backend in (None, "math"):
        for actual, expected in zip(attention_with_lse(*tensors, **options, backend=backend), judged, strict=True):
            assert_same(actual, expected)


def cap(score: Tensor, *_: Tensor) -> Tensor:
    return 2 * torch.tanh(score / 2)


SLOPES = torch.linspace(0.1, 1.5, HEADS, dtype=torch.float64)
RELATIVE = torch.linspace(-3, 3, HEADS * 2 * KEYS, dtype=torch.float64).view(HEADS, -1).cos()
LEFTS = torch.tensor([0, 1, 2, 3, 5, 11])
HELD = torch.tensor([11, 8])
STARTS = torch.tensor([3, 1])


def relative_bias() -> Tensor:
    """``RELATIVE`` at the distance of each pair, ``[H, L, S]``."""
    distance = torch.arange(QUERIES)[:, None] + AHEAD - torch.arange(KEYS)
    return RELATIVE[:, distance + KEYS]


# What changes scores, what hides pairs, and the same in headwise's words.
MODS: dict[str, tuple[ScoreMod | None, MaskMod | None, dict[str, Any]]] = {
    "nothing": (None, None, {}),
    "soft-cap": (cap, None, {"softcap": 2.0}),
    "ALiBi": (
        lambda score, b, h, i, j: score - SLOPES[h] * (i + AHEAD - j).abs(),
        None,
        {"alibi_slopes": SLOPES},
    ),
    "relative bias behind a soft-cap": (
        lambda score, b, h, i, j: cap(score) + RELATIVE[h, i + AHEAD - j + KEYS],
        None,
        {"softcap": 2.0, "bias": relative_bias()},
    ),
    "causal": (None, lambda b, h, i, j: j <= i + AHEAD, {"causal": True}),
    "causal from the upper left": (None, lambda b, h, i, j: j <= i, {"causal": True, "offset": 0}),
    "rows that see nothing": (None, lambda b, h, i, j: j <= i - 3, {"causal": True, "offset": -3}),
    "sliding window": (
        None,
        lambda b, h, i, j: (j <= i + AHEAD) & (j >= i + AHEAD - 2),
        {"causal": True, "window": (2, None)},
    ),
    "window to both sides": (
        None,
        lambda b, h, i, j: (j <= i + AHEAD + 3) & (j >= i + AHEAD - 1),
        {"window": (1, 3)},
    ),
    "windows per head": (
        None,
        lambda b, h, i, j: (j <= i + AHEAD) & (j >= i + AHEAD - LEFTS[h]),
        {"causal": True, "window": [(left, None) for left in LEFTS.tolist()]},
    ),
    "prefix": (
        None,
        lambda b, h, i, j: (j <= i + AHEAD) | (j < 6),
        {"mask": (torch.arange(KEYS) <= torch.arange(QUERIES)[:, None] + AHEAD) | (torch.arange(KEYS) < 6)},
    ),
    "sequences of different lengths": (
        None,
        lambda b, h, i, j: (j <= i + HELD[b] - QUERIES) & (j < HELD[b]),
        {"causal": True, "key_lengths": HELD},
    ),
    "offsets per sequence": (None, lambda b, h, i, j: j <= i + STARTS[b], {"causal": True, "offset": STARTS}),
    "all together": (
        lambda score, b, h, i, j: (
            cap(score) + RELATIVE[h, i + AHEAD - j + KEYS] - SLOPES[h] * (i + HELD[b] - QUERIES - j).abs()
        ),
        lambda b, h, i, j: (j <= i + HELD[b] - QUERIES) & (j >= i + HELD[b] - QUERIES - LEFTS[h]) & ((i + j) % 3 > 0),
        {
            "softcap": 2.0,
            "bias": relative_bias(),
            "alibi_slopes": SLOPES,
            "causal": True,
            "key_lengths": HELD,
            "window": [(left, None) for left in LEFTS.tolist()],
            "mask": (torch.arange(QUERIES)[:, None] + torch.arange(KEYS)) % 3 > 0,
        },
    ),
}


@pytest.mark.parametrize("name", MODS)
def test_scores_and_masks(name: str) -> None:
    score_mod, mask_mod, options = MODS[name]
    tensors = random_tensors(BATCH, HEADS, KV_HEADS, QUERIES, KEYS)
    assert_judged(tensors, flex(tensors, score_mod, mask_mod), **options)


@pytest.mark.parametrize(("heads", "kv_heads"), [(65, 5), (16, 4), (27, 1), (5, 1), (28, 4), (12, 2), (9, 3)])
def test_head_layouts(heads: int, kv_heads: int) -> None:
    tensors = random_tensors(BATCH, heads, kv_heads, QUERIES, KEYS)
    judged = flex(tensors, cap, lambda b, h, i, j: (j <= i + AHEAD) & (j >= i + AHEAD - 2))
    assert_judged(tensors, judged, softcap=2.0, causal=True, window=(2, None))


def test_sinks() -> None:
    """FlexAttention has none, but a logit more in the denominator only scales an output and raises its LSE."""
    tensors, sinks = random_tensors(BATCH, HEADS, KV_HEADS, QUERIES, KEYS), torch.randn(HEADS, dtype=torch.float64)
    output, lse = flex(tensors, cap, lambda b, h, i, j: j <= i + AHEAD)
    kept = torch.sigmoid(lse - sinks[:, None])
    judged = AttentionOutput(output * kept[..., None], torch.logaddexp(lse, sinks[:, None]))
    assert_judged(tensors, judged, softcap=2.0, causal=True, sinks=sinks)


class Documents:
    """Where the documents of a packed row lie, for functions of pairs.

    Attributes:
        bounds: running totals of the lengths.
        of: which document each token belongs to.
        place: how far from the start of its document it stands.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.bounds = [0, *torch.tensor(lengths).cumsum(0).tolist()]
        self.of = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        self.place = torch.cat([torch.arange(end - start) for start, end in pairwise(self.bounds)])


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (28, 4), (5, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_packed_documents(causal: bool, heads: int, kv_heads: int) -> None:
    documents, slopes = Documents([5, 0, 3, 11, 1]), torch.linspace(0.1, 1.5, heads, dtype=torch.float64)
    tensors = random_tensors(1, heads, kv_heads, 20, 20)

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        near = (j >= i - 4) & (j <= (i if causal else i + 2))
        return (documents.of[i] == documents.of[j]) & near

    judged = flex(tensors, lambda score, b, h, i, j: cap(score) - slopes[h] * (i - j).abs(), visible)
    options = {"causal": causal, "window": (4, 2), "softcap": 2.0, "alibi_slopes": slopes}
    assert_judged(tensors, judged, cu_seqlens=documents.bounds, **options)
    as_tensor = torch.tensor(documents.bounds, dtype=torch.int32)
    assert_judged(tensors, judged, cu_seqlens=as_tensor, **options)


def test_packed_documents_with_more_keys_than_queries() -> None:
    """The last query of each document stands at its last key; a document may have queries only, or keys only."""
    asked, read = [2, 3, 0, 4, 1], [5, 3, 2, 0, 7]
    queries, keys = Documents(asked), Documents(read)
    tensors = random_tensors(1, HEADS, KV_HEADS, sum(asked), sum(read))
    ahead = torch.tensor(read) - torch.tensor(asked)

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        behind = queries.place[i] + ahead[queries.of[i]] - keys.place[j]
        return (queries.of[i] == keys.of[j]) & (behind >= 0) & (behind <= 3)

    judged = flex(tensors, None, visible)
    assert judged.lse.isinf().any()
    assert_judged(tensors, judged, causal=True, window=(3, None), cu_seqlens=(queries.bounds, keys.bounds))


@pytest.mark.slow
def test_errors_are_at_most_twice_those_of_the_compiled_kernel() -> None:
    """Compiled, it is a fused kernel over blocks of 128; the lengths are no multiples of these. It gives no LSE."""
    lengths = torch.tensor([300, 211])
    query, key, value = random_tensors(2, 6, 2, 300, 300, torch.float32)

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (j >= i - 40) & (j < lengths[b])

    blocks = create_block_mask(visible, 2, 6, 300, 300, device="cpu")
    compiled = torch.compile(flex_attention)
    theirs = compiled(query, key, value, score_mod=cap, block_mask=blocks, enable_gqa=True)
    options = {"softcap": 2.0, "causal": True, "window": (40, None), "offset": 0, "key_lengths": lengths}
    ours = attention(query, key, value, **options)
    exact = attention(query.double(), key.double(), value.double(), **options)
    our_error, their_error = (float((result - exact).square().mean().sqrt()) for result in (ours, theirs))
    assert 0 < our_error <= 2 * their_error, f"headwise errs by {our_error:.3g}, FlexAttention by {their_error:.3g}"
