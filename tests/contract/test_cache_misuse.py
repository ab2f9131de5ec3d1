"""What every cache must withstand: other modes, other times and other copies than those that it was made for."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.cache import (
    BlockPool,
    DenseCache,
    Held,
    KeyValueCache,
    LatentCache,
    PagedCache,
    QuantizedCache,
    WindowCache,
    attend,
    attend_weights,
)
from tests.contract.kinds import KINDS, B, Kind, Model, assert_holds, assert_same_lengths

DTYPED: dict[str, Callable[[Any], Any]] = {
    "DenseCache": lambda dtype: DenseCache(2, 3, 5, 7, dtype=dtype),
    "WindowCache": lambda dtype: WindowCache(2, 3, 5, 7, dtype=dtype),
    "BlockPool": lambda dtype: BlockPool(2, 3, 5, 7, dtype=dtype),
    "QuantizedCache": lambda dtype: QuantizedCache(2, 3, 5, 7, dtype=dtype),
    "LatentCache": lambda dtype: LatentCache(2, 5, 7, 3, dtype=dtype),
}
AGAIN: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
}

MODES = {"outside": nullcontext, "in inference mode": torch.inference_mode}


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


def filled(kind: Kind, count: int = 5) -> tuple[KeyValueCache, tuple[Held, ...]]:
    cache = kind.build(B)
    return cache, cache.append(*kind.tokens(count))


# --- how many queries --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 4])
def test_queries_are_those_of_the_append(kind: Kind, count: int) -> None:
    """Fewer would be taken for the first tokens of the append, where the last are meant as often as not."""
    cache, _ = filled(kind)
    held = cache.append(*kind.tokens(3), [3, 1])
    message = (
        f"query: expected 3 queries, one for each token of the append, got {count}; pass the queries of all of them, "
        "or append those tokens by themselves whose queries you need"
    )
    for run in (attend, lambda *given, **options: attend_weights(*given, length=8, **options)):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            run(kind.queries(count), held, window=kind.head_windows)
    assert attend(kind.queries(3), held, window=kind.head_windows).shape[2] == 3
    assert attend(kind.queries(count), cache.held(), window=kind.head_windows).shape[2] == count


# --- parts of another time ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["rollback", "rollback of each", "append", "append to none"])
def test_what_changes_nothing_leaves_parts_as_they_are(kind: Kind, change: str) -> None:
    cache, _ = filled(kind)
    part, query = cache.held(), kind.queries(1)
    expected = attend(query, cache.held(), window=kind.head_windows)
    if change.startswith("rollback"):
        cache.rollback(0 if change == "rollback" else [0, 0])
    else:
        cache.append(*kind.tokens(0 if change == "append" else 2), None if change == "append" else [0, 0])
    assert torch.equal(attend(query, part, window=kind.head_windows), expected)


@pytest.mark.parametrize("again", AGAIN.values(), ids=AGAIN)
@pytest.mark.parametrize("lengths", [None, [3, 1]])
def test_parts_can_be_copied_and_pickled(kind: Kind, again: Callable[[Any], Any], lengths: list[int] | None) -> None:
    cache, _ = filled(kind)
    held, query = cache.append(*kind.tokens(3), lengths), kind.queries(3)
    copies = tuple(again(part) for part in held)
    expected = attend(query, held, window=kind.head_windows)
    for part, copied in zip(held, copies, strict=True):
        assert (copied.kv_heads, copied.queries, copied.stored) == (part.kv_heads, 3, None)
        torch.testing.assert_close(tuple(copied)[1:], tuple(part)[1:], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(attend(query, copies, window=kind.head_windows), expected)
    if again is not copy.copy:  # which may be a view as the part itself is
        cache.reset()
        cache.append(*kind.tokens(7))
        assert torch.equal(attend(query, copies, window=kind.head_windows), expected)


@pytest.mark.parametrize("change", ["append", "rollback"])
def test_gradients_need_what_was_handed_out_as_it_was(kind: Kind, change: str) -> None:
    """As ``docs/caches.md`` says: of views they are refused after a change, and right where copies were made."""
    cache, query = kind.build(B), kind.queries(5).requires_grad_()
    tokens = kind.tokens(5)
    outputs = [attend(query, kind.build(B).append(*tokens), window=kind.head_windows)]
    outputs.append(attend(query, cache.append(*tokens), window=kind.head_windows))
    (expected,) = torch.autograd.grad(outputs[0].sum(), query)
    if change == "rollback" and kind.margin != 0:
        cache.rollback(1)
    cache.append(*kind.tokens(1))
    if kind.quantized is None and not isinstance(cache, PagedCache):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            outputs[1].sum().backward()
    else:
        assert torch.equal(torch.autograd.grad(outputs[1].sum(), query)[0], expected)


# --- graphs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["outside", "in inference mode"])
def test_an_append_and_its_attention_are_one_graph(kind: Kind, mode: str) -> None:
    """All but blocks, whose tables a graph can't follow."""
    torch.compiler.reset()
    caches = [kind.build(B) for _ in range(2)]
    if isinstance(caches[0], PagedCache):
        with pytest.raises(torch._dynamo.exc.Unsupported):
            torch.compile(caches[0].append, backend="aot_eager", fullgraph=True)(*kind.tokens(2))
        return

    def step(cache: Any, query: Tensor, *tokens: Tensor) -> Tensor:
        return attend(query, cache.append(*tokens), window=kind.head_windows)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for count in (5, 1):
        query, tokens = kind.queries(count), kind.tokens(count)
        with MODES[mode]():
            torch.testing.assert_close(compiled(caches[0], query, *tokens), step(caches[1], query, *tokens))


