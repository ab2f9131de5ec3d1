"""Every cache through random sequences of everything it can do, against plain lists of tensors.

After each step all memory that nobody may read is overwritten with NaN or with huge values.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import Tensor

from headwise.cache import CacheFullError, attend
from tests.contract.kinds import KINDS, POISONS, Kind, Model, assert_holds, assert_same_lengths
from tests.helpers.compare import assert_same

MOST_SEQUENCES = 3


class CacheMachine(RuleBasedStateMachine):
    """One cache and its model."""

    kind: Kind

    @initialize(poison=st.sampled_from(POISONS), seed=st.integers(0, 999))
    def start(self, poison: float, seed: int) -> None:
        torch.manual_seed(seed)
        self.poison = poison
        self.cache, self.model = self.kind.build(2), Model(self.kind, 2)
        self.snapshots: list[tuple[Any, Model]] = []

    def numbers(self, data: st.DataObject, most: list[int]) -> list[int]:
        """A number per sequence, often the same for all."""
        if data.draw(st.booleans()):
            return [data.draw(st.integers(0, min(most)))] * len(most)
        return [data.draw(st.integers(0, bound)) for bound in most]

    @rule(data=st.data(), count=st.sampled_from([0, 1, 1, 1, 2, 3, 7]), given=st.booleans())
    def append(self, data: st.DataObject, count: int, given: bool) -> None:
        batch = len(self.model.rows)
        lengths = self.numbers(data, [count] * batch) if given else None
        tokens, query, before = self.kind.tokens(count, batch), self.kind.queries(count, batch), self.model.lengths
        try:
            held = self.cache.append(*tokens, lengths)
        except CacheFullError:
            self.refuse_rightly([count] * batch if lengths is None else lengths)
            return
        self.model.append(*tokens, lengths)
        assert_holds(self.kind, held, self.model, before)
        output = attend(query, held, window=self.kind.head_windows)
        assert output.isfinite().all()
        self.compare_one(data, query, output, before, [count] * batch if lengths is None else lengths)
        self.model.age()

    def compare_one(
        self, data: st.DataObject, query: Tensor, output: Tensor, before: list[int], counts: list[int]
    ) -> None:
        """The last real query of one sequence against the oracle, which is slow."""
        row = data.draw(st.integers(0, len(counts) - 1))
        if counts[row]:
            last = slice(counts[row] - 1, counts[row])
            stands = [position + last.start for position in before]
            expected = self.model.attention(query[:, :, last], stands, row).output
            assert_same(output[row : row + 1, :, last], expected)

    def refuse_rightly(self, counts: list[int]) -> None:
        after = [length + count for length, count in zip(self.model.lengths, counts, strict=True)]
        if self.kind.capacity is not None:
            assert max(after) > self.kind.capacity
        else:
            assert self.kind.full.startswith("expected to need")
            size, pool = self.cache.pool.block_size, self.cache.pool
            free_again = sum(-(-end // size) for end in after)  # if nothing could be shared
            assert free_again > pool.num_free

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        lengths, longest = self.model.lengths, self.model.longest
        most = [length - self.kind.least_length(most) for length, most in zip(lengths, longest, strict=True)]
        counts = self.numbers(data, most)
        self.cache.rollback(counts if len(set(counts)) > 1 else counts[0])
        self.model.rollback(counts)

    @precondition(lambda self: self.kind.margin is not None)
    @rule(data=st.data())
    def rollback_too_far(self, data: st.DataObject) -> None:
        row = data.draw(st.integers(0, len(self.model.rows) - 1))
        least, length = self.kind.least_length(self.model.longest[row]), self.model.lengths[row]
        if least:
            counts = [0] * len(self.model.rows)
            counts[row] = length - data.draw(st.integers(0, least - 1))
            with pytest.raises(ValueError, match=r"build the WindowCache with a larger margin$"):
                self.cache.rollback(counts)

    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        batch = len(self.model.rows)
        index = data.draw(st.lists(st.integers(0, batch - 1), min_size=batch, max_size=batch))
        self.cache.reorder(index)
        self.model.select(index)

    @rule(data=st.data())
    def select(self, data: st.DataObject) -> None:
        batch = len(self.model.rows)
        index = data.draw(st.lists(st.integers(0, batch - 1), min_size=1, max_size=MOST_SEQUENCES))
        self.cache.select(index)
        self.model.select(index)

    @rule()
    def snapshot(self) -> None:
        self.snapshots = [*self.snapshots[-1:], (self.cache.snapshot(), self.model.copy())]

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        # A number, not the snapshot: hypothesis keeps what it draws, and the blocks would never be free again.
        snapshot, model = self.snapshots[data.draw(st.integers(0, len(self.snapshots) - 1))]
        self.cache.restore(snapshot)
        self.model = model.copy()

    @rule()
    def reset(self) -> None:
        self.cache.reset()
        self.model = Model(self.kind, len(self.model.rows))

    @invariant()
    def holds_what_it_must(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.kind.poison(self.cache, self.poison, [snapshot for snapshot, _ in self.snapshots])
        assert_same_lengths(self.cache, self.model)
        assert_holds(self.kind, self.cache.held(), self.model, self.model.lengths)
        assert 0 <= self.cache.nbytes_logical <= self.cache.nbytes

    def teardown(self) -> None:
        if hasattr(self, "cache") and hasattr(self.cache, "pool"):
            pool = self.cache.pool
            del self.cache, self.snapshots
            assert pool.num_free == pool.num_blocks


@pytest.mark.parametrize("name", KINDS)
def test_a_cache_is_what_plain_lists_are(name: str) -> None:
    machine = type("Machine", (CacheMachine,), {"kind": KINDS[name]})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
