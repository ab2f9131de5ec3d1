"""The native decode kernel over blocks and codes: against the oracle in float64, and against plain memory."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise.attention import attention_with_lse
from headwise.attention.reference import reference_attention
from headwise.native_caches import Memory, Segment
from tests.attention.cases import Case, cases, make_case
from tests.native.decoding import ISAS, built, decode
from tests.native.guarded import guarded
from tests.native.segments import Piece, run, segmented
from tests.native.test_decode import ALLOWED_FACTOR, DTYPES, held_in

pytestmark = built

ROOT = Path(__file__).parents[2]

few = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
pieces_of_any_kind = st.builds(
    Piece, bits=st.sampled_from([0, 8, 4]), block=st.sampled_from([0, 0, 1, 3, 5]), gap=st.integers(0, 4)
)


def sizes_of(case: Case) -> tuple[int, int, int]:
    return case.key.shape[1], case.key.shape[2], case.value.shape[3]


def assert_near_oracle(
    result: tuple[Tensor, Tensor], query: Tensor, truth: tuple[Tensor, Tensor], options: Any
) -> None:
    """Errors are at most twice those of the math path over the same numbers rounded to the query's dtype, or of
    rounding the right result."""
    exact = reference_attention(query, *truth, **options)
    rounded = [tensor.to(query.dtype) for tensor in truth]
    plain = attention_with_lse(query, *rounded, **options, backend="math")
    for ours, theirs, right in zip(result, plain, exact[:2], strict=True):
        assert not ours.isnan().any()
        assert torch.equal(ours.isinf(), right.isinf())
        finite = ~right.isinf()
        if not finite.any():
            continue
        scores_size = float(exact.lse[~exact.lse.isinf()].abs().max()) if (~exact.lse.isinf()).any() else 0.0
        rounding = torch.finfo(ours.dtype).eps * float(right[finite].abs().max())
        rounding += torch.finfo(torch.float32).eps * max(1.0, scores_size)
        own, other = (float((one.double() - right)[finite].abs().max()) for one in (ours, theirs))
        assert own <= ALLOWED_FACTOR * max(other, rounding), f"error {own:.3g}, math path {other:.3g}"


def cut_anywhere(data: st.DataObject, case: Case, count: int) -> list[list[int]]:
    """Where each of some segments ends in every sequence; the last one with its keys."""
    batch, keys = case.key.shape[0], case.key.shape[2]
    lengths = case.options.get("key_lengths")
    lengths = [keys] * batch if lengths is None else [int(length) for length in lengths]
    rows = [sorted(data.draw(st.integers(0, length)) for _ in range(count - 1)) + [length] for length in lengths]
    return [list(ends) for ends in zip(*rows, strict=True)]


@few
@given(data=st.data(), case=cases(), dtype=st.sampled_from(DTYPES), isa=st.sampled_from(ISAS))
def test_every_option_over_segments_of_any_kind(data: st.DataObject, case: Case, dtype: torch.dtype, isa: str) -> None:
    case = held_in(case, dtype)
    pieces = data.draw(st.lists(pieces_of_any_kind, min_size=1, max_size=4))
    segments, *truth = segmented(case.key, case.value, cut_anywhere(data, case, len(pieces)), pieces)
    lengths = case.options.get("key_lengths")
    result = run(case.query, segments, sizes_of(case), isa=isa, **case.options)
    if lengths is not None:  # what lies behind is stored nowhere
        for tensor in truth:
            for row, length in enumerate(lengths):
                tensor[row, :, int(length) :] = torch.nan
    assert_near_oracle(result, case.query, tuple(truth), case.options)


@few
@given(
    group=st.integers(1, 71),
    width=st.integers(1, 256),
    value_width=st.integers(1, 256),
    keys=st.integers(1, 140),
    piece=pieces_of_any_kind,
    dtype=st.sampled_from(DTYPES),
    isa=st.sampled_from(ISAS),
)
def test_any_group_and_any_width(
    group: int, width: int, value_width: int, keys: int, piece: Piece, dtype: torch.dtype, isa: str
) -> None:
    case = held_in(make_case(1, group, 1, 1, keys, width, value_width), dtype)
    segments, *truth = segmented(case.key, case.value, [[keys]], [piece])
    assert_near_oracle(run(case.query, segments, sizes_of(case), isa=isa), case.query, tuple(truth), {})


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("heads", range(1, 10))
def test_every_block_of_rows_and_columns(isa: str, bits: int, heads: int) -> None:
    for width in (1, 3, 16, 67, 128, 230):
        case = held_in(make_case(1, heads, 1, 1, 83, width), torch.bfloat16)
        segments, *truth = segmented(case.key, case.value, [[83]], [Piece(bits)])
        assert_near_oracle(run(case.query, segments, sizes_of(case), isa=isa), case.query, tuple(truth), {})


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [1, 7, 16, 64, 2048])
@pytest.mark.parametrize("queries", [1, 2])
def test_blocks_give_the_bits_of_plain_memory(isa: str, dtype: torch.dtype, block: int, queries: int) -> None:
    """Whatever the windows hide; and the order of the blocks in the pool is nobody's business."""
    heads, keys = 2, 2311
    case = held_in(make_case(2, heads, heads, queries, keys, 19, 23), dtype)
    options: dict[str, Any] = {"window": [(None, 0), (1033, 0)], "key_lengths": [keys, 1201]}
    segments, *_ = segmented(case.key, case.value, [options["key_lengths"]], [Piece(block=block, gap=3)])
    plain = decode(case.query, case.key, case.value, isa=isa, **options)
    for ours, expected in zip(run(case.query, segments, sizes_of(case), isa=isa, **options), plain, strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", [8, 4])
def test_codes_in_blocks_give_the_bits_of_codes_in_a_row(isa: str, bits: int) -> None:
    case = held_in(make_case(2, 6, 2, 1, 311, 19, 23), torch.float32)
    results = []
    for block in (0, 5):
        segments, *_ = segmented(case.key, case.value, [[311, 120]], [Piece(bits, block)])
        results.append(run(case.query, segments, sizes_of(case), isa=isa, key_lengths=[311, 120]))
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_many_items_of_all_kinds_merge_to_one_softmax(isa: str, bits: int, dtype: torch.dtype) -> None:
    """As a quantized cache has them: codes, one token that is just leaving, and two runs of a ring."""
    case = held_in(make_case(3, 3, 1, 2, 2311, 5), dtype)
    ends = [[2240, 1000, 0], [2241, 1000, 1], [2300, 1020, 30], [2311, 1025, 41]]
    pieces = [Piece(bits), Piece(), Piece(gap=5), Piece()]
    segments, *truth = segmented(case.key, case.value, ends, pieces)
    options: dict[str, Any] = {"sinks": torch.tensor([3.0, -1.0, 0.5]), "key_lengths": ends[-1], "causal": True}
    result = run(case.query, segments, sizes_of(case), isa=isa, **options)
    assert_near_oracle(result, case.query, tuple(truth), options)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_a_token_without_a_scale_reaches_only_those_who_see_it(isa: str, bits: int, poison: float) -> None:
    case = held_in(make_case(1, 10, 1, 1, 97, 13, 37), torch.float32)
    mask = torch.rand(1, 10, 1, 97) < 0.6
    mask[:, ::2, :, 41], mask[:, 1::2, :, 41] = True, False
    results = []
    for number in (0.0, poison):
        case.value[:, :, 41] = number
        segments, *_ = segmented(case.key, case.value, [[97]], [Piece(bits)])
        results.append(run(case.query, segments, sizes_of(case), isa=isa, mask=mask))
    (clean, _), (output, lse) = results
    assert output[:, ::2].isnan().all()
    assert torch.equal(output[:, 1::2], clean[:, 1::2])
    assert lse.isfinite().all()
    case.key[:, :, 41] = poison
    segments, *_ = segmented(case.key, case.value, [[97]], [Piece(bits)])
    output, lse = run(case.query, segments, sizes_of(case), isa=isa, mask=mask)
    assert torch.equal(output[:, 1::2], clean[:, 1::2])
    assert lse[:, 1::2].isfinite().all()
    assert output[:, ::2].isnan().all()
    assert lse[:, ::2].isnan().all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", [0, 8, 4])
@pytest.mark.parametrize("group", [1, 5])
def test_the_same_bits_from_run_to_run_and_for_any_threads(isa: str, bits: int, group: int) -> None:
    case = held_in(make_case(2, 2 * group, 2, 1, 4219, 31), torch.bfloat16)
    segments, *_ = segmented(case.key, case.value, [[3000, 4000], [4219, 4001]], [Piece(bits, 16), Piece()])
    results = [
        run(case.query, segments, sizes_of(case), isa=isa, key_lengths=[4219, 4001], threads=threads)
        for threads in (1, 1, 2, 3)
    ]
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))


