"""What the numbers of `windows` allow to say."""

from __future__ import annotations

from headwise.bench.experiments.experiment import FOUND, NO_CONCLUSION, NOT_SHOWN, Finding
from headwise.bench.experiments.findings import compare, difference_text
from headwise.bench.experiments.summary import Summary
from headwise.bench.experiments.windows_task import LOCALS, condition

__all__ = ["findings"]


def findings(summary: Summary) -> list[Finding]:
    """What follows and what does not."""
    told = [_about(summary, local, zone) for local in LOCALS[1:] for zone in ("near", "far")]
    return [*told, _about_costs(summary), *_limits(summary)]


def _about(summary: Summary, local: int, zone: str) -> Finding:
    name, margin = condition(local), summary.settings.margin
    against = f"({name} − all global)"
    return compare(
        summary.difference(f"{zone} {local}"),
        higher=f"{name}: more is recalled from {zone} than with global heads alone {against}",
        lower=f"{name}: less is recalled from {zone} than with global heads alone {against}",
        none=f"{name}: no difference from global heads alone is shown for {zone} {against}",
        same=f"{name}: as much is recalled from {zone} as with global heads alone, within {margin:.0%} {against}",
        margin=margin,
    )


def _about_costs(summary: Summary) -> Finding:
    """The layout with the most local heads that is not behind in either zone."""
    margin = summary.settings.margin
    kept = [
        local
        for local in LOCALS[1:]
        if all(summary.difference(f"{zone} {local}").low > -margin for zone in ("near", "far"))
    ]
    bytes_of, pairs_of = ({local: summary.mean(condition(local), key) for local in LOCALS} for key in ("held", "pairs"))
    if not kept:
        return Finding(
            NOT_SHOWN,
            f"that any layout with local heads keeps both zones within {margin:.0%} of global heads alone, which cost "
            f"{bytes_of[0]:,.0f} bytes of cache and {pairs_of[0]:,.0f} pairs a row",
        )
    most = max(kept)
    shares = " and ".join(
        f"{cost[most]:,.0f} of {cost[0]:,.0f} {unit} ({cost[most] / cost[0]:.0%})"
        for cost, unit in ((bytes_of, "bytes of cache"), (pairs_of, "pairs"))
    )
    return Finding(
        FOUND,
        f"{condition(most)}: neither zone loses more than {margin:.0%} against global heads alone, for {shares} a row",
    )


def _limits(summary: Summary) -> list[Finding]:
    settings = summary.settings
    mixed = [local for local in LOCALS[1:-1] if (far := summary.difference(f"far {local}")).shown and far.mean < 0]
    told = []
    if mixed:
        worst = max(mixed)
        told.append(
            f"that a single global head recalls for all: with {condition(worst)} less is recalled from far "
            f"({difference_text(summary.difference(f'far {worst}'))}), where {settings.slots // 2} things are "
            "asked for at once"
        )
    else:
        told.append("that mixed layers lose anything from far: none is shown to")
    told += [
        f"how many global heads other tasks need: a query here asks for {settings.slots // 2} things of either zone",
        "that distances beyond a window are out of reach in deeper models: windows of several layers add up, and here "
        "is one layer",
        "how much faster a mixed layer is: bytes and pairs are counts, no times",
        f"how the shares look elsewhere: a row of {settings.length} against a window of {settings.window}; what is "
        "allocated also has room to move in, which weighs less in longer windows",
    ]
    return [Finding(NO_CONCLUSION, text) for text in told]
