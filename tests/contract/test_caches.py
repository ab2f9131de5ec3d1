"""What every cache must do, whatever lies inside. A new cache joins by one entry in ``tests/contract/kinds.py``."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.cache import CacheFullError, Held, KeyValueCache, attend, attend_weights
from tests.contract.kinds import KINDS, POISONS, B, Kind, Model, assert_holds, assert_same_lengths
from tests.helpers.compare import assert_same


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture(params=[0, 16], ids=["all sequences at once", "one by one"])
def split(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways in which ``attend`` takes sequences of different lengths."""
    monkeypatch.setattr(importlib.import_module("headwise.cache.attend"), "SPLIT_QUERIES", request.param)


@pytest.fixture
def cache(kind: Kind) -> KeyValueCache:
    """An empty cache whose memory is NaN."""
    cache = kind.build(B)
    kind.poison(cache, torch.nan, ())
    return cache


@pytest.fixture
def model(kind: Kind) -> Model:
    return Model(kind)


def append(
    cache: KeyValueCache,
    model: Model,
    tokens: tuple[Tensor, Tensor],
    lengths: Sequence[int] | None = None,
    query: Tensor | None = None,
    **options: Any,
) -> tuple[Held, ...]:
    """Append to both, and hold what is handed out, attention over it, and what is held against the model."""
    before = model.lengths
    held = cache.append(*tokens, lengths)
    model.append(*tokens, lengths)
    assert_holds(model.kind, held, model, before)
    if query is not None:
        counts = [tokens[0].shape[2]] * len(before) if lengths is None else lengths
        assert_attends(model, query, held, before, counts, **options)
    model.age()
    assert_unchanged(cache, model)
    return held


def assert_unchanged(cache: KeyValueCache, model: Model) -> None:
    assert_same_lengths(cache, model)
    assert_holds(model.kind, cache.held(), model, model.lengths)


def assert_attends(
    model: Model, query: Tensor, held: Sequence[Held], before: Sequence[int], counts: Sequence[int], **options: Any
) -> None:
    """The first ``counts[b]`` queries get what the oracle gives over the model's tokens; the others are padding."""
    output = attend(query, held, window=model.kind.head_windows, **options)
    assert output.isfinite().all()
    for row, count in enumerate(counts):
        cut = {name: tensor[row : row + 1, :, :count, : model.lengths[row]] for name, tensor in options.items()}
        expected = model.attention(query[:, :, :count], before, row, **cut).output
        assert_same(output[row : row + 1, :, :count], expected)


def test_it_keeps_to_the_protocol(kind: Kind, cache: KeyValueCache) -> None:
    assert isinstance(cache, KeyValueCache)
    key, value = kind.joined(*kind.tokens(1))
    sizes = (cache.batch_size, cache.num_kv_heads, cache.head_dim, cache.value_head_dim)
    assert sizes == (B, kind.kv_heads, key.shape[3], value.shape[3])
    assert (cache.dtype, cache.device) == (torch.float64, torch.device("cpu"))
    if kind.capacity is not None:
        assert cache.capacity == kind.capacity  # type: ignore[attr-defined]


def test_it_starts_empty(kind: Kind, cache: KeyValueCache, model: Model) -> None:
    assert cache.nbytes_logical == 0
    assert_unchanged(cache, model)
    output = attend(kind.queries(1), cache.held(), window=kind.head_windows)
    assert torch.equal(output, torch.zeros_like(output))


def test_it_hands_out_all_that_was_appended(kind: Kind, cache: KeyValueCache, model: Model) -> None:
    for count in (2, 3, 0, 1, 6):
        append(cache, model, kind.tokens(count))


@pytest.mark.parametrize("lengths", [None, [0, 0]])
def test_an_empty_append_works_on_an_empty_cache(
    kind: Kind, cache: KeyValueCache, model: Model, lengths: list[int] | None
) -> None:
    append(cache, model, kind.tokens(0 if lengths is None else 2), lengths)
    append(cache, model, kind.tokens(1))  # behind a prefix of length 0


def test_it_can_be_filled_to_the_last_slot(kind: Kind, cache: KeyValueCache, model: Model) -> None:
    append(cache, model, kind.tokens(13))
    assert cache.nbytes_logical <= cache.nbytes
    assert_attends(model, query := kind.queries(1), cache.held(), [13, 13], [1, 1])
    assert query.shape[2] == 1