@pytest.mark.parametrize("isa", ISAS)
def test_sequences_may_share_memory(isa: str) -> None:
    """Strides of 0, and blocks that several sequences name."""
    case = held_in(make_case(3, 4, 2, 1, 29, 7), torch.float32)
    key, value = (tensor[:1].expand(3, -1, -1, -1) for tensor in (case.key, case.value))
    expected, _ = decode(case.query, key.contiguous(), value.contiguous(), isa=isa)
    (plain,), *_ = segmented(key[:1], value[:1], [[29]], [Piece()])
    memory = Memory(*(tensor.expand(3, -1, -1, -1) for tensor in plain.memory.tensors[:2]))
    shared = Segment(memory, (0,) * 3, (29,) * 3, (0,) * 3)
    assert torch.equal(run(case.query, [shared], sizes_of(case), isa=isa)[0], expected)
    (paged,), *_ = segmented(key[:1], value[:1], [[29]], [Piece(block=4)])
    shared = Segment(paged.memory, (0,) * 3, (29,) * 3, (0,) * 3, paged.table.expand(3, -1))
    assert torch.equal(run(case.query, [shared], sizes_of(case), isa=isa)[0], expected)


@pytest.mark.parametrize("isa", ISAS)
def test_nothing_stored_is_nothing_seen(isa: str) -> None:
    case = held_in(make_case(2, 4, 2, 1, 5, 7), torch.float32)
    nothing, *_ = segmented(case.key, case.value, [[0, 0]], [Piece(block=3)])
    for segments in ([], nothing):
        output, lse = run(case.query, segments, sizes_of(case), isa=isa)
        assert torch.equal(output, torch.zeros_like(output))
        assert torch.equal(lse, torch.full_like(lse, -torch.inf))


