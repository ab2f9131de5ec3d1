"""head_statistics against the full map of weights, which the reference writes down one entry at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from torch import Tensor

from headwise.attention import HeadStatistics, head_statistics
from headwise.attention.reference import reference_attention, reference_visible
from tests.attention.cases import Case, cases, make_case
from tests.fixtures import one_thread  # noqa: F401 (it is used by being here)
from tests.helpers.compare import assert_same
from tests.helpers.operations import Operations

EXACT = 1e-10  # float64, sums over at most a dozen keys


class Behind(NamedTuple):
    """The keys one and two places behind the query."""

    name: str = "behind"

    def keys(self, queries: Tensor, key_length: int) -> Tensor:
        behind = queries[..., None] - torch.arange(key_length)
        return (behind == 1) | (behind == 2)


class Chosen(NamedTuple):
    """Keys drawn for every position, differently in every sequence."""

    table: Tensor  # [B, positions, S]; positions are shifted by 8, since some calls place queries before the first key
    name: str = "chosen"

    def keys(self, queries: Tensor, key_length: int) -> Tensor:
        batch = self.table.shape[0]
        index = (queries + 8).expand(batch, -1)[..., None].expand(-1, -1, key_length)
        return self.table.gather(1, index)


class Nothing(NamedTuple):
    name: str = "nothing"

    def keys(self, queries: Tensor, key_length: int) -> Tensor:
        return torch.zeros(1, queries.shape[1], key_length, dtype=torch.bool)


class Everything(NamedTuple):
    name: str = "everything"

    def keys(self, queries: Tensor, key_length: int) -> Tensor:
        return torch.ones(1, queries.shape[1], key_length, dtype=torch.bool)


def relations(case: Case) -> list[Any]:
    batch, keys = case.key.shape[0], case.key.shape[2]
    table = torch.rand(batch, 40, keys, generator=torch.Generator().manual_seed(7)) < 0.4
    return [Behind(), Chosen(table), Nothing(), Everything()]


def position(case: Case, sequence: int, row: int) -> int:
    """Absolute position of a query, from the rule in the documentation of ``attention``."""
    offset, lengths = case.options.get("offset"), case.options.get("key_lengths")
    if offset is None:
        held = case.key.shape[2] if lengths is None else int(lengths[sequence])
        return held - case.query.shape[2] + row
    return (int(offset[sequence]) if isinstance(offset, Tensor) else offset) + row


def by_hand(case: Case, relation: Any) -> dict[str, Tensor]:
    """Mass, uniform value and informative rows of one relation, counted key by key."""
    (batch, heads, rows, _), keys = case.query.shape, case.key.shape[2]
    weights = reference_attention(case.query, case.key, case.value, **case.options).weights
    visible = reference_visible(case.query, case.key, **case.options)
    mass, uniform = torch.zeros(2, batch, heads, rows, dtype=torch.float64)
    informative = torch.zeros(batch, heads, rows, dtype=torch.bool)
    for b in range(batch):
        for i in range(rows):
            where = torch.tensor([[position(case, b, i)]])
            member = relation.keys(where, keys)
            member = member[b if member.shape[0] > 1 else 0, 0]
            for h in range(heads):
                seen = [j for j in range(keys) if visible[b, h, i, j]]
                hits = [j for j in seen if member[j]]
                mass[b, h, i] = sum(float(weights[b, h, i, j]) for j in hits)
                uniform[b, h, i] = len(hits) / len(seen) if seen else 0.0
                informative[b, h, i] = 0 < len(hits) < len(seen)
    return {"mass": mass, "uniform": uniform, "informative": informative}


def assert_right(case: Case, got: HeadStatistics) -> None:
    """Everything in ``got`` is what the full map gives."""
    reference = reference_attention(case.query, case.key, case.value, **case.options)
    weights, shape = reference.weights, case.query.shape[:3]
    positions = torch.tensor([[position(case, b, i) for i in range(shape[2])] for b in range(shape[0])])
    distances = (positions[:, None, :, None] - torch.arange(case.key.shape[2])).abs()
    logarithms = torch.where(weights > 0, weights, 1.0).log()
    assert_same(got.lse, reference.lse, atol=EXACT, what="lse")
    assert_same(got.entropy, -(weights * logarithms).sum(-1), atol=EXACT, what="entropy")
    assert_same(got.largest, weights.amax(-1), atol=EXACT, what="largest")
    assert_same(got.distance, (weights * distances).sum(-1), atol=EXACT, what="distance")
    assert torch.equal(got.seeing.expand(shape), reference_visible(case.query, case.key, **case.options).any(-1))
    assert got.names == ("behind", "chosen", "nothing", "everything")
    for index, relation in enumerate(relations(case)):
        expected = by_hand(case, relation)
        assert_same(got.mass[index], expected["mass"], atol=EXACT, what=f"mass of {relation.name}")
        assert_same(got.uniform[index].expand(shape), expected["uniform"], atol=EXACT, what=relation.name)
        assert torch.equal(got.informative[index].expand(shape), expected["informative"]), relation.name


# Sizes [batch, heads, KV heads, queries, keys, width] and options.
FIXED: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "grouped": ((2, 6, 2, 5, 7, 3), {}),
    "causal": ((1, 9, 3, 7, 11, 5), {"causal": True}),
    "windows per head": (
        (1, 4, 2, 7, 7, 5),
        {"causal": True, "window": [(0, 0), (2, None), None, (1, 3)]},
    ),
    "two-sided windows": ((2, 3, 3, 7, 7, 5), {"window": (2, 1)}),
    "sinks": (
        (1, 6, 3, 5, 7, 3),
        {"sinks": torch.tensor([-3.0, -1.0, 0.0, 1.0, 2.0, 9.0], dtype=torch.float64), "causal": True},
    ),
    "rows that see nothing": (
        (2, 3, 1, 5, 7, 3),
        {"mask": torch.tensor([True, False, True, False, True])[:, None], "sinks": torch.zeros(3).double()},
    ),
    "offset": ((2, 3, 1, 3, 11, 3), {"causal": True, "offset": 4}),
    "offsets and lengths": (
        (2, 3, 1, 3, 11, 3),
        {"causal": True, "offset": torch.tensor([-1, 6]), "key_lengths": torch.tensor([2, 9])},
    ),
    "scores": (
        (2, 6, 2, 3, 5, 7),
        {"softcap": 0.7, "scale": 1.3, "alibi_slopes": torch.arange(6.0), "bias": torch.arange(5.0)},
    ),
}


@pytest.mark.parametrize("block_bytes", [None, 1, 1_000])
@pytest.mark.parametrize(("sizes", "options"), FIXED.values(), ids=FIXED)
def test_against_the_full_map(sizes, options, block_bytes):
    made = make_case(*sizes)
    case = Case(made.query, made.key, made.value, options)
    assert_right(case, head_statistics(case.query, case.key, relations(case), max_block_bytes=block_bytes, **options))


@hypothesis_settings(max_examples=25)
@given(cases())
def test_against_the_full_map_with_any_options(case):
    assert_right(case, head_statistics(case.query, case.key, relations(case), **case.options))


def test_what_nobody_may_read_leaks_into_nothing():
    made = make_case(2, 6, 2, 5, 7, 3)
    mask = torch.rand(2, 1, 5, 7) < 0.5
    mask[..., 3] = False
    case = Case(made.query, made.key, made.value, {"mask": mask})
    poisoned = case.poisoned(mask.expand(2, 6, 5, 7), float("nan"))
    assert poisoned.key.isnan().any()
    assert_right(case, head_statistics(case.query, poisoned.key, relations(case), mask=mask))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_types_are_reduced_in_float32(dtype):
    made = make_case(2, 6, 2, 5, 7, 3)
    query, key = made.query.to(dtype), made.key.to(dtype)
    got = head_statistics(query, key, relations(made), causal=True)
    # Scores, exponentials and sums in float32: a few units in the last place of the largest number.
    exact = head_statistics(query.double(), key.double(), relations(made), causal=True)
    for field in ("mass", "uniform", "entropy", "largest", "distance", "lse"):
        assert_same(getattr(got, field), getattr(exact, field).float(), atol=1e-5, what=field)


def test_a_perfect_head_scores_exactly_one_and_one_that_looks_elsewhere_zero():
    """Repeated tokens: half of the rows have nothing to look back at, and do not count."""
    period, width = 7, 14
    one_hot = torch.eye(width, dtype=torch.float64)
    # Head 0 of 2 reads the key that follows the first copy of its token; head 1 looks at key 0.
    query = torch.stack([one_hot.roll(period - 1, 0), one_hot[:1].expand(width, -1)])[None] * 1e4
    index = torch.arange(width)

    class Induction(NamedTuple):
        name: str = "induction"

        def keys(self, queries: Tensor, key_length: int) -> Tensor:
            target = torch.where(queries >= period, queries - period + 1, -1)
            return target[..., None] == torch.arange(key_length)

    got = head_statistics(query, one_hot[None, None], [Induction()], causal=True)
    assert got.score("induction").tolist() == [[1.0, 0.0]]
    assert got.informative[0].expand(1, 2, width)[0, 0].tolist() == (index >= period).tolist()
    expected = sum(1 / (i + 1) for i in range(period, width)) / period
    assert got.chance("induction").tolist() == [[pytest.approx(expected, rel=1e-12)] * 2]


def test_a_score_is_nan_where_no_row_could_tell():
    made = make_case(1, 2, 1, 3, 5, 3)
    got = head_statistics(made.query, made.key, [Nothing(), Everything()])
    assert got.score("nothing").isnan().all()
    assert got.chance("everything").isnan().all()


def test_means_leave_out_rows_that_see_nothing():
    made = make_case(1, 2, 1, 3, 5, 3)
    mask = torch.tensor([True, False, True])[:, None]
    got = head_statistics(made.query, made.key, [], mask=mask)
    every_row = head_statistics(made.query, made.key, [])
    for field in ("entropy", "largest", "distance", "lse"):
        expected = getattr(every_row, field)[..., [0, 2]].mean(-1)
        assert_same(got.mean(field), expected, what=field)
    blind = head_statistics(made.query, made.key, [], mask=torch.zeros(1, 1, dtype=torch.bool))
    assert blind.mean("entropy").isnan().all()


@pytest.mark.parametrize(("rows", "keys"), [(0, 5), (3, 0), (0, 0)])
def test_empty_inputs(rows, keys):
    made = make_case(2, 6, 2, rows, keys, 3)
    got = head_statistics(made.query, made.key, [Behind()])
    assert got.mass.shape == (1, 2, 6, rows)
    assert got.entropy.tolist() == torch.zeros(2, 6, rows).tolist()
    assert got.lse.shape == (2, 6, rows)
    assert (got.lse == -torch.inf).all()


def test_no_gradient_is_kept():
    made = make_case(1, 2, 1, 3, 5, 3)
    got = head_statistics(made.query.requires_grad_(), made.key.requires_grad_(), [Behind()])
    assert not got.mass.requires_grad


def test_relations_of_one_name_are_refused():
    made = make_case(1, 2, 1, 3, 5, 3)
    with pytest.raises(ValueError, match=r"^head_statistics: relations need names of their own, got behind, behind$"):
        head_statistics(made.query, made.key, [Behind(), Behind()])


def test_what_is_not_there_is_refused_by_name():
    made = make_case(1, 2, 1, 3, 5, 3)
    got = head_statistics(made.query, made.key, [Behind(), Nothing()])
    with pytest.raises(KeyError, match="no relation is named 'before'; there are behind, nothing"):
        got.score("before")
    with pytest.raises(KeyError, match="expected one of entropy, largest, distance, lse, got 'mass'"):
        got.mean("mass")


def largest_tensor(length: int, block_bytes: int) -> int:
    """Bytes of the largest tensor while statistics of ``length`` queries over as many keys are taken."""
    query, key = torch.randn(1, 6, length, 2), torch.randn(1, 2, length, 2)
    with Operations(query, key) as ran:
        head_statistics(query, key, [Behind(), Everything()], causal=True, max_block_bytes=block_bytes)
    return ran.largest_bytes


def test_memory_grows_with_the_length_and_not_with_its_square():
    budget, lengths = 2**14, (128, 256, 512)
    sizes = [largest_tensor(length, budget) for length in lengths]
    whole_maps = [6 * length * length * 4 for length in lengths]
    # A block of scores stays under its budget, one row at least; what is joined over blocks grows with the length.
    assert sizes[1] <= 2 * sizes[0]
    assert sizes[2] <= 2 * sizes[1]
    assert sizes[2] < whole_maps[2] / 100
    assert largest_tensor(128, 2**30) == whole_maps[0]  # the watcher would see a whole map