@pytest.mark.parametrize("counts", [[5, 5], [2, 5]])
def test_overflow_loses_nothing(kind: Kind, cache: KeyValueCache, model: Model, counts: list[int]) -> None:
    if kind.capacity is None and not kind.full.startswith("expected to need"):
        for _ in range(9):  # a window never overflows
            append(cache, model, kind.tokens(5))
        return
    append(cache, model, kind.tokens(11))
    message = kind.full
    if counts[0] != counts[1]:
        message = message.replace("more tokens", "more tokens of sequence 1").replace("a need of 4", "a need of 3")
    with pytest.raises(CacheFullError, match=re.escape(message)):
        cache.append(*kind.tokens(5), counts)
    assert_unchanged(cache, model)
    append(cache, model, kind.tokens(2))


@pytest.mark.usefixtures("split")
def test_sequences_may_differ_in_length(kind: Kind, cache: KeyValueCache, model: Model) -> None:
    for count, lengths in ((3, [3, 1]), (1, [1, 1]), (4, [0, 4]), (2, [2, 0]), (5, [5, 5]), (1, [1, 1])):
        tokens = kind.tokens(count)
        for side in tokens:  # padding on the right may hold anything
            for row, length in enumerate(lengths):
                side[row, :, length:] = torch.nan
        append(cache, model, tokens, lengths, kind.queries(count))


def test_lengths_may_be_a_tensor(kind: Kind, cache: KeyValueCache, model: Model) -> None:
    tokens = kind.tokens(3)
    cache.append(*tokens, torch.tensor([1, 3]))
    model.append(*tokens, [1, 3])
    model.age()
    assert_unchanged(cache, model)


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([1, 3], ValueError, "lengths: expected numbers from 0 to 2 (the tokens that came), got [1, 3]"),
        ([-1, 1], ValueError, "lengths: expected numbers from 0 to 2 (the tokens that came), got [-1, 1]"),
        ([1], ValueError, "lengths: expected 2 numbers, one per sequence, got 1"),
        ([1.0, 2.0], TypeError, "lengths: expected integers, got 1.0"),
        (torch.ones(2), TypeError, "lengths: expected integers, got torch.float32; cast with .long()"),
        (torch.ones(2, 1).long(), ValueError, "lengths: expected one axis, got [2, 1]"),
    ],
)
def test_wrong_lengths_are_refused(
    kind: Kind, cache: KeyValueCache, model: Model, lengths: Any, error: type[Exception], message: str
) -> None:
    append(cache, model, kind.tokens(2))
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        cache.append(*kind.tokens(2), lengths)
    assert_unchanged(cache, model)


@pytest.mark.usefixtures("split")
@pytest.mark.parametrize("poison", POISONS)
def test_unread_memory_never_shows(kind: Kind, cache: KeyValueCache, model: Model, poison: float) -> None:
    for count, lengths in ((5, None), (4, [4, 2]), (1, None), (1, [0, 1]), (1, None)):
        kind.poison(cache, poison, ())
        append(cache, model, kind.tokens(count), lengths, kind.queries(count))
        kind.poison(cache, poison, ())
        assert_attends(model, kind.queries(1), cache.held(), model.lengths, [1, 1])
        back = [
            int(kind.least_length(longest) < length)
            for longest, length in zip(model.longest, model.lengths, strict=True)
        ]
        cache.rollback(back)
        model.rollback(back)
        kind.poison(cache, poison, ())
        assert_attends(model, kind.queries(1), cache.held(), model.lengths, [1, 1])


@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 8])
def test_rollback_forgets_the_last_tokens(kind: Kind, cache: KeyValueCache, model: Model, tokens: int) -> None:
    append(cache, model, kind.tokens(5))
    append(cache, model, kind.tokens(3))
    if 8 - tokens < kind.least_length(8):
        with pytest.raises(ValueError, match=r"build the WindowCache with a larger margin$"):
            cache.rollback(tokens)
        assert_unchanged(cache, model)
        return
    cache.rollback(tokens)
    model.rollback([tokens, tokens])
    assert_unchanged(cache, model)
    append(cache, model, kind.tokens(2))


