"""What a comparison of layouts found: as plain values for JSON, and as rows for CSV."""

from __future__ import annotations

import csv
import io
import statistics
from dataclasses import dataclass
from typing import Any

from headwise.bench.layouts.checks import Check
from headwise.bench.layouts.costs import Cost, Load
from headwise.bench.layouts.memory import Peak
from headwise.bench.layouts.specs import LayoutSpec
from headwise.bench.timing import PairedTimes
from headwise.plan.devices import Device

__all__ = ["Latency", "LayoutComparison", "Ratio", "Row"]


@dataclass(frozen=True)
class Ratio:
    """A time over another one of the same round: the median over rounds, and between which half of them lie."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, times: PairedTimes, name: str, baseline: str) -> Ratio:
        """The time of ``name`` over that of ``baseline``."""
        return cls(times.median_ratio(name, baseline), *times.ratio_quartiles(name, baseline))

    @property
    def differs(self) -> bool:
        """Whether 1 lies outside of the quartiles."""
        return not self.lower <= 1 <= self.upper

    def record(self) -> dict[str, float]:
        """As JSON holds it."""
        return {"median": self.median, "lower_quartile": self.lower, "upper_quartile": self.upper}


@dataclass(frozen=True)
class Latency:
    """The times of one implementation in one phase.

    Attributes:
        seconds: one per round.
        tokens: how many tokens a run reads.
        least: seconds that the roofline gives; None: not measured.
        to_first: over the time of the first layout.
        to_own: of one that repeats keys and values, over headwise's own on the same layout; else None.
    """

    seconds: tuple[float, ...]
    tokens: int
    least: float | None
    to_first: Ratio
    to_own: Ratio | None = None

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Half of the rounds lie between these, in seconds."""
        lower, _, upper = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return lower, upper

    @property
    def tokens_per_second(self) -> float:
        """Of this one layer."""
        return self.tokens / self.median

    @property
    def share(self) -> float | None:
        """The least time as a part of the median; above 1 where what is read lies in the processor's own caches."""
        return None if self.least is None else self.least / self.median

    def record(self) -> dict[str, Any]:
        """As JSON holds it."""
        lower, upper = self.quartiles
        return {
            "median_seconds": self.median,
            "lower_quartile_seconds": lower,
            "upper_quartile_seconds": upper,
            "seconds": list(self.seconds),
            "tokens_per_second": self.tokens_per_second,
            "least_seconds": self.least,
            "roofline_share": self.share,
            "over_first": self.to_first.record(),
            "over_own": None if self.to_own is None else self.to_own.record(),
        }


@dataclass(frozen=True)
class Row:
    """One implementation of one layout.

    Attributes:
        name: ``gqa:2``, or ``gqa:2 repeated``.
        spec: the layout.
        repeats: whether keys and values are repeated for every query head.
        cost: what was counted.
        allocated: bytes of its cache, counted over tensors.
        check: decoding against reading at once.
        prefill: reading the context.
        decode: one more token.
        peak: memory; None: not measured.
    """

    name: str
    spec: LayoutSpec
    repeats: bool
    cost: Cost
    allocated: int
    check: Check
    prefill: Latency
    decode: Latency
    peak: Peak | None

    def record(self) -> dict[str, Any]:
        """As JSON holds it."""
        spec, cost = self.spec, self.cost
        return {
            "name": self.name,
            "layout": spec.name,
            "repeats_keys_and_values": self.repeats,
            "heads": spec.heads,
            "kv_heads": spec.kv_heads,
            "head_dim": spec.head_dim,
            "latent_dim": spec.latent or None,
            "rope_dim": spec.rope or None,
            "local_heads": spec.local_heads or None,
            "window_keys": spec.window or None,
            "parameters": {**cost.parameters, "total": cost.parameters_total},
            "cache_bytes": {"needed": cost.needed, "planned": cost.planned, "allocated": self.allocated},
            "flops": {"prefill": cost.prefill.total.visible, "decode": cost.decode.total.visible},
            "softmax_elements": {"prefill": cost.prefill.softmax.visible, "decode": cost.decode.softmax.visible},
            "latent_form": None
            if cost.prefill_form is None
            else {"prefill": cost.prefill_form, "decode": cost.decode_form},
            "prefill": self.prefill.record(),
            "decode": self.decode.record(),
            "peak_bytes": None if self.peak is None else self.peak.record(),
            "check": self.check.record(),
        }


@dataclass(frozen=True)
class LayoutComparison:
    """All layouts in their order, each followed by the implementation that repeats keys and values, if there is one.

    Attributes:
        rows: the first one is what ratios are taken to.
        load: batch, context and dtype.
        device: the speeds behind the roofline; None: not measured.
        notes: what a number does not show, as far as it was seen here.
        settings: all that was asked for.
        environment: the machine.
        seconds: how long all of it took.
    """

    rows: tuple[Row, ...]
    load: Load
    device: Device | None
    notes: tuple[str, ...]
    settings: dict[str, Any]
    environment: dict[str, object]
    seconds: float

    @property
    def layouts(self) -> tuple[Row, ...]:
        """The layouts themselves."""
        return tuple(row for row in self.rows if not row.repeats)

    def repeated(self, row: Row) -> Row | None:
        """The implementation of the same layout that repeats keys and values."""
        return next((each for each in self.rows if each.repeats and each.spec == row.spec), None)

    def record(self) -> dict[str, Any]:
        """As JSON holds it: the layouts, and beside them those that repeat."""
        device = self.device
        return {
            "settings": self.settings,
            "layouts": [row.record() for row in self.layouts],
            "repeating": [row.record() for row in self.rows if row.repeats],
            "device": None
            if device is None
            else {"bandwidth": device.bandwidth, "flop_rate": device.flops, "source": device.source},
            "notes": list(self.notes),
            "environment": self.environment,
            "seconds": self.seconds,
        }

    def csv(self) -> str:
        """A header and a line per implementation, names joined by dots; what there is not is empty."""
        lines = [_flat(row.record()) for row in self.rows]
        named = dict.fromkeys(name for line in lines for name in line)
        # What one implementation has in parts and another has not at all is told by its parts.
        names = [name for name in named if not any(other.startswith(f"{name}.") for other in named)]
        text = io.StringIO()
        writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return text.getvalue()


def _flat(record: dict[str, Any], before: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}}`` as ``{"a.b": 1}``; lists are left out."""
    flat: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{before}{name}.")
        elif not isinstance(value, list):
            flat[before + name] = value
    return flat
