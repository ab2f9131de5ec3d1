"""Blocks and codes read where they lie: the same as over whole tensors, for exactly the calls that the kernels take."""

from __future__ import annotations

import copy
import gc
import pickle
import re
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from headwise.attention import compiled
from headwise.attention.reference import reference_attention
from headwise.cache import BlockPool, CacheFullError, DenseCache, Held, PagedCache, QuantizedCache, attend, quantization
from headwise.cache.held import Stored
from tests.contract.kinds import poison_blocks, poison_codes

pytestmark = pytest.mark.skipif(compiled.INSTRUCTION_SET is None, reason="the native part is not built")

B, G, R, D, DV = 2, 3, 2, 7, 5
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KINDS: dict[str, Callable[[torch.dtype], Any]] = {
    "paged": lambda dtype: PagedCache(BlockPool(60, 3, G, D, DV, dtype=dtype), B),
    "int8": lambda dtype: QuantizedCache(B, G, 40, D, DV, bits=8, residual=3, dtype=dtype),
    "int4": lambda dtype: QuantizedCache(B, G, 40, D, DV, bits=4, residual=4, dtype=dtype),
    "int8, nothing in full": lambda dtype: QuantizedCache(B, G, 40, D, DV, bits=8, residual=0, dtype=dtype),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def made_whole(monkeypatch: pytest.MonkeyPatch) -> list[Stored]:
    """Everything that was made whole."""
    made: list[Stored] = []
    whole = Stored.whole
    monkeypatch.setattr(Stored, "whole", lambda stored: made.append(stored) or whole(stored))
    return made


def tokens(count: int, dtype: torch.dtype, batch: int = B) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, G, count, D).to(dtype), torch.randn(batch, G, count, DV).to(dtype)


def queries(count: int, dtype: torch.dtype, batch: int = B) -> Tensor:
    return torch.randn(batch, G * R, count, D).to(dtype)


def poison(cache: Any) -> None:
    (poison_blocks if isinstance(cache, PagedCache) else poison_codes)(cache, torch.nan)