# --- copies of the cache -----------------------------------------------------------------------------------------


def test_a_shallow_copy_is_refused(kind: Kind) -> None:
    cache, _ = filled(kind)
    message = "expected copy.deepcopy, got copy.copy; two caches can't write the same memory"
    with pytest.raises(TypeError, match=f"^{type(cache).__name__}: {re.escape(message)}$"):
        copy.copy(cache)


# --- inference mode ----------------------------------------------------------------------------------------------


def drive(cache: Any, model: Model, mode: Callable[[], AbstractContextManager[Any]]) -> None:
    """Every change there is, in a mode, each held against the model."""
    kind = model.kind
    back = 0 if kind.margin == 0 else 1
    changes: Sequence[tuple[Callable[[], Any], Callable[[], Any]]] = [
        *[appending(cache, model, count, lengths) for count, lengths in ((3, None), (2, [1, 2]), (1, None))],
        (lambda: cache.reorder([1, 0]), lambda: model.select([1, 0])),
        (lambda: cache.rollback(back), lambda: model.rollback([back, back])),
        appending(cache, model, 1, None),
    ]
    for change, same in changes:
        with mode():
            change()
        same()
        assert_same_lengths(cache, model)
        assert_holds(kind, cache.held(), model, model.lengths)


def appending(
    cache: Any, model: Model, count: int, lengths: list[int] | None
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    tokens = model.kind.tokens(count)
    return lambda: cache.append(*tokens, lengths), lambda: (model.append(*tokens, lengths), model.age())


@pytest.mark.parametrize("made", MODES)
@pytest.mark.parametrize("then", MODES)
def test_it_may_be_made_and_used_in_different_modes(kind: Kind, made: str, then: str) -> None:
    with MODES[made]():
        cache = kind.build(B)
        cache.append(*(tokens := kind.tokens(2)))
    model = Model(kind)
    model.append(*tokens)
    model.age()
    drive(cache, model, MODES[then])


@pytest.mark.parametrize("way", ["select", "restore", "deepcopy", "pickle"])
@pytest.mark.parametrize("made", MODES)
@pytest.mark.parametrize("then", MODES)
def test_memory_that_is_made_later_may_be_used_in_another_mode(kind: Kind, way: str, made: str, then: str) -> None:
    cache, model = kind.build(3), Model(kind, 3)
    cache.append(*(tokens := kind.tokens(2, 3)))
    model.append(*tokens)
    model.age()
    with MODES[made]():
        model.select([2, 0])
        if way == "restore":
            cache.select([2, 0])
            snapshot = cache.snapshot()
            cache.select([0])
            cache.restore(snapshot)
        else:
            cache.select([2, 0])
            cache = cache if way == "select" else AGAIN[way](cache)
    drive(cache, model, MODES[then])


def test_gradients_reach_queries_over_a_cache_that_inference_mode_made(kind: Kind) -> None:
    with torch.inference_mode():
        cache, _ = filled(kind)
    query = kind.queries(5).requires_grad_()
    attend(query, cache.append(*kind.tokens(5)), window=kind.head_windows).sum().backward()
    assert query.grad is not None
    assert query.grad.isfinite().all()
    assert query.grad.any()


# --- what a cache is made of -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.bool, torch.complex64, "float32"], ids=str)
@pytest.mark.parametrize("name", DTYPED)
def test_only_numbers_that_attention_reads_are_kept(name: str, dtype: Any) -> None:
    message = (
        f"{name}: expected dtype to be one of torch.float16, torch.bfloat16, torch.float32, torch.float64, got "
        f"{dtype!r}; attention reads no other numbers"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        DTYPED[name](dtype)
    assert DTYPED[name](None) is not None


@pytest.mark.parametrize("kept", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", DTYPED)
def test_all_numbers_that_attention_reads_are_kept(name: str, kept: torch.dtype) -> None:
    made = DTYPED[name](kept)
    made = PagedCache(made, 1) if isinstance(made, BlockPool) else made
    widths = (7, 3) if name == "LatentCache" else (7, 7)
    given = [torch.zeros(made.batch_size, made.num_kv_heads, 1, width, dtype=kept) for width in widths]
    query = torch.zeros(made.batch_size, made.num_kv_heads, 1, made.head_dim, dtype=kept)
    assert attend(query, made.append(*given)).dtype == kept
