"""What attention over segments refuses before it touches memory, and the texts in which it does."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from headwise.native_caches import Memory, Segment, decode_segments
from tests.native.decoding import built

pytestmark = built

B, H, G, L, S, D, DV, BLOCK = 2, 6, 3, 1, 7, 5, 11, 4


def plain(slots: int = S, **tensors: Any) -> Memory:
    return Memory(**({"key": torch.randn(B, G, slots, D), "value": torch.randn(B, G, slots, DV)} | tensors))


def pool(blocks: int = 5, **tensors: Any) -> Memory:
    return Memory(**({"key": torch.randn(blocks, G, BLOCK, D), "value": torch.randn(blocks, G, BLOCK, DV)} | tensors))


def codes(bits: int = 8, **changed: Any) -> Memory:
    dtype, widths = (torch.int8, (D, DV)) if bits == 8 else (torch.uint8, (3, 6))
    key, value = (torch.ones(B, G, S, width, dtype=dtype) for width in widths)
    given = {"key": key, "value": value, "bits": bits}
    given |= {name: torch.ones(B, G, S, 1) for name in ("key_scales", "value_scales")}
    return Memory(**(given | changed))


def segment(memory: Memory, first: Any = (0, 0), count: Any = (S, S), slot: Any = (0, 0), table: Any = None) -> Segment:
    return Segment(memory, first, count, slot, table)


def paged(*rows: list[int], **changed: Any) -> Segment:
    return segment(pool(), table=torch.tensor(rows), **changed)


def attend(*segments: Segment, **changed: Any) -> torch.Tensor:
    output = torch.zeros(B, H, L, DV)
    options: dict[str, Any] = {"kv_heads": G, "keys": S, "offsets": [S - 1] * B, "scale": 1.0}
    try:
        decode_segments(torch.randn(B, H, L, D), segments, output, **(options | changed))
    except Exception:
        assert not output.any(), "output was written before the call was refused"
        raise
    return output


def test_the_calls_are_right_without_a_change() -> None:
    for one in (segment(plain()), paged([0, 4], [3, 2]), segment(codes()), segment(codes(4))):
        assert attend(one).all()


SPLIT = [segment(plain(), count=(3, 4)), segment(plain(), first=(3, 3), count=(4, 4))]
MANY = [segment(plain(), first=(at % S,) * 2, count=(0, 0)) for at in range(17)]
REFUSED: dict[str, tuple[list[Segment], str]] = {
    "a block beyond the pool": (
        [paged([0, 5], [3, 2])],
        "segment 0 block table: expected blocks from 0 to 4, got 5 for block 1 of sequence 0",
    ),
    "a block before the pool": (
        [paged([0, 4], [-1, 2])],
        "segment 0 block table: expected blocks from 0 to 4, got -1 for block 0 of sequence 1",
    ),
    "a table that is too short": (
        [paged([0], [1])],
        "segment 0 block table: expected slots from 0 to 3, got 7 from 0",
    ),
    "a table for other sequences": (
        [paged([0, 1])],
        "segment 0 block table: expected [B, blocks] with B = 2, got [1, 2]",
    ),
    "a table of fractions": (
        [segment(pool(), table=torch.zeros(B, 2))],
        "segment 0 block table: expected int32 or int64, got float32",
    ),
    "slots beyond the memory": ([segment(plain(), slot=(0, 1))], "segment 0: expected slots from 0 to 6, got 7 from 1"),
    "slots before the memory": (
        [segment(plain(), slot=(0, -1))],
        "segment 0: expected slots from 0 to 6, got 7 from -1",
    ),
    "a slot far away": (
        [segment(plain(), slot=(2**63 - 1, 0))],
        f"segment 0: expected slots from 0 to 6, got 7 from {2**63 - 1}",
    ),
    "positions beyond the keys": (
        [segment(plain(), first=(1, 0))],
        "segment 0: expected positions from 0 to 7, got 7 from 1",
    ),
    "positions that overflow": (
        [segment(plain(), first=(2**63 - 1, 0))],
        f"segment 0: expected positions from 0 to 7, got 7 from {2**63 - 1}",
    ),
    "a negative count": ([segment(plain(), count=(-1, 7))], "segment 0: expected positions from 0 to 7, got -1 from 0"),
    "positions that are there twice": (SPLIT, "segment 1: expected positions from 4 to 7, got 4 from 3"),
    "too few numbers": ([segment(plain(), first=(0,))], "segment 0 first: expected B = 2 numbers, got 1"),
    "too many segments": (MANY, "segments: expected at most 16, got 17"),
    "other bits": ([segment(codes(bits=5))], "segment 0: expected codes of 8 or 4 bits, or 0 for plain numbers, got 5"),
    "codes without scales": (
        [segment(codes(key_scales=None))],
        "segment 0 key: expected scales for its codes, got none",
    ),
    "numbers with scales": (
        [segment(plain(value_scales=torch.ones(B, G, S, 1)))],
        "segment 0 value: expected no scales for plain numbers, got some",
    ),
    "scales of another shape": (
        [segment(codes(key_scales=torch.ones(B, G, S + 1, 1)))],
        "segment 0 key scales: expected a scale for each row = [2, 3, 7, 1], got [2, 3, 8, 1]",
    ),
    "scales in halves": (
        [segment(codes(value_scales=torch.ones(B, G, S, 1).half()))],
        "segment 0 value scales: expected float32, got float16",
    ),
    "codes of another kind": (
        [segment(codes(key=torch.ones(B, G, S, D)))],
        "segment 0 key: expected int8, got float32",
    ),
    "numbers of another dtype": (
        [segment(plain(key=torch.ones(B, G, S, D).half()))],
        "segment 0 key: expected float32, got float16",
    ),
    "too few bytes": (
        [segment(codes(4, key=torch.ones(B, G, S, 2, dtype=torch.uint8)))],
        "segment 0 key: expected rows of the call's width = [2, 3, 7, 3], got [2, 3, 7, 2]",
    ),
    "other heads": (
        [segment(plain(key=torch.ones(B, 2, S, D)))],
        "segment 0 key: expected [B, G, ...] = [2, 3], got [2, 2, 7, 5]",
    ),
    "other sequences": (
        [segment(plain(key=torch.ones(1, G, S, D)))],
        "segment 0 key: expected [B, G, ...] = [2, 3], got [1, 3, 7, 5]",
    ),
    "values in fewer slots": (
        [segment(plain(value=torch.ones(B, G, S - 1, DV)))],
        "segment 0 value: expected as many sequences or blocks, heads and slots as the key [2, 3, 7, 5], got "
        "[2, 3, 6, 11]",
    ),
    "three axes": (
        [segment(plain(key=torch.ones(B, S, D)))],
        "segment 0 key: expected [B or blocks, G, slots, width], got [2, 7, 5]",
    ),
    "a last axis with gaps": (
        [segment(plain(key=torch.ones(B, G, S, 2 * D)[..., ::2]))],
        "segment 0 key: expected a last axis with stride 1, got strides [210, 70, 10, 2]; call .contiguous() on it",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(case: str) -> None:
    segments, message = REFUSED[case]
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        attend(*segments)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kv_heads": 4}, "key: expected a number of KV heads that divides the 6 query heads, got 4"),
        ({"keys": -1}, "key: expected sizes of 0 or more, got [2, 3, -1, 5]"),
        ({"offsets": [0]}, "offsets: expected B = 2 numbers, got 1"),
        (
            {"mask": torch.ones(S + 1) > 0},
            "mask: expected a shape that broadcasts to [B, H, L, S] = [2, 6, 1, 7], got [8]",
        ),
    ],
)
def test_what_holds_for_every_call_holds_here(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        attend(segment(plain()), **changed)


def test_a_block_that_is_not_needed_may_be_anything() -> None:
    assert attend(paged([0, 4, 99], [3, 2, -5])).all()
    output = attend(paged([99, 4], [3, 2], count=(0, S)))
    assert not output[0].any()
    assert output[1].all()


def test_memory_is_described_again_where_it_has_moved() -> None:
    """A copy of a cache has copies of its tensors, and must not read those of the original."""
    import copy

    memory = plain()
    before = memory.parts()
    assert memory.parts() is before
    copied = copy.deepcopy(memory)
    assert [part[0] for part in copied.parts()[1:3]] == [tensor.data_ptr() for tensor in copied.tensors[:2]]
    assert copied.parts()[1][0] != before[1][0]
