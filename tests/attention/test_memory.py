"""Keys and values are never repeated: no operation makes anything as large as one of them with all query heads."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch

from headwise.attention import attention, attention_weights, attention_with_lse, blocks, streaming
from headwise.attention.gradients import gradients
from headwise.attention.problem import Problem
from headwise.nn import GroupedQueryAttention
from tests.attention.cases import make_case
from tests.helpers.operations import Operations

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, WIDTH = 2, 12, 2, 3, 97, 64
REPEATED_BYTES = BATCH * HEADS * KEYS * WIDTH * 8  # [B, H, S, D] in float64
COMPACT_BYTES = BATCH * KV_HEADS * KEYS * WIDTH * 8

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "per head": {"causal": True, "window": [(13, 0), None] * 6},
    "bias": {"bias": torch.zeros(HEADS, 1, KEYS, dtype=torch.float64)},
    "padding": {"key_lengths": [KEYS, 41], "causal": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("operation", ["sdpa", "math", "lse", "weights"])
def test_keys_and_values_are_never_repeated(options: dict[str, Any], operation: str) -> None:
    case = make_case(BATCH, HEADS, KV_HEADS, QUERIES, KEYS, WIDTH)
    leaves = [tensor.requires_grad_() for tensor in (case.query, case.key, case.value)]
    with Operations(*leaves) as ran:
        if operation == "weights":
            result = attention_weights(*leaves[:2], **options)
        elif operation == "lse":
            result = attention_with_lse(*leaves, **options).lse
        else:
            result = attention(*leaves, **options, backend=operation)
        result.sum().backward()
    # Compact copies (gradients, keys without unread memory) may be made; they are a sixth of the repeated ones.
    assert ran.largest_bytes <= COMPACT_BYTES, ran.largest_name
    assert COMPACT_BYTES * HEADS == REPEATED_BYTES * KV_HEADS


def test_decoding_makes_no_copy_of_the_cache_at_all() -> None:
    case = make_case(BATCH, HEADS, KV_HEADS, 1, KEYS, WIDTH)
    for backend in ("sdpa", "math"):
        with Operations(case.query, case.key, case.value) as ran:
            attention(case.query, case.key, case.value, causal=True, window=(70, 0), backend=backend)
        assert ran.largest_bytes <= BATCH * HEADS * max(KEYS, WIDTH) * 8, (backend, ran.largest_name)


def test_the_layer_does_not_repeat_either() -> None:
    layer = GroupedQueryAttention(24, HEADS, KV_HEADS, head_dim=WIDTH).double()
    context = torch.randn(BATCH, KEYS, 24, dtype=torch.float64)
    with Operations() as ran:
        layer(torch.randn(BATCH, QUERIES, 24, dtype=torch.float64), context).output.sum().backward()
    assert ran.largest_bytes < REPEATED_BYTES / 2, ran.largest_name


def test_the_watcher_would_notice() -> None:
    case = make_case(BATCH, HEADS, KV_HEADS, QUERIES, KEYS, WIDTH)
    with Operations(case.query, case.key, case.value) as ran:
        case.key.repeat_interleave(HEADS // KV_HEADS, 1)
    assert ran.largest_bytes == REPEATED_BYTES


def test_scores_of_long_inputs_stay_under_the_block_budget() -> None:
    case = make_case(1, 4, 2, 1024, 1024, 2)
    query, key, value = (tensor.float() for tensor in (case.query, case.key, case.value))
    whole_map = 4 * 1024 * 1024 * 4
    with Operations() as ran:
        attention(query, key, value, softcap=5.0)
    assert ran.largest_bytes <= whole_map  # 16 MiB: one block
    long_query = query.repeat(1, 1, 4, 1)
    with Operations() as ran:
        attention(long_query, key, value, softcap=5.0)
    assert ran.largest_bytes <= 32 * 2**20 < 4 * whole_map


def test_neither_direction_makes_more_than_a_block_whatever_is_asked() -> None:
    """Windows per head, soft-cap, bias, sinks, slopes and grouped heads together; the map would be 32 blocks."""
    length, block_bytes = 257, 65536
    case = make_case(1, 4, 2, length, length, 3)
    leaves = {
        "bias": torch.randn(4, 1, length, dtype=torch.float64),
        "sinks": torch.randn(4, dtype=torch.float64),
        "alibi_slopes": torch.rand(4, dtype=torch.float64),
    }
    options: dict[str, Any] = {"causal": True, "window": [(101, 0), None] * 2, "softcap": 3.0}
    assert 4 * length * length * 8 > 32 * block_bytes
    with patch.object(blocks, "DEFAULT_BLOCK_BYTES", block_bytes):
        problem = Problem.of(case.query, case.key, case.value, **leaves, **options)
        with Operations(case.query, case.key, case.value, *leaves.values()) as forward:
            output, lse = streaming.forward(problem)
        with Operations(case.query, case.key, case.value, output, lse, *leaves.values()) as backward:
            gradients(problem, lse, torch.ones_like(output), torch.ones_like(lse), [*leaves, "query", "key", "value"])
    for ran in (forward, backward):
        assert 0 < ran.largest_bytes <= block_bytes, ran.largest_name


def test_a_mask_with_rows_is_not_kept_block_by_block() -> None:
    """With windows per head, which keys are read by somebody is gathered block by block: only the union may stay."""
    batch, length, block_bytes = 2, 251, 65536
    case = make_case(batch, 4, 2, length, length, 3)
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    mask[:, 7] = False
    options: dict[str, Any] = {"mask": mask, "causal": True, "window": [(101, 0), None] * 2}
    with patch.object(blocks, "DEFAULT_BLOCK_BYTES", block_bytes):
        problem = Problem.of(case.query, case.key, case.value, **options)
        count = len(list(problem.blocks()))
        with Operations(case.query, case.key, case.value, mask) as ran:
            read = problem.unread_keys
            streaming.forward(problem)
    assert read is not None
    assert count * batch * 4 * length > block_bytes  # what keeping each block's share would take
    assert 0 < ran.largest_bytes <= block_bytes, ran.largest_name
