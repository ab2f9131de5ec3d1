"""What `windows` trains on: rows of pairs in two zones, fillers, and queries that ask for several keys at once.

Symbols: B rows, L places of a row, P pairs, Q queries, E width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.bench.experiments.retrieval import draw_assignments, look_up

__all__ = ["HEADS", "LOCALS", "Rows", "Settings", "condition", "draw_rows"]

HEADS = 4
LOCALS = tuple(range(HEADS + 1))


@dataclass(frozen=True)
class Settings:
    """Sizes.

    Attributes:
        keys: different keys, all of which stand in every row, half of them in either zone.
        values: different values.
        fillers: different tokens that hold neither.
        slots: how many keys a query asks for, half of them from either zone.
        queries: of a row, in its last places.
        near: places of the zone before the queries.
        far: places of the zone at the start of the row.
        length: L.
        window: how many keys a local head sees, a query's own included.
        width: E.
        batch: rows of a step.
        steps: of training.
        rate: the highest learning rate, for all layouts.
        rows: of the test.
        margin: a difference of shares of right answers that is called none.
    """

    keys: int = 8
    values: int = 8
    fillers: int = 4
    slots: int = 4
    queries: int = 8
    near: int = 4
    far: int = 8
    length: int = 32
    window: int = 12
    width: int = 32
    batch: int = 32
    steps: int = 500
    rate: float = 1.5e-2
    rows: int = 128
    margin: float = 0.02


def condition(local: int) -> str:
    """The name of a condition."""
    named = {0: "all global", HEADS: "all local"}
    return named.get(local, f"{local} local, {HEADS - local} global")


@dataclass(frozen=True)
class Rows:
    """Rows of pairs, fillers and queries.

    Attributes:
        keys: ``[B, L - Q]`` a key, or a filler, counted on behind the keys.
        values: ``[B, L - Q]`` the value of a key; of a filler one number more than there are values.
        assignment: ``[B, P]`` the value of key 0, 1, ...: what is held out.
        asked: ``[B, Q, slots]`` keys that each query asks for; the first half of the slots stand near, the others far.
        answers: ``[B, Q, slots]`` their values.
    """

    keys: Tensor
    values: Tensor
    assignment: Tensor
    asked: Tensor
    answers: Tensor


def draw_rows(count: int, splits: tuple[int, ...], generator: torch.Generator, settings: Settings) -> Rows:
    """Rows whose assignment of values to keys belongs to one of the splits."""
    _check_zones(settings)
    assignment = draw_assignments(count, splits, keys=settings.keys, values=settings.values, generator=generator)
    order = torch.rand(count, settings.keys, generator=generator).argsort(1)
    zones = order.tensor_split(2, 1)  # keys that stand near, and far
    places = settings.length - settings.queries
    keys = settings.keys + torch.randint(settings.fillers, (count, places), generator=generator)
    values = torch.full((count, places), settings.values)
    for zone, start, size in zip(zones, (places - settings.near, 0), (settings.near, settings.far), strict=True):
        where = start + torch.rand(count, size, generator=generator).argsort(1)[:, : zone.shape[1]]
        keys.scatter_(1, where, zone)
        values.scatter_(1, where, assignment.gather(1, zone))
    asked = torch.cat([_choose(zone, settings, generator) for zone in zones], -1)
    answers = look_up(assignment, asked)
    return Rows(keys, values, assignment, asked, answers)


def _check_zones(settings: Settings) -> None:
    """Every query reaches the whole near zone through a window, and none reaches the far one."""
    reached = settings.near + settings.queries <= settings.window
    first = settings.length - settings.queries
    if not reached or first - (settings.far - 1) < settings.window:
        raise ValueError(
            f"windows: expected near + queries of at most window and far of at most length - queries - window + 1, "
            f"got {settings}"
        )


def _choose(zone: Tensor, settings: Settings, generator: torch.Generator) -> Tensor:
    """``[B, Q, slots / 2]`` different keys of a zone ``[B, P / 2]``."""
    count, size = zone.shape
    drawn = torch.rand(count, settings.queries, size, generator=generator).argsort(-1)[..., : settings.slots // 2]
    return zone.gather(1, drawn.flatten(1)).view_as(drawn)
