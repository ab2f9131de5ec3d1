"""What breaks without a head: exact ablation against layer-matched random heads, and first-order importance.

Symbols: D documents, B batch, H query heads.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headwise.layout import head_name
from headwise.models import Checkpoint
from headwise.study.settings import Settings
from headwise.study.tasks import Task, row_losses

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


def importance(checkpoint: Checkpoint, task: Task, batch: int = 2) -> np.ndarray:
    """First-order importance of every head: |∂loss/∂gate| per document (Michel et al. 2019, per example).

    One backward pass gives all heads: every head's output is multiplied by a gate of 1, and the gate's gradient says
    how the loss would move if the head were turned down. Linear, so it misses what heads do together.

    Args:
        checkpoint: the model.
        task: its loss, a mean over the asked tokens of each document.
        batch: documents in one backward pass; each has gates of its own.

    Returns:
        float32 ``[D, layers, H]`` in nats; NaN where a layer has fewer heads.
    """
    result = np.full((task.documents, checkpoint.num_layers, checkpoint.max_heads), np.nan, dtype=np.float32)
    for question in task.questions:
        for start in range(0, len(question.units), batch):
            rows = slice(start, start + batch)
            part = type(question)(question.inputs[rows], question.labels[rows], question.units[rows])
            size = (checkpoint.num_layers, len(part.units), checkpoint.max_heads)
            gates = torch.ones(size, device=checkpoint.device, requires_grad=True)
            with torch.enable_grad(), checkpoint.gate(gates):
                row_losses(checkpoint, part).sum().backward()
            assert gates.grad is not None
            result[list(part.units)] = gates.grad.abs().transpose(0, 1).cpu().numpy()
    for layer, layout in enumerate(checkpoint.layouts):
        result[:, layer, layout.num_heads :] = np.nan
    return result
