"""What can be removed from a layer at once: query heads, or KV groups with their query heads.

Symbols: H query heads, G KV heads, R = H / G.

Where query heads share KV heads, every KV head must keep the same number of them, so removing query heads takes one
from each group at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from headwise.errors import UserError
from headwise.layout import HeadLayout, head_name

__all__ = [
    "UNITS", "Keep", "Unit", "check_amount", "check_keep", "check_unit", "choose", "count_to_remove", "example_after",
    "kept_groups", "possible_counts", "units_of",
]  # fmt: skip

Unit = Literal["head", "group"]
UNITS: tuple[Unit, ...] = ("head", "group")
# Layer -> the query heads that stay, ascending; layers that are not named stay whole.
Keep = Mapping[int, Sequence[int]]


def check_unit(unit: str) -> None:
    """Refuse an unknown unit.

    Raises:
        UserError: it is none of :data:`UNITS`.
    """
    if unit not in UNITS:
        raise UserError(f"prune: expected the unit {' or '.join(UNITS)}, got {unit!r}")


def check_amount(heads: int | None, share: float | None) -> None:
    """Refuse what is no number of heads, nor a share of them, whatever the model.

    Raises:
        UserError: neither or both are given, less than one head, or a share that is none.
    """
    if (heads is None) == (share is None):
        raise UserError("prune: expected --heads or --share, got both or neither")
    if heads is not None and heads < 1:
        raise UserError(f"prune: expected at least 1 head to remove, got {heads}")
    if share is not None and not 0 < share < 1:
        raise UserError(f"prune: expected a share between 0 and 1, got {share}")


def units_of(layout: HeadLayout, unit: Unit) -> list[list[int]]:
    """The query heads of each unit of a layer: every head alone, or every group."""
    if unit == "head":
        return [[head] for head in range(layout.num_heads)]
    return [list(layout.heads_of(group)) for group in range(layout.num_kv_heads)]


def kept_groups(layout: HeadLayout, heads: Sequence[int]) -> list[int]:
    """The KV heads that some of these query heads read, ascending."""
    return sorted({layout.kv_head(head) for head in heads})


def check_keep(layouts: Sequence[HeadLayout], keep: Keep) -> dict[int, list[int]]:
    """Heads to keep, in order, after seeing that each layer can hold them.

    Raises:
        UserError: a layer or head that isn't there, a layer without heads, or groups of unequal size; by name.
    """
    checked = {}
    for layer, heads in sorted(keep.items()):
        if not 0 <= layer < len(layouts):
            raise UserError(f"prune: expected layers 0 to {len(layouts) - 1}, got layer {layer}")
        layout = layouts[layer]
        wrong = [head for head in heads if not 0 <= head < layout.num_heads]
        if wrong or len(set(heads)) < len(heads):
            raise UserError(
                f"prune: expected different heads from 0 to {layout.num_heads - 1} in layer {layer}, got "
                f"{', '.join(map(str, heads))}"
            )
        if not heads:
            raise UserError(
                f"prune: expected at least one head to stay in layer {layer}, got none; no attention layer can be "
                "held without heads"
            )
        _check_groups(layer, layout, heads)
        checked[layer] = sorted(heads)
    return checked


def _check_groups(layer: int, layout: HeadLayout, heads: Sequence[int]) -> None:
    counts = Counter(layout.kv_head(head) for head in heads)
    if len(set(counts.values())) == 1:
        return
    least = min(counts.values())
    told = "; ".join(f"{count} of group {group}" for group, count in sorted(counts.items()))
    extra = [
        head_name(layer, head)
        for group, count in sorted(counts.items())
        for head in [head for head in sorted(heads) if layout.kv_head(head) == group][least:count]
    ]
    raise UserError(
        f"prune: expected as many query heads from each KV group that stays in layer {layer}, got {told}; remove "
        f"{', '.join(extra)} too, or others of their groups, or whole groups"
    )


def _steps(layout: HeadLayout, unit: Unit) -> tuple[int, int]:
    """Query heads that go at once, and how often that can be done until one unit is left."""
    if unit == "head" and layout.group_size > 1:
        return layout.num_kv_heads, layout.group_size - 1
    return layout.group_size, layout.num_kv_heads - 1


def count_to_remove(
    layouts: Sequence[HeadLayout], unit: Unit, *, heads: int | None = None, share: float | None = None, uniform: bool
) -> int:
    """How many query heads will go, before anything is measured.

    Args:
        layouts: of the model's layers.
        unit: what goes at once.
        heads: how many are to go; must be possible exactly.
        share: or which share of all; rounded down to a multiple of what can go at once.
        uniform: the same number from every layer.

    Raises:
        UserError: neither or both are given, it is impossible, or nothing would go; the text says what is possible.
    """
    check_unit(unit)
    check_amount(heads, share)
    step, most = possible_counts(layouts, unit, uniform)
    _check_choice(layouts, unit, uniform, most)
    total = sum(layout.num_heads for layout in layouts)
    taken = ("each from every layer, " if uniform else "") + ("whole KV groups" if unit == "group" else "query heads")
    possible = f"a multiple of {step} up to {most} of the {total} heads ({taken}; every layer keeps one)"
    if share is not None:
        count = int(share * total + 1e-9) // step * step
        if not 0 < count <= most:
            raise UserError(
                f"prune: expected {possible}, got a share of {share}, which is {share * total:.1f} heads; use --heads "
                f"{most if count else step}"
            )
        return count
    assert heads is not None
    if heads % step or heads > most:
        below, above = heads // step * step, -(-heads // step) * step
        near = sorted({count for count in (below, above) if 0 < count <= most} or ({most} if most else set()))
        advice = f"; use {' or '.join(map(str, near))}" if near else ""
        raise UserError(f"prune: expected {possible}, got {heads}{advice}")
    return heads


def _check_choice(layouts: Sequence[HeadLayout], unit: Unit, uniform: bool, most: int) -> None:
    """Refuse a unit of which every layer has only one, which stays."""
    if most:
        return
    other: Unit = "head" if unit == "group" else "group"
    advice = f"; take --unit {other}" if possible_counts(layouts, other, uniform)[1] else ""
    what = "KV groups" if unit == "group" else "query heads in each KV group"
    raise UserError(f"prune: expected layers with several {what}, one of which stays, got one in each{advice}")


def possible_counts(layouts: Sequence[HeadLayout], unit: Unit, uniform: bool) -> tuple[int, int]:
    """The numbers of heads that can go: multiples of the first, up to the second."""
    steps = [_steps(layout, unit) for layout in layouts]
    if uniform:
        if len({(layout.num_heads, layout.num_kv_heads) for layout in layouts}) > 1:
            raise UserError(
                "prune: expected layers with equal numbers of heads to remove a uniform number from, got unequal ones; "
                "remove freely, or name the heads to keep"
            )
        size, times = steps[0]
        return size * len(layouts), size * times * len(layouts)
    sizes = {size for size, times in steps if times}
    if len(sizes) > 1:
        raise UserError(
            f"prune: expected {'KV groups' if unit == 'group' else 'layers'} of one size to choose {unit}s from, got "
            f"sizes {', '.join(map(str, sorted(sizes)))}; name the heads to keep, or take the other unit"
        )
    size = sizes.pop() if sizes else 1
    return size, size * sum(times for _, times in steps)


def example_after(layouts: Sequence[HeadLayout], unit: Unit, count: int, *, uniform: bool) -> list[tuple[int, int]]:
    """(Query heads, KV heads) of every layer once ``count`` heads are gone.

    If uniform that is what they will be. Otherwise it is one of many ways, from the first layers on, since which layers
    lose heads isn't known before they are scored.
    """
    left, after = count, []
    for layout in layouts:
        step, times = _steps(layout, unit)
        taken = count // len(layouts) // step if uniform else min(times, left // step)
        left -= taken * step
        slices = unit == "head" and layout.group_size > 1
        after.append((layout.num_heads - taken * step, layout.num_kv_heads - (0 if slices else taken)))
    return after


def choose(
    layouts: Sequence[HeadLayout],
    values: np.ndarray,
    unit: Unit,
    count: int,
    *,
    uniform: bool,
    gone: Keep | None = None,
) -> dict[int, list[int]]:
    """The query heads to remove: those of the units that score least.

    Args:
        layouts: of the model's layers.
        values: ``[layers, units]`` scores; NaN where a layer has fewer units.
        unit: what a score is of.
        count: from :func:`count_to_remove` (less what is gone).
        uniform: the same number from every layer.
        gone: heads that were removed before, by layer.

    Returns:
        Removed heads by layer, ascending, without those that were gone.
    """
    orders = [
        _order(layout, values[layer], unit, set((gone or {}).get(layer, ()))) for layer, layout in enumerate(layouts)
    ]
    if uniform:
        size = len(orders[0][0][1])
        chosen = [
            (layer, heads) for layer, order in enumerate(orders) for _, heads in order[: count // len(layouts) // size]
        ]
    else:
        ranked = sorted((cost, layer, heads) for layer, order in enumerate(orders) for cost, heads in order)
        size = len(ranked[0][2])
        chosen = [(layer, heads) for _, layer, heads in ranked[: count // size]]
    removed: dict[int, list[int]] = {}
    for layer, heads in chosen:
        removed[layer] = sorted(removed.get(layer, []) + heads)
    return removed


def _order(layout: HeadLayout, values: np.ndarray, unit: Unit, gone: set[int]) -> list[tuple[float, list[int]]]:
    """What can be taken from a layer, the least first, with its score per head; the last unit stays."""
    left = [head for head in range(layout.num_heads) if head not in gone]
    groups = [[head for head in left if layout.kv_head(head) == group] for group in kept_groups(layout, left)]
    if unit == "group":
        costs = [(float(values[layout.kv_head(heads[0])]) / len(heads), heads) for heads in groups]
        return sorted(costs)[:-1]
    if layout.group_size == 1:  # a query head is a group; of others the last head of each stays
        return sorted((float(values[heads[0]]), heads) for heads in groups)[:-1]
    ranked = [sorted(heads, key=lambda head: (values[head], head)) for heads in groups]
    slices = [[heads[place] for heads in ranked] for place in range(len(groups[0]) - 1)]
    return [(float(np.mean(values[heads])), heads) for heads in slices]