def test_rollback_per_sequence(kind: Kind, cache: KeyValueCache, model: Model) -> None:
    append(cache, model, kind.tokens(5))
    back = [0, min(2, 5 - kind.least_length(5))]
    for counts in (back, torch.tensor(back)):
        cache.rollback(counts)
        model.rollback(back)
        assert_unchanged(cache, model)
        append(cache, model, kind.tokens(2))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (-1, "rollback: expected 0 to 5 tokens (those that are held), got -1"),
        (6, "rollback: expected 0 to 5 tokens (those that are held), got 6"),
        ([0, 6], "rollback: expected 0 to 5 tokens of sequence 1 (those that are held), got 6"),
        ([1, 1, 1], "rollback: expected 2 numbers, one per sequence, got 3"),
    ],
)
def test_rollback_of_what_is_not_held_is_refused(
    kind: Kind, cache: KeyValueCache, model: Model, tokens: Any, message: str
) -> None:
    append(cache, model, kind.tokens(5))
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        cache.rollback(tokens)
    assert_unchanged(cache, model)


@pytest.mark.parametrize("change", ["reorder", "select"])
@pytest.mark.parametrize("index", [[1, 0], [0, 0], [1, 1], [0, 1], torch.tensor([1, 0])])
def test_sequences_can_be_exchanged(kind: Kind, cache: KeyValueCache, model: Model, change: str, index: Any) -> None:
    append(cache, model, kind.tokens(4), [4, 2])
    append(cache, model, kind.tokens(3))
    getattr(cache, change)(index)
    model.select([int(entry) for entry in index])
    kind.poison(cache, torch.nan, ())
    assert_unchanged(cache, model)
    append(cache, model, kind.tokens(2))


@pytest.mark.parametrize("index", [[0], [1], [1, 0, 1], [0, 0, 0, 0]])
def test_select_changes_the_batch_size(kind: Kind, cache: KeyValueCache, model: Model, index: list[int]) -> None:
    append(cache, model, kind.tokens(4), [4, 3])
    cache.select(index)
    model.select(index)
    kind.poison(cache, torch.nan, ())
    assert_unchanged(cache, model)
    append(cache, model, kind.tokens(2, len(index)))
    assert_attends(model, kind.queries(1, len(index)), cache.held(), model.lengths, [1] * len(index))


