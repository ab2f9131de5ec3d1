"""Before anything is timed: what is right passes in every dtype, and what is wrong is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headwise.bench.layouts import checks, run
from headwise.bench.layouts.checks import check_bytes, check_parameters, check_runner
from headwise.bench.layouts.costs import Load, cost_of
from headwise.bench.layouts.run import CheckFailed, compare_layouts
from headwise.bench.layouts.runners import Runner, build_runner, repeating
from headwise.bench.layouts.specs import parse_layouts
from headwise.cache import CacheFullError, DenseCache, WindowCache
from headwise.errors import UserError
from tests.bench.layouts import ALL, LOAD, SHAPE, settings, spec
from tests.fixtures import one_thread

__all__ = ["one_thread"]

LONG = Load(2, 83, "float32")  # so long that windows drop keys


def runner_of(word: str, load: Load = LONG, backend: str | None = None) -> Runner:
    layout = spec(word)
    return build_runner(layout, cost_of(layout, load), load, seed=0, backend=backend)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("layout", parse_layouts(ALL, SHAPE), ids=lambda each: each.name)
def test_what_is_right_passes(layout, dtype):
    load = replace(LONG, dtype=dtype)
    for seed in range(3):
        runner = build_runner(layout, cost_of(layout, load), load, seed=seed)
        for each in (runner, repeating(runner)) if layout.grouped else (runner,):
            check = check_runner(each, load, seed)
            assert check.agrees, (each.name, check)
            assert check.tokens == LONG.context


@pytest.mark.parametrize("backend", ["native", "sdpa", "math"])
def test_every_backend_passes(backend):
    for word in ("gqa:2", "mixed:2@7"):
        assert check_runner(runner_of(word, backend=backend), LONG, 0).agrees


def test_a_cache_that_swaps_two_values_is_noticed(monkeypatch):
    append = DenseCache.append
    swapped = lambda self, key, value, lengths=None: append(self, key, value.flip(1), lengths)  # noqa: E731
    runner = runner_of("gqa:2")
    monkeypatch.setattr(DenseCache, "append", swapped)
    for each in (runner, repeating(runner)):
        check = check_runner(each, LONG, 0)
        assert not check.agrees
        assert check.decoded > check.allowed > check.prefilled


def test_a_rollback_that_forgets_nothing_is_noticed(monkeypatch):
    """The cache has room for the context and no more: it would be longer than what was read."""
    monkeypatch.setattr(WindowCache, "rollback", lambda self, tokens: None)
    with pytest.raises(CacheFullError):
        check_runner(runner_of("window:7"), LONG, 0)


def test_heads_of_a_wrong_group_are_noticed(monkeypatch):
    """Query heads on KV heads by turns, where they lie side by side in the layer."""
    monkeypatch.setattr(torch.Tensor, "repeat_interleave", lambda self, times, dim: torch.cat([self] * times, dim))
    assert not check_runner(repeating(runner_of("gqa:2")), LONG, 0).agrees


def test_reading_at_once_is_held_to_the_dtype_however_much_it_loses(monkeypatch):
    runner = runner_of("mha")
    exact = checks._exact
    monkeypatch.setattr(checks, "_exact", lambda *a: exact(*a) + 0.01)
    check = check_runner(runner, LONG, 0)
    assert check.prefilled > 0.009
    assert not check.agrees


def test_nothing_that_is_no_number_passes():
    check = checks.Check(decoded=float("nan"), prefilled=0.0, allowed=1.0, tokens=2)
    assert not check.agrees
    assert not replace(check, decoded=0.0, prefilled=float("nan")).agrees


def test_bytes_and_parameters_that_were_not_planned_are_told():
    runner = runner_of("mqa")
    planned = runner.cost.planned
    assert check_bytes(runner, planned) is None
    assert check_bytes(runner, planned + 1) == (
        f"mqa: expected a cache of the planned {planned:,} bytes, got {planned + 1:,} allocated; the plan or the cache "
        "is wrong, please report it"
    )
    assert check_parameters(runner) is None
    wider = replace(runner, layer=runner_of("mha").layer)
    assert f"mqa: expected {23 * 10 * 14:,} projection parameters as planned, got {23 * 10 * 24:,} in" in str(
        check_parameters(wider)
    )


def one_slot_too_many(layout, load: Load) -> DenseCache:
    return DenseCache(load.batch, layout.kv_heads, load.context + 1, layout.head_dim)


def test_nothing_is_timed_where_a_check_falls_short(monkeypatch):
    monkeypatch.setattr(run, "time_runners", lambda *a, **o: pytest.fail("timed all the same"))
    monkeypatch.setattr(run, "measured_device", lambda *a, **o: pytest.fail("measured all the same"))
    monkeypatch.setattr(Runner, "cache", lambda self, load: one_slot_too_many(self.spec, load))
    with pytest.raises(CheckFailed) as failed:
        compare_layouts(settings("mha,gqa:3"))
    bytes_told = [each for each in failed.value.shortfalls if "expected a cache of the planned" in each]
    assert [each.split(":")[0] for each in bytes_told] == ["mha", "gqa", "gqa"]


@pytest.mark.parametrize(
    ("words", "backend", "told"),
    [
        (
            "mha,mqa",
            "fast",
            "--backend: expected one of native, sdpa, math, got 'fast'; without it each call has the one",
        ),
        (
            "mha,mla:11+4",
            "sdpa",
            "--backend sdpa: expected one that can do mla:11+4, but it takes equal widths of key and value only, got "
            "14 and 10; leave --backend or that layout out",
        ),
    ],
)
def test_a_backend_that_cannot_is_refused_before_anything_is_timed(monkeypatch, words, backend, told):
    monkeypatch.setattr(run, "check_runner", lambda *a: pytest.fail("checked all the same"))
    with pytest.raises(UserError) as refused:
        compare_layouts(settings(words, backend=backend))
    assert str(refused.value).startswith(told)


def test_a_dtype_that_nothing_multiplies_is_refused(monkeypatch):
    def fails(self, hidden, cache=None):
        raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'\nand more")

    monkeypatch.setattr(Runner, "run", fails)
    with pytest.raises(UserError) as refused:
        compare_layouts(settings(load=replace(LOAD, dtype="float16")))
    assert str(refused.value) == (
        '--dtype float16: expected one that this processor multiplies, but PyTorch says \'"addmm_impl_cpu_" not '
        "implemented for \\'Half\\''; use float32"
    )