def assert_near_whole(output: Tensor, query: Tensor, part: Held, counts: list[int], **options: Any) -> None:
    """As near to float64 over the whole tensors as the math path over them is, within a factor of two.

    In half types the whole tensors are rounded and codes are not, which counts as rounding, too.
    """
    keys, values = part.keys, part.values
    for row, count in enumerate(counts):
        length = keys.shape[2] if part.key_lengths is None else int(part.key_lengths[row])
        offset = part.offset if isinstance(part.offset, int) else int(part.offset[row])
        own = query[row : row + 1, :, :count].double()
        held = [tensor[row : row + 1, :, :length].double() for tensor in (keys, values)]
        cut = {name: tensor[row : row + 1, :, :count, :length] for name, tensor in options.items()}
        exact = reference_attention(own, *held, causal=True, offset=offset, **cut)
        epsilon = torch.finfo(query.dtype).eps
        if not count or not length:
            continue
        # Keys and values, each rounded by half a unit, and the output; a score is a sum of D products.
        largest = float(held[1].abs().max())
        scores = float(own.abs().amax()) * float(held[0].abs().amax()) * D**0.5
        allowed = 2 * largest * (2 * epsilon + (epsilon if query.dtype != torch.float32 else 2 * epsilon) * scores)
        assert float((output[row : row + 1, :, :count].double() - exact.output).abs().max()) <= allowed


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), name=st.sampled_from(sorted(KINDS)), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 999))
def test_any_history_reads_as_it_does_whole(data: st.DataObject, name: str, dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    cache = KINDS[name](dtype)
    for _ in range(data.draw(st.integers(1, 9))):
        poison(cache)
        batch = cache.batch_size
        step = data.draw(st.sampled_from(["append", "append", "append", "rollback", "reorder", "select", "snapshot"]))
        if step == "rollback":
            cache.rollback([data.draw(st.integers(0, int(length))) for length in cache.lengths])
        elif step == "reorder":
            cache.reorder([data.draw(st.integers(0, batch - 1)) for _ in range(batch)])
        elif step == "select":
            cache.select(data.draw(st.lists(st.integers(0, batch - 1), min_size=1, max_size=3)))
        elif step == "snapshot":
            snapshot = cache.snapshot()
            cache.append(*tokens(1, dtype, batch))
            cache.restore(snapshot)
        else:
            count = data.draw(st.sampled_from([1, 1, 1, 2, 5]))
            lengths = [data.draw(st.integers(0, count)) for _ in range(batch)] if data.draw(st.booleans()) else None
            query = queries(count, dtype, batch)
            try:
                (part,) = cache.append(*tokens(count, dtype, batch), lengths)
            except CacheFullError:
                continue
            output = attend(query, [part])
            assert part._keys is None, "it was made whole"
            assert_near_whole(output, query, part, [count] * batch if lengths is None else lengths)
    poison(cache)
    (part,) = cache.held()
    query = queries(1, dtype, cache.batch_size)
    assert_near_whole(attend(query, [part]), query, part, [1] * cache.batch_size)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_native_quantizing_leaves_the_codes_of_pytorch(
    bits: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = [(tokens(count, dtype), lengths) for count, lengths in ((9, None), (1, [1, 0]), (4, [2, 4]), (1, None))]
    history[1][0][0][0, 1, 0, 2] = torch.inf  # a key without a scale
    caches = []
    for native in (quantization._NATIVE, ()):
        monkeypatch.setattr(quantization, "_NATIVE", native)
        cache = QuantizedCache(B, G, 29, D, DV, bits=bits, residual=2, dtype=dtype)
        for given_tokens, lengths in history:
            cache.append(*given_tokens, lengths)
        caches.append(cache)
    assert caches[0]._settled == caches[1]._settled == (11, 12)
    for ours, expected in zip(caches[0]._codes.tensors, caches[1]._codes.tensors, strict=True):
        for row, count in enumerate((11, 12)):
            one, other = (tensor[row, :, :count].nan_to_num(nan=-1) for tensor in (ours, expected))
            assert torch.equal(one, other)


def test_options_are_those_of_attention(kind: str, made_whole: list[Stored]) -> None:
    cache, H, length = KINDS[kind](torch.float32), G * R, 11
    cache.append(*tokens(length - 2, torch.float32))
    query = queries(2, torch.float32)
    (part,) = cache.append(*tokens(2, torch.float32))
    mask = torch.rand(B, H, 2, length) < 0.7
    for options in (
        {"mask": mask},
        {"bias": torch.randn(H, 2, length)},
        {"window": [(head, 0) for head in range(H)], "sinks": torch.randn(H)},
        {"alibi_slopes": torch.rand(B, H), "softcap": 2.0},
        {"scale": 0.3, "causal": False},
    ):
        assert not made_whole
        output = attend(query, [part], **options)  # type: ignore[arg-type]
        assert not made_whole
        whole = Held(part.kv_heads, *part.stored.whole(), part.start, part.offset, None)  # type: ignore[union-attr]
        made_whole.clear()
        expected = attend(query.double(), [whole._replace(keys=whole.keys.double(), values=whole.values.double())],
                          **{name: one.double() if isinstance(one, Tensor) and one.is_floating_point() else one
                             for name, one in options.items()})  # type: ignore[arg-type]  # fmt: skip
        plain = attend(query, [whole], backend="math", **options)  # type: ignore[arg-type]
        own, other = (float((one.double() - expected).abs().max()) for one in (output, plain))
        assert own <= 2 * max(other, torch.finfo(torch.float32).eps * float(expected.abs().max()))


def test_a_named_backend_gets_what_it_asks_for(kind: str, made_whole: list[Stored]) -> None:
    cache, query = KINDS[kind](torch.float32), queries(1, torch.float32)
    cache.append(*tokens(9, torch.float32))
    attend(query, cache.held(), backend="native")
    assert not made_whole
    for backend in ("math", "math"):
        attend(query, cache.held(), backend=backend)
        assert len(made_whole) == 1
        made_whole.clear()
    with pytest.raises(ValueError, match=r"^backend: expected None or one of .*, got 'none such'$"):
        attend(query, cache.held(), backend="none such")


def test_what_the_kernels_are_not_for_is_made_whole(kind: str, made_whole: list[Stored]) -> None:
    cache = KINDS[kind](torch.float32)
    cache.append(*tokens(9, torch.float32))
    many = queries(compiled.PREFILL_ROWS // R, torch.float32)
    wanted = queries(1, torch.float32).requires_grad_()
    for query in (many, wanted):
        attend(query, cache.held())
        assert len(made_whole) == 1
        made_whole.clear()
    with torch.no_grad():
        attend(wanted, cache.held())
    assert not made_whole
    exact = KINDS[kind](torch.float64)
    exact.append(*tokens(9, torch.float64))
    attend(queries(1, torch.float64), exact.held())
    assert len(made_whole) == 1


def test_what_does_not_fit_is_refused_as_ever(kind: str) -> None:
    cache = KINDS[kind](torch.float32)
    cache.append(*tokens(9, torch.float32))
    for query, options, error, message in (
        (queries(1, torch.float32)[..., 1:], {}, ValueError, "key: expected"),
        (
            queries(1, torch.bfloat16),
            {},
            TypeError,
            "key: expected dtype torch.bfloat16 as in query, got torch.float32",
        ),
        (queries(1, torch.float32), {"softcap": -1.0}, ValueError, "softcap: expected a positive number"),
        (queries(1, torch.float32), {"mask": torch.ones(8) > 0}, ValueError, "mask: expected a shape that broadcasts"),
    ):
        with pytest.raises(error, match=f"^{re.escape(message)}"):
            attend(query, cache.held(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", ["append", "rollback", "reorder", "select", "restore", "reset"])
def test_a_part_of_before_a_change_is_refused(kind: str, change: str) -> None:
    cache = KINDS[kind](torch.float32)
    cache.append(*tokens(9, torch.float32))
    snapshot, (part,), (looked_at,) = cache.snapshot(), cache.held(), cache.held()
    kept = looked_at.keys.clone()
    given: dict[str, Any] = {"append": tokens(1, torch.float32), "rollback": (1,), "restore": (snapshot,), "reset": ()}
    getattr(cache, change)(*given.get(change, ([1, 0],)))
    message = (
        "Held: expected a part that is read before its cache changes, got one of before; run attention over it or read "
        "its keys first, or take a new one from held()"
    )
    for look in (lambda: attend(queries(1, torch.float32), [part]), lambda: part.keys, lambda: part.values):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            look()
    assert torch.equal(looked_at.keys, kept)  # what was made is a copy


@pytest.mark.parametrize("change", ["append", "rollback", "reorder", "select", "restore", "reset"])
def test_a_part_whose_keys_were_read_stays_good(kind: str, change: str) -> None:
    """As the refusal above advises."""
    cache, query = KINDS[kind](torch.float32), queries(1, torch.float32)
    cache.append(*tokens(9, torch.float32))
    snapshot, (part,) = cache.snapshot(), cache.held()
    whole = Held(part.kv_heads, part.keys.clone(), part.values.clone(), part.start, part.offset, None)
    given: dict[str, Any] = {"append": tokens(1, torch.float32), "rollback": (1,), "restore": (snapshot,), "reset": ()}
    getattr(cache, change)(*given.get(change, ([1, 0],)))
    poison(cache)
    assert torch.equal(attend(query, [part]), attend(query, [whole]))


@pytest.mark.parametrize("change", ["append", "rollback"])
def test_what_changes_nothing_leaves_parts_to_be_read_in_place(
    kind: str, change: str, made_whole: list[Stored]
) -> None:
    cache, query = KINDS[kind](torch.float32), queries(1, torch.float32)
    cache.append(*tokens(9, torch.float32))
    (part,) = cache.held()
    getattr(cache, change)(*(tokens(0, torch.float32) if change == "append" else (0,)))
    assert torch.equal(attend(query, [part]), attend(query, cache.held()))
    assert not made_whole


def test_a_pickle_of_before_a_change_is_refused(kind: str) -> None:
    cache = KINDS[kind](torch.float32)
    cache.append(*tokens(9, torch.float32))
    (part,) = cache.held()
    cache.rollback(1)
    for again in (pickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(ValueError, match=r"^Held: expected a part that is read before its cache changes"):
            again(part)


def test_a_refused_append_changes_nothing() -> None:
    cache = KINDS["int8"](torch.float32)
    cache.append(*tokens(38, torch.float32))
    (part,) = cache.held()
    with pytest.raises(CacheFullError):
        cache.append(*tokens(5, torch.float32))
    assert part.keys.shape[2] == 38


def test_a_copy_reads_its_own_memory(kind: str) -> None:
    cache, query = KINDS[kind](torch.float32), queries(1, torch.float32)
    cache.append(*tokens(9, torch.float32))
    expected = attend(query, cache.held())
    copied = copy.deepcopy(cache)
    memory = cache.pool.planes if kind == "paged" else cache._codes
    for tensor in memory.tensors:
        tensor.fill_(3)
    del cache, memory
    gc.collect()
    assert torch.equal(attend(query, copied.held()), expected)


def test_held_is_the_tuple_that_it_was() -> None:
    cache = DenseCache(1, 2, 5, 7)
    (part,) = cache.append(torch.zeros(1, 2, 3, 7), torch.zeros(1, 2, 3, 7))
    kv_heads, keys, values, start, offset, key_lengths = part
    assert (kv_heads, start, offset, key_lengths, len(part), part.tokens) == ((0, 1), 0, 0, None, 6, 3)
    assert part[1] is keys is part.keys
    assert part[2:3] == (values,)
    assert part.stored is None
    assert part._replace(start=4).start == 4
    assert repr(part) == "<keys and values of KV heads [0, 1], 3 tokens>"
