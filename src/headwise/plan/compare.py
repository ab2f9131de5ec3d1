"""Head layouts side by side: the cost of each for one model, one load and one runtime."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from headwise.plan.allocation import allocate
from headwise.plan.answers import Plan, plan_architecture
from headwise.plan.relayout import layouts_named

__all__ = ["Comparison", "Row", "compare", "curve"]

OWN = "as it is"


@dataclass(frozen=True)
class Row:
    """One layout.

    Attributes:
        layout: its name, or ``as it is`` for the model's own.
        plan: what it costs.
        share: its cache as a part of the first layout's that was asked for; None where that one has none.
    """

    layout: str
    plan: Plan
    share: Fraction | None

    def as_dict(self) -> dict[str, Any]:
        """The row as plain values."""
        plan = self.plan
        return {
            "layout": self.layout,
            "attention_parameters": plan.parameters.total,
            "kv_bytes_per_token": plan.per_token,
            "kv_growth_bytes_per_token": plan.growth,
            "kv_fixed_bytes": plan.fixed,
            "kv_bytes": plan.total,
            "share": None if self.share is None else float(self.share),
            "max_context": plan.max_context,
            "max_batch": plan.max_batch,
            "prefill_flops": plan.prefill.total.visible,
            "decode_flops": (plan.decode if plan.absorbed is None else plan.absorbed[1]).total.visible,
        }


@dataclass(frozen=True)
class Comparison:
    """The model's own layout first, then those that were asked for, in their order."""

    rows: tuple[Row, ...]

    @property
    def basis(self) -> str:
        """The layout whose cache is 100 %."""
        return self.rows[1].layout

    def records(self) -> list[dict[str, Any]]:
        """All rows as plain values."""
        return [row.as_dict() for row in self.rows]

    def csv(self) -> str:
        """A header and a line per layout; what was not asked for is empty."""
        records, text = self.records(), io.StringIO()
        writer = csv.DictWriter(text, records[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return text.getvalue()

    def markdown(self) -> str:
        """The same as a table for a page; numbers with separators."""
        records = self.records()
        names = [name for name in records[0] if any(record[name] is not None for record in records)]
        lines = [names, ["---", *["---:"] * (len(names) - 1)]]
        lines += [[_cell(record[name]) for name in names] for record in records]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def compare(base: Plan, layouts: str) -> Comparison:
    """The costs of several layouts of the model that ``base`` plans.

    Args:
        base: the model's own plan; load, runtime, budget and device are taken from it.
        layouts: names, separated by commas; see :func:`headwise.plan.relayout.layouts_named`.

    Raises:
        PlanError: a layout isn't known, doesn't fit the model, or can't be held by the runtime.
    """
    plans = [(OWN, base)]
    for layout in layouts_named(layouts):
        made = plan_architecture(
            layout.apply(base.architecture),
            base.request,
            base.runtime,
            model=base.model,
            budget=base.budget,
            weights=base.weights,
            device=None if base.roofline is None else base.roofline.device,
        )
        plans.append((layout.name, made))
    whole = plans[1][1].total
    return Comparison(tuple(Row(name, plan, Fraction(plan.total, whole) if whole else None) for name, plan in plans))


def curve(plan: Plan, contexts: list[int]) -> list[int]:
    """Bytes of the cache at each context, everything else as in ``plan``."""
    requests = (replace(plan.request, context=max(each, plan.request.shared_prefix)) for each in contexts)
    return [allocate(plan.architecture, request, plan.runtime).total for request in requests]


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