def test_wrong_sequences_are_refused(kind: Kind, cache: KeyValueCache, model: Model) -> None:
    append(cache, model, kind.tokens(3))
    for change, index, message in (
        ("reorder", [0], "reorder: expected 2 entries, one per sequence, got 1; select changes the batch size"),
        ("reorder", [0, 2], "reorder: expected sequences from 0 to 1, got 2 in [0, 2]"),
        ("select", [-1], "select: expected sequences from 0 to 1, got -1 in [-1]"),
        ("select", [], "select: expected at least one sequence, got none"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            getattr(cache, change)(index)
    with pytest.raises(TypeError, match=r"^select: expected integers, got True$"):
        cache.select([True])
    assert_unchanged(cache, model)


def test_a_snapshot_can_be_restored_again_and_again(kind: Kind, cache: KeyValueCache, model: Model) -> None:
    append(cache, model, kind.tokens(4), [4, 3])
    then, snapshot = model.copy(), cache.snapshot()
    append(cache, model, kind.tokens(5))
    cache.select([1])
    model.select([1])
    for _ in range(2):
        cache.restore(snapshot)
        kind.poison(cache, torch.nan, [snapshot])
        model = then.copy()
        assert_unchanged(cache, model)
        append(cache, model, kind.tokens(6), [2, 6])
        cache.reset()
    assert str(snapshot) == f"<snapshot of a {type(cache).__name__} with lengths [4, 3]>"


def test_a_foreign_snapshot_is_refused(kind: Kind, cache: KeyValueCache, model: Model) -> None:
    append(cache, model, kind.tokens(2))
    name, other = type(cache).__name__, kind.build(B)
    with pytest.raises(ValueError, match=f"^restore: expected a snapshot of this {name}, got one of another"):
        cache.restore(other.snapshot())
    with pytest.raises(TypeError, match=f"^restore: expected a snapshot of a {name}, got NoneType$"):
        cache.restore(None)
    stranger = KINDS["latent" if name != "LatentCache" else "dense"].build(B).snapshot()
    with pytest.raises(TypeError, match=f"^restore: expected a snapshot of a {name}, got <snapshot of a "):
        cache.restore(stranger)
    released = cache.snapshot()
    released.release()
    with pytest.raises(ValueError, match=r"^restore: expected a snapshot that still has its contents, got one that"):
        cache.restore(released)
    assert_unchanged(cache, model)


def test_reset_forgets_everything(kind: Kind, cache: KeyValueCache) -> None:
    storages = {tensor.untyped_storage().data_ptr() for tensor in kind.buffers(cache)}
    append(cache, Model(kind), kind.tokens(9))
    cache.reset()
    kind.poison(cache, torch.nan, ())
    assert cache.nbytes_logical == 0
    assert {tensor.untyped_storage().data_ptr() for tensor in kind.buffers(cache)} == storages
    append(cache, Model(kind), kind.tokens(2))


def test_what_was_appended_is_copied(kind: Kind, cache: KeyValueCache, model: Model) -> None:
    tokens = kind.tokens(11)
    model.append(*tokens)
    model.age()
    cache.append(*tokens)
    for side in tokens:
        side.fill_(torch.nan)
    assert_unchanged(cache, model)


def wrong_tokens(kind: Kind) -> dict[str, tuple[tuple[Tensor, Tensor], type[Exception], str]]:
    one, other = (side.detach() for side in kind.tokens(1))
    (first, second), G, (D, DV) = kind.names, kind.kv_heads, kind.widths
    return {
        "batch": (
            (one.expand(2, -1, -1, -1)[[0, 0, 0]], other[[0, 0, 0]]),
            ValueError,
            f"{first}: expected batch 2 as in the cache, got 3 in [3, {G}, 1, {D}]",
        ),
        "heads": (
            (one.repeat(1, 2, 1, 1), other.repeat(1, 2, 1, 1)),
            ValueError,
            f"{first}: expected KV heads {G} as in the cache, got {2 * G} in [2, {2 * G}, 1, {D}]",
        ),
        "first width": (
            (other, other),
            ValueError,
            f"{first}: expected width {D} as in the cache, got {DV} in [2, {G}, 1, {DV}]",
        ),
        "second width": (
            (one, one),
            ValueError,
            f"{second}: expected width {DV} as in the cache, got {D} in [2, {G}, 1, {D}]",
        ),
        "axes": (
            (one[:, :, 0], other),
            ValueError,
            f"{first}: expected 4 axes [batch, KV heads, tokens, width], got 3 in [2, {G}, {D}]",
        ),
        "tokens": (
            (one[:, :, [0, 0]], other),
            ValueError,
            f"{second}: expected 2 tokens as in {first}, got 1",
        ),
        "dtype": (
            (one, other.float()),
            TypeError,
            f"{second}: expected dtype torch.float64 as in the cache, got torch.float32; cast it",
        ),
        "device": (
            (one.to("meta"), other),
            ValueError,
            f"{first}: expected device cpu as in the cache, got meta; move it",
        ),
        "gradient": (
            (one, other.clone().requires_grad_()),
            ValueError,
            f"{second}: expected a tensor without gradient, since a cache keeps numbers and no graph; "
            "run under torch.no_grad() or detach it",
        ),
        "no tensor": ((one, None), TypeError, f"{second}: expected a torch.Tensor, got NoneType"),  # type: ignore
    }


@pytest.mark.parametrize("case", wrong_tokens(KINDS["dense"]))
def test_what_does_not_fit_is_refused_by_name(kind: Kind, cache: KeyValueCache, model: Model, case: str) -> None:
    given, error, message = wrong_tokens(kind)[case]
    append(cache, model, kind.tokens(4))
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        cache.append(*given)
    assert_unchanged(cache, model)


def test_without_gradients_a_parameter_may_be_appended(kind: Kind, cache: KeyValueCache) -> None:
    tokens = [side.requires_grad_() for side in kind.tokens(2)]
    with torch.no_grad():
        held = cache.append(*tokens)
    assert not any(part.keys.requires_grad or part.values.requires_grad for part in held)


@pytest.mark.parametrize("chunks", [[13], [1] * 13, [2, 3, 8], [5, 0, 1, 7], [12, 1]])
def test_attention_over_a_cache_is_attention_over_all_that_was_appended(
    kind: Kind, cache: KeyValueCache, chunks: list[int]
) -> None:
    query, tokens, model = kind.queries(13), kind.tokens(13), Model(kind)
    start = 0
    for count in chunks:
        part = slice(start, start + count)
        append(cache, model, tuple(side[:, :, part] for side in tokens), query=query[:, :, part])  # type: ignore[arg-type]
        start += count
    if kind.quantized is None:
        everything = Model(kind)
        everything.append(*tokens)
        assert all(map(torch.equal, everything.rows[1], model.rows[1]))


def test_one_by_one_and_at_once_hold_the_same(kind: Kind) -> None:
    tokens, caches = kind.tokens(13), [kind.build(B) for _ in range(2)]
    caches[0].append(*tokens)
    for position in range(13):
        caches[1].append(*(side[:, :, position : position + 1] for side in tokens))
    for first, second in zip(caches[0].held(), caches[1].held(), strict=True):
        count = min(first.keys.shape[2], second.keys.shape[2])
        for side in (1, 2):
            assert torch.equal(first[side][:, :, -count:], second[side][:, :, -count:])


def test_padding_on_the_left_is_hidden_by_a_mask(kind: Kind, cache: KeyValueCache) -> None:
    padding, tokens, query = [0, 2], kind.tokens(7), kind.queries(7)
    for side in tokens:
        side[1, :, :2] = torch.nan
    real = torch.arange(7) >= torch.tensor(padding)[:, None]
    models = [Model(kind, 1) for _ in padding]
    for part in (slice(0, 5), slice(5, 6), slice(6, 7)):
        held = cache.append(*(side[:, :, part] for side in tokens))
        output = attend(query[:, :, part], held, mask=real[:, None, None, : part.stop], window=kind.head_windows)
        assert output.isfinite().all()
        for row, (model, skip) in enumerate(zip(models, padding, strict=True)):
            own, before = slice(max(part.start, skip), part.stop), model.lengths
            model.append(*(side[row : row + 1, :, own] for side in tokens))
            expected = model.attention(query[row : row + 1, :, own], before, 0).output
            assert_same(output[row : row + 1, :, own.start - part.start :], expected)
            model.age()


@pytest.mark.usefixtures("split")
def test_masks_and_biases_speak_of_absolute_positions(kind: Kind, cache: KeyValueCache, model: Model) -> None:
    for count, lengths in ((4, [4, 1]), (3, [3, 3]), (2, [1, 2]), (3, [3, 3])):
        before, query, tokens = model.lengths, kind.queries(count), kind.tokens(count)
        held = cache.append(*tokens, lengths)
        model.append(*tokens, lengths)
        shape = (B, kind.heads, count, cache.length)
        given = {"mask": torch.rand(shape) < 0.7, "bias": torch.randn(shape, dtype=torch.float64)}
        assert_attends(model, query, held, before, lengths, **given)
        weights = attend_weights(query, held, length=cache.length, window=kind.head_windows, **given)
        assert weights.shape == shape
        for row, real in enumerate(lengths):
            cut = {name: tensor[row : row + 1, :, :real, : model.lengths[row]] for name, tensor in given.items()}
            expected = model.attention(query[:, :, :real], before, row, **cut).weights
            assert_same(weights[row : row + 1, :, :real, : model.lengths[row]], expected)
            assert not weights[row, :, :real, model.lengths[row] :].any()
        model.age()


def test_nbytes_are_those_of_the_memory(kind: Kind, cache: KeyValueCache) -> None:
    allocated = sum(tensor.untyped_storage().nbytes() for tensor in kind.buffers(cache))
    of_memory = cache.pool if hasattr(cache, "pool") else cache
    assert of_memory.nbytes == allocated
    for count in (1, 4, 3):
        cache.append(*kind.tokens(count))
        assert 0 < cache.nbytes_logical <= cache.nbytes <= of_memory.nbytes == allocated


def test_its_text_tells_the_sizes(kind: Kind, cache: KeyValueCache) -> None:
    start = f"{type(cache).__name__}(batch_size=2, num_kv_heads={kind.kv_heads}, "
    cache.append(*kind.tokens(3))
    assert repr(cache).startswith(start)
    assert repr(cache).endswith("dtype=torch.float64, device='cpu', length=3)")
    cache.append(*kind.tokens(3), [1, 2])
    assert repr(cache).endswith("dtype=torch.float64, device='cpu', lengths=[4, 5])")
