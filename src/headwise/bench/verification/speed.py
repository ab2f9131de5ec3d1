"""Latency of two models by turns: prefill, and one more token behind a context.

Both run on headwise attention with transformers' ``DynamicCache``, as ``generate()`` would run them. What counts is the
ratio of two times of the same round; its quartiles say how far rounds differ. Whether B is faster is what a sign test
over the rounds shows (Dixon and Mood 1946): how often B wins, not by how much.

Symbols: B batch, S context.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from headwise.bench.timing import PairedTimes, measure_paired
from headwise.bench.verification import caches
from headwise.bench.verification.caches import CacheBytes
from headwise.bench.verification.settings import WARMUP, Settings
from headwise.errors import UserError
from headwise.models import Checkpoint
from headwise.progress import Progress, Silent

__all__ = ["Timing", "available_bytes", "contexts_within", "rounds_to_win", "time_decode", "time_prefill"]

Clock = Callable[[], float]
Phase = Literal["prefill", "decode"]
_CHANCE = 0.05  # how often, at most, equal models may be told apart
_SHARE = 0.5  # of the memory that is free, for both caches together
_STEP = 64  # a step of decoding takes about as long as reading so many tokens at once


@dataclass(frozen=True)
class Timing:
    """Both models at one batch and context.

    Attributes:
        phase: ``prefill`` (all of the context at once, logits of its last token) or ``decode`` (its last tokens one by
            one; the time is that of one).
        batch: sequences side by side.
        context: tokens of each.
        times: of ``a`` and ``b``.
        cache: bytes of all tensors in the cache of A and of B at this batch and context; None without one.
        cache_dtypes: of those tensors.
    """

    phase: Phase
    batch: int
    context: int
    times: PairedTimes
    cache: tuple[int, int] | None = None
    cache_dtypes: tuple[str, str] | None = None

    @property
    def ratio(self) -> float:
        """The median over rounds of the time of B over that of A; below 1: B is faster."""
        return self.times.median_ratio("b", "a")

    @property
    def quartiles(self) -> tuple[float, float]:
        """Half of the rounds lie between these ratios."""
        return self.times.ratio_quartiles("b", "a")

    @property
    def rounds(self) -> int:
        """How many rounds there were."""
        return len(self.times.seconds["a"])

    @property
    def won(self) -> int:
        """Rounds in which B took less time than A."""
        return sum(ratio < 1 for ratio in self.times.ratios("b", "a"))

    @property
    def faster(self) -> bool:
        """Whether B wins more rounds than chance would give it, see :func:`rounds_to_win`."""
        return self.won >= rounds_to_win(self.rounds)

    @property
    def slower(self) -> bool:
        """Whether A does."""
        return sum(ratio > 1 for ratio in self.times.ratios("b", "a")) >= rounds_to_win(self.rounds)

    def record(self) -> dict[str, Any]:
        """As JSON holds it."""
        low, high = self.quartiles
        return {
            "phase": self.phase,
            "batch": self.batch,
            "context": self.context,
            "median_seconds": {name: self.times.median(name) for name in ("a", "b")},
            "b_over_a": {"median": self.ratio, "lower_quartile": low, "upper_quartile": high},
            "b_is_faster": self.faster,
            "rounds": self.rounds,
            "rounds_won_by_b": self.won,
            "cache_bytes": _both(self.cache),
            "cache_dtype": _both(self.cache_dtypes),
        }


def _both(pair: tuple[Any, Any] | None) -> dict[str, Any] | None:
    return None if pair is None else dict(zip("ab", pair, strict=True))


def rounds_to_win(rounds: int) -> int:
    """The fewest of ``rounds`` that one of two equal models wins in no more than 5 % of all cases."""
    tail, lost = 1, 0
    while tail + math.comb(rounds, lost + 1) <= _CHANCE * 2**rounds:
        lost += 1
        tail += math.comb(rounds, lost)
    return rounds - lost


def contexts_within(settings: Settings, most: int | None) -> tuple[tuple[int, ...], list[str]]:
    """The contexts that both models have positions for, and a note if some had to be shortened.

    Raises:
        UserError: so few positions are left that there is nothing before the tokens that are decoded.
    """
    if most is not None and most <= settings.steps:
        raise UserError(
            f"verify: expected more positions than the {settings.steps} tokens that are decoded one by one, got "
            f"{most}; ask for fewer rounds, or leave latency out with --no-speed"
        )
    if most is None or max(settings.contexts) <= most:
        return tuple(sorted(set(settings.contexts))), []
    contexts = tuple(sorted({min(context, most) for context in settings.contexts}))
    return contexts, [f"contexts are at most {most:,} tokens, for which the models have positions"]


@torch.inference_mode()
def time_prefill(
    first: Checkpoint,
    second: Checkpoint,
    contexts: tuple[int, ...],
    settings: Settings,
    progress: Progress | None = None,
    clock: Clock = time.perf_counter,
) -> tuple[list[Timing], list[str]]:
    """Time the reading of random tokens, and say what was left out for being longer than the settings allow."""
    progress, timings, left_out = progress or Silent(), [], []
    cells = [(batch, context) for batch in sorted(set(settings.batches)) for context in contexts]
    allowed = [cell for cell in cells if cell[0] * cell[1] <= settings.prefill_tokens]
    progress.plan(2.0 * (1 + settings.prefill_rounds) * sum(batch * context for batch, context in allowed))
    for batch, context in cells:
        if (batch, context) not in allowed:
            left_out.append((batch, context))
            continue
        rivals = {
            name: _prefill(checkpoint, batch, context, settings.seed, progress)
            for name, checkpoint in (("a", first), ("b", second))
        }
        times = measure_paired(rivals, rounds=settings.prefill_rounds, warmup=1, clock=clock)
        timings.append(Timing("prefill", batch, context, times))
    return timings, _note(f"prefill of more than {settings.prefill_tokens:,} tokens was not timed", left_out)


@torch.inference_mode()
def time_decode(
    first: Checkpoint,
    second: Checkpoint,
    contexts: tuple[int, ...],
    settings: Settings,
    sizes: tuple[CacheBytes, CacheBytes],
    progress: Progress | None = None,
    clock: Clock = time.perf_counter,
) -> tuple[list[Timing], list[str]]:
    """Time the last tokens of each context, decoded one by one behind random keys and values.

    Args:
        first: A.
        second: B.
        contexts: ascending.
        settings: batches, rounds, seed.
        sizes: what a token takes, to leave out what there is no memory for.
        progress: is told what goes on.
        clock: tells the time in seconds.

    Returns:
        The times, and notes on what was left out.
    """
    for checkpoint in (first, second):
        if not caches.can_be_filled(checkpoint):
            return [], [f"decoding was not timed: {checkpoint.name} keeps more than keys and values"]
    progress, timings, left_out = progress or Silent(), [], []
    cells = [(batch, context) for batch in sorted(set(settings.batches)) for context in contexts]
    progress.plan(float(2 * _STEP * settings.steps * len(cells)))
    for batch, context in cells:
        room = available_bytes()
        if room is not None and batch * context * sum(size.used / size.tokens for size in sizes) > _SHARE * room:
            left_out.append((batch, context))
            progress.advance(2 * _STEP * settings.steps)
            continue
        timings.append(_time_decode((first, second), batch, context, settings, progress, clock))
    return timings, _note("decoding was not timed where both caches would take more than half of the memory", left_out)


def _time_decode(
    pair: tuple[Checkpoint, Checkpoint], batch: int, context: int, settings: Settings, progress: Progress, clock: Clock
) -> Timing:
    before = context - settings.steps
    filled = [caches.filled_cache(checkpoint, batch, before, settings.seed) for checkpoint in pair]
    works = [_step(each, cache, batch, progress) for each, cache in zip(pair, filled, strict=True)]
    times = measure_paired(
        dict(zip(("a", "b"), works, strict=True)), rounds=settings.rounds, warmup=WARMUP, clock=clock
    )
    first, second = (sum(tensor.nbytes for tensor in caches.cache_tensors(cache)) for cache in filled)
    dtypes = caches.cache_dtype(filled[0]), caches.cache_dtype(filled[1])
    return Timing("decode", batch, context, times, (first, second), dtypes)


def _prefill(checkpoint: Checkpoint, batch: int, context: int, seed: int, progress: Progress) -> Callable[[], None]:
    vocabulary = checkpoint.model.config.get_text_config().vocab_size
    tokens = torch.randint(0, vocabulary, (batch, context), generator=torch.Generator().manual_seed(seed))
    options = caches.last_logits_only(checkpoint)

    def run() -> None:
        if checkpoint.causal:
            caches.advance(checkpoint, caches.new_cache(checkpoint), tokens, **options)
        else:
            checkpoint.forward(tokens)
        _finish(checkpoint.device)
        progress.advance(batch * context)

    return run


def _step(checkpoint: Checkpoint, cache: Any, batch: int, progress: Progress) -> Callable[[], None]:
    token = torch.ones(batch, 1, dtype=torch.int64)

    def run() -> None:
        caches.advance(checkpoint, cache, token)  # the cache grows by the token, as it does in generate()
        _finish(checkpoint.device)
        progress.advance(_STEP)

    return run


def _finish(device: torch.device) -> None:
    """Until all work is done that was only queued: an accelerator goes on when a call has long returned."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _note(what: str, left_out: Iterable[tuple[int, int]]) -> list[str]:
    cells = "; ".join(f"batch {batch}, context {context:,}" for batch, context in left_out)
    return [f"{what}: {cells}"] if cells else []


def available_bytes() -> int | None:
    """Memory that may be taken: what Linux says is available, elsewhere all there is; None where nothing tells."""
    told = Path("/proc/meminfo")
    if told.exists():
        for line in told.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
