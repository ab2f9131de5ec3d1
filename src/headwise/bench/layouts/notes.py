"""What a number does not show, in words: only where it was seen in what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwise.bench.layouts.costs import Load
from headwise.bench.layouts.result import Ratio, Row
from headwise.plan.units import bytes_text

__all__ = ["find_notes", "peak_noise"]


def find_notes(rows: Sequence[Row], load: Load) -> list[str]:
    """All that has to be said under a table of these rows."""
    notes = ["one attention layer was measured, not a model: no norms, MLP, embeddings or sampling"]
    notes += _equal_parameters(rows)
    notes += _slower_though_less(rows)
    notes += _repeated_peaks(rows)
    notes += _windows(rows, load)
    notes += _beyond_the_roofline(rows)
    return notes


def _equal_parameters(rows: Sequence[Row]) -> Iterator[str]:
    """As many weights, and yet another time."""
    first, *others = (row for row in rows if not row.repeats)
    equal = [row for row in others if row.cost.parameters_total == first.cost.parameters_total]
    told = [
        f"{row.name} {_ratio_text(getattr(row, phase).to_first)} for {what}"
        for row in equal
        for phase, what in (("prefill", "prefill"), ("decode", "a token"))
        if getattr(row, phase).to_first.differs
    ]
    if told:
        yield (
            f"equal projection counts do not mean equal latency: of the same {first.cost.parameters_total:,} as "
            f"{first.name}, and of its time (quartiles): {'; '.join(told)}"
        )


def _slower_though_less(rows: Sequence[Row]) -> Iterator[str]:
    """A smaller cache, and yet no less time for a token."""
    first, *others = (row for row in rows if not row.repeats)
    told = [
        f"{row.name} {row.cost.needed / first.cost.needed:.2f} x the bytes still read, "
        f"{_ratio_text(row.decode.to_first)}"
        for row in others
        if row.cost.needed < first.cost.needed and row.decode.to_first.upper >= 1
    ]
    if told:
        yield (
            f"a smaller cache does not mean a faster token: beside {first.name}, and of its time (quartiles): "
            f"{'; '.join(told)}"
        )


def _repeated_peaks(rows: Sequence[Row]) -> Iterator[str]:
    """The cache of shared heads, and the peak of an implementation that repeats them."""
    first = rows[0]
    if any(row.peak is None for row in rows):
        return
    noise = peak_noise(rows)
    for row in rows:
        own = next(each for each in rows if each.spec == row.spec and not each.repeats)
        assert row.peak is not None
        assert own.peak is not None
        assert first.peak is not None
        more = row.peak.decode_rise - own.peak.decode_rise
        if not row.repeats or more <= noise:
            continue
        told = (
            f"a smaller cache does not mean less peak memory: {row.name} keeps the cache of {own.name} "
            f"({bytes_text(own.allocated)}), yet its peak while decoding rises by {bytes_text(row.peak.decode_rise)}, "
            f"that of {own.name} by {bytes_text(own.peak.decode_rise)}"
        )
        if row.allocated < first.allocated:
            told += _beside_first(row.peak.decode_rise, first.peak.decode_rise, noise, first.name)
        yield told


def _beside_first(rise: int, of_first: int, noise: int, name: str) -> str:
    """Whether the larger cache of the first layout took as little, as far as processes that differ can tell."""
    if rise >= of_first:
        return f": no less than {name}, {bytes_text(of_first)}"
    if rise + noise >= of_first:
        return (
            f": not clearly less than {name}, {bytes_text(of_first)}, since processes differed by up to "
            f"{bytes_text(noise)} before they began"
        )
    return ""


def peak_noise(rows: Sequence[Row]) -> int:
    """By how much processes differ that have done the same: a difference of peaks has to be larger to be told."""
    before = [row.peak.before for row in rows if row.peak is not None]
    return max(before) - min(before)


def _windows(rows: Sequence[Row], load: Load) -> Iterator[str]:
    for row in rows:
        spec = row.spec
        if not spec.window or row.repeats:
            continue
        if spec.window >= load.context:
            yield f"{row.name}: the window hides nothing from a context of {load.context:,} tokens"
        elif free := row.cost.planned - row.cost.needed:
            yield (
                f"{row.name}: {bytes_text(free)} of its cache are free slots behind the windows, so that they move "
                f"once in {spec.slack} tokens; that move is not in the median of a token"
            )


def _beyond_the_roofline(rows: Sequence[Row]) -> Iterator[str]:
    found = [
        f"{row.name} ({phase})"
        for row in rows
        for phase in ("prefill", "decode")
        if (share := getattr(row, phase).share) is not None and share > 1
    ]
    if found:
        yield (
            f"beyond the roofline: {', '.join(found)}; what is read lies in the processor's own caches, which are "
            "faster than memory, or the speeds behind the roofline were measured at a slower moment"
        )


def _ratio_text(ratio: Ratio) -> str:
    return f"{ratio.median:.2f} x ({ratio.lower:.2f} to {ratio.upper:.2f})"
