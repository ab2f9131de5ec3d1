"""Training one model step by step, and measuring it on held-out documents on the way.

Symbols: N asked positions.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import UserError
from headwise.models.checkpoint import Checkpoint
from headwise.models.losses import IGNORED, Question
from headwise.models.weights import round_weights
from headwise.progress import Progress
from headwise.surgery.training.measure import Asked, HeldOut, Teacher
from headwise.surgery.training.parameters import trained_names
from headwise.surgery.training.ranks import whole
from headwise.surgery.training.rows import batches, part_of
from headwise.surgery.training.schedule import learning_rate
from headwise.surgery.training.settings import Settings
from headwise.surgery.training.state import State

__all__ = ["Log", "Task", "Training", "step_cost"]


@dataclass(frozen=True)
class Task:
    """What is trained on, and what is measured on.

    Attributes:
        training: rows in the order in which they are seen.
        held_out: rows that are never trained on; their units are documents.
    """

    training: Question
    held_out: Question

    def cost(self, settings: Settings, taught: bool) -> float:
        """All work of a training, in tokens of one pass forward."""
        held_out = self.held_out.inputs.numel() * len(settings.measured_steps)
        return step_cost(settings, taught) * settings.steps + held_out


def step_cost(settings: Settings, taught: bool) -> float:
    """Of one step: the way back counts as two passes, and a teacher as one."""
    return settings.step_tokens * (4.0 if taught and settings.loss == "kl" else 3.0)


@dataclass
class Log:
    """What happened so far.

    Attributes:
        curve: one point for each measurement: ``step``, ``tokens``, and by held-out document ``losses`` (cross entropy)
            and ``divergences`` (from the teacher; empty without one), in nats.
        teacher: the teacher's own losses by document; empty without one.
        steps: one entry for each step: ``rate``, ``cross_entropy``, ``divergence`` (of its own rows, before it) and
            ``gradient`` (the norm before it was clipped).
        seconds: of training and measuring, over all runs.
        training_seconds: of training alone.
    """

    curve: list[dict[str, Any]] = field(default_factory=list)
    teacher: list[float] = field(default_factory=list)
    steps: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    training_seconds: float = 0.0


class Training:
    """One model on its way.

    Args:
        checkpoint: is changed; under ``fsdp`` its weights are spread over the ranks and of use to this class only.
        teacher: what it is held against; None to learn from the text and be measured by its own loss alone.
        task: the rows.
        settings: how.
        state: where what is done is kept, and by which ranks.
        progress: is told what goes on.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        teacher: Teacher | None,
        task: Task,
        settings: Settings,
        state: State,
        progress: Progress,
    ) -> None:
        self.checkpoint, self.device = checkpoint, checkpoint.device
        self.teacher, self.task, self.settings = teacher, task, settings
        self.state, self.progress = state, progress
        self.ranks = ranks = state.ranks
        self.loss = settings.loss if teacher is not None else "ce"
        self.log = Log()
        self.held_out = HeldOut(task.held_out, teacher, ranks, settings.at_once)
        self.step_cost = step_cost(settings, teacher is not None)
        names = trained_names(checkpoint, settings.params)
        checkpoint.model.requires_grad_(False)
        for name in names:
            checkpoint.model.get_parameter(name).requires_grad_(True)
        self.asked = Asked(checkpoint)
        self.wrapped = ranks.wrapped(self.asked, checkpoint.model)
        self.parameters: Mapping[str, nn.Parameter] = {name: checkpoint.model.get_parameter(name) for name in names}
        self.optimizer = torch.optim.AdamW(
            list(self.parameters.values()), lr=settings.peak, betas=settings.betas, weight_decay=settings.weight_decay
        )

    def run(self) -> Log:
        """Train to the end, from where a kept state stops if there is one.

        Raises:
            UserError: the loss or the gradient is no finite number any more.
        """
        done = self._restore()
        steps = self.settings.steps
        if not self.log.curve:
            self._measure(0)
        for step in range(done, steps):
            began = time.monotonic()
            self._step(step)
            spent = time.monotonic() - began
            self.log.seconds += spent
            self.log.training_seconds += spent
            if step + 1 == steps:
                round_weights(self.checkpoint)  # so that the last point is of the model as it will be written
            if step + 1 in self.settings.measured_steps:
                self._measure(step + 1)
            if (step + 1) % self.settings.save_every == 0 or step + 1 == steps:
                self.state.save(self.parameters, self.optimizer, step + 1, vars(self.log))
        return self.log

    def _restore(self) -> int:
        kept = self.state.restore(self.parameters, self.optimizer)
        if kept is None:
            return 0
        done, log = kept
        self.log = Log(**log)
        self.progress.advance(self.step_cost * done + self.held_out.tokens * len(self.log.curve))
        return done

    def _step(self, step: int) -> None:
        settings, ranks = self.settings, self.ranks
        rows = part_of(self.task.training, slice(step * settings.batch, (step + 1) * settings.batch))
        count = int((rows.labels != IGNORED).sum())
        parts = list(batches(part_of(rows, ranks.share(settings.batch)), settings.at_once))
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for number, part in enumerate(parts, start=1):
            with ranks.keeping(self.wrapped, number == len(parts)):
                total, cross_entropy, divergence = self._ask(part)
                (total * (ranks.size / count)).backward()  # engines average over ranks
            sums[0] += cross_entropy.sum()
            sums[1] += 0 if divergence is None else divergence.sum()
        sums = ranks.summed(sums) / count
        norm = nn.utils.clip_grad_norm_(self.parameters.values(), settings.clip)
        entry = {"rate": learning_rate(step, settings.steps, settings.peak, settings.warmup)}
        entry |= {"cross_entropy": float(sums[0]), "divergence": float(sums[1]), "gradient": float(whole(norm))}
        self._check(entry, step)
        for group in self.optimizer.param_groups:
            group["lr"] = entry["rate"]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.log.steps.append(entry)
        self.progress.advance(self.step_cost)

    def _ask(self, part: Question) -> tuple[Tensor, Tensor, Tensor | None]:
        """Losses of rows that are trained on, with a graph."""
        half = self.settings.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            teacher = None
            if self.teacher is not None and self.loss == "kl":
                teacher = self.teacher.head, self.teacher.states(part.inputs)
            found: tuple[Tensor, Tensor, Tensor | None] = self.wrapped(
                part.inputs, part.labels, teacher, self.loss, self.settings.temperature
            )
        return found

    def _check(self, entry: Mapping[str, float], step: int) -> None:
        if all(map(math.isfinite, entry.values())):
            return
        kept = f"; the last good state is in {self.state.folder}" if self.state.folder else ""
        raise UserError(
            f"{self.checkpoint.name}: expected a finite loss and gradient, got {entry['cross_entropy']} and "
            f"{entry['gradient']} in step {step + 1} of {self.settings.steps}, so training stopped{kept}; give a "
            f"smaller rate than {self.settings.peak:g}"
        )

    def _measure(self, step: int) -> None:
        """Add a point to the curve."""
        began = time.monotonic()
        if self.held_out.teacher is not None and not self.log.teacher:
            self.log.teacher = self.held_out.measure_teacher()
        point = {"step": step, "tokens": step * self.settings.step_tokens}
        self.log.curve.append(point | self.held_out.measure(self.asked))
        self.log.seconds += time.monotonic() - began
        loss = statistics.mean(self.log.curve[-1]["losses"])
        self.progress.stage(f"{self.checkpoint.name}: {step} of {self.settings.steps} steps, held-out loss {loss:.3f}")
        self.progress.advance(self.held_out.tokens)
