"""What breaks without a head: exact ablation against layer-matched random heads."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headwise.layout import head_name
from headwise.models import Checkpoint
from headwise.study.settings import Settings

Heads = tuple[tuple[int, int], ...]
MODES = ("zero", "mean")
# Heads that read content or the neighbour are taken away on both tasks; sinks and delimiters mean nothing on random
# tokens.
TASKS_OF: Mapping[str, Sequence[str]] = {
    "previous": ("repeated", "text"),
    "duplicate": ("repeated", "text"),
    "induction": ("repeated", "text"),
    "first": ("text",),
    "delimiter": ("text",),
}
# The leading pair, since a head and its understudy often share a job, and all leaders.
PAIR = 2


@dataclass(frozen=True)
class Condition:
    """One set of heads to ablate.

    Attributes:
        score: whose leaders these are, or whose leaders they are the control for.
        role: ``leader`` or ``control`` (random heads of the same layers).
        heads: pairs (layer, head).
        mode: ``zero`` or ``mean``.
        task: ``text`` or ``repeated``.
        leaders: the set itself, or for a control the set that it is a control for.
    """

    score: str
    role: str
    heads: Heads
    mode: str
    task: str
    leaders: Heads

    @property
    def kind(self) -> str:
        """``single`` or ``joint``."""
        return "single" if len(self.heads) == 1 else "joint"

    @property
    def key(self) -> str:
        """Names the measurement: equal sets are measured once, whatever they were chosen for."""
        return f"{self.task}-{self.mode}-" + "+".join(head_name(*head) for head in sorted(self.heads))


def plan_conditions(
    leaders: Mapping[str, Sequence[tuple[int, int]]], checkpoint: Checkpoint, settings: Settings
) -> list[Condition]:
    """The leading heads one by one, the leading two and all leaders together, each against random heads of its layers.

    All leaders together are ablated on all tasks of their score, the others on the first one only.

    Args:
        leaders: for every score its leading heads, strongest first.
        checkpoint: tells how many heads each layer has.
        settings: how many singles and controls, and the seed of the draws.
    """
    generator = random.Random(settings.seed)
    conditions: list[Condition] = []
    for score, heads in leaders.items():
        sets: list[Heads] = [(head,) for head in heads[: settings.singles]]
        sets += [tuple(heads[:size]) for size in sorted({PAIR, len(heads)}) if 1 < size <= len(heads)]
        for chosen in sets:
            tasks = TASKS_OF[score] if len(chosen) == len(heads) else TASKS_OF[score][:1]
            draws = _matched(chosen, heads, checkpoint, settings.controls if len(chosen) > PAIR else 1, generator)
            for task, mode in itertools.product(tasks, MODES):
                conditions.append(Condition(score, "leader", chosen, mode, task, chosen))
                conditions += [Condition(score, "control", draw, mode, task, chosen) for draw in draws]
    return conditions


def stand_ins(checkpoint: Checkpoint, count: int) -> dict[str, list[tuple[int, int]]]:
    """Heads from all depths in the place of leaders that are not known yet, to tell how long a study will take."""
    heads = checkpoint.heads
    spread = heads[:: max(1, len(heads) // count)][:count]
    return dict.fromkeys(TASKS_OF, spread)


def _matched(
    chosen: Heads, leaders: Iterable[tuple[int, int]], checkpoint: Checkpoint, count: int, generator: random.Random
) -> list[Heads]:
    """Random sets with as many heads in each layer as ``chosen``, no leader among them; none if a layer has too few."""
    taken = set(leaders)
    per_layer: dict[int, int] = {}
    for layer, _ in chosen:
        per_layer[layer] = per_layer.get(layer, 0) + 1
    draws: list[Heads] = []
    for _ in range(count):
        draw: list[tuple[int, int]] = []
        for layer, wanted in sorted(per_layer.items()):
            free = [(layer, head) for head in range(checkpoint.layouts[layer].num_heads) if (layer, head) not in taken]
            if len(free) < wanted:
                return []
            draw += generator.sample(free, wanted)
        draws.append(tuple(draw))
    return draws