PROGRAM = """
from tests.native.test_decode_segments import beside_forbidden_pages

beside_forbidden_pages(READ_ON)
print("untouched")
"""


def beside_forbidden_pages(read_on: bool) -> None:
    """Codes and scales of every width right beside pages that end the program that touches them."""
    for isa, bits, side in ((isa, bits, side) for isa in ISAS for bits in (8, 4) for side in ("before", "after")):
        for width, value_width, keys in ((1, 3, 5), (7, 33, 67), (31, 17, 3), (65, 230, 16), (128, 64, 1)):
            case = held_in(make_case(1, 8, 1, 1, keys, width, value_width), torch.bfloat16)
            (one,), *_ = segmented(case.key, case.value, [[keys]], [Piece(bits)])
            tensors = [guarded(tensor[:, :, :keys].contiguous(), side) for tensor in one.memory.tensors]
            if read_on:
                ctypes.string_at(tensors[0].data_ptr() - 1, tensors[0].nbytes + 2)
            names = ("key", "value", "key_scales", "value_scales")
            memory = Memory(bits=bits, **dict(zip(names, tensors, strict=True)))
            segment = replace(one, memory=memory)
            for heads in (1, 3, 8):
                run(case.query[:, :heads], [segment], sizes_of(case), isa=isa)


@pytest.mark.skipif(sys.platform != "linux", reason="the pages are guarded in the way of Linux")
@pytest.mark.parametrize("read_on", [False, True])
def test_no_byte_beside_the_codes_is_touched(read_on: bool) -> None:
    """In a process of its own, which also shows that it would die."""
    program = PROGRAM.replace("READ_ON", str(read_on))
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode < 0, done.stdout) == ((True, "") if read_on else (False, "untouched\n")), done.stderr
