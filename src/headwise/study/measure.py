"""The measuring part of a study, as steps that are kept once they are done.

Symbols: B batch, D documents or samples, H query heads, N random models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from headwise.attention.statistics import Relation
from headwise.models import Checkpoint, HeadCall
from headwise.models.documents import Piece
from headwise.models.importance import importance
from headwise.progress import Progress
from headwise.study.effects import Condition, Heads, plan_conditions, stand_ins
from headwise.study.nulls import RandomWeights, random_weights
from headwise.study.samples import Sample, count_tokens, repeated_samples, text_samples
from headwise.study.scores import delimiter_ids, plain, repeated_relations, score_sample, text_relations
from headwise.study.settings import Settings
from headwise.study.store import Arrays, Store
from headwise.study.tasks import Task, TaskRunner, make_task

# A backward pass to the activations costs about as much as the forward pass before it.
_BACKWARD = 2.0


@dataclass
class Measurements:
    """Everything measured, before any statistics.

    Attributes:
        text: per score ``[D, layers, H]`` on text, ``"<name> (uniform)"`` and ``"<name> (shuffled)"`` beside it.
        repeated: the same on repeated samples; ``"<name> (shuffled)"`` there is the score on unrelated halves.
        random: per (kind of sample, score) the scores of heads with random weights, ``[N, layers, H]``.
        means: per kind of sample the mean head outputs ``[layers, H, Dv]``.
    """

    text: Arrays = field(default_factory=dict)
    repeated: Arrays = field(default_factory=dict)
    random: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    means: dict[str, np.ndarray] = field(default_factory=dict)


class Meter:
    """Runs the steps of one study.

    Args:
        checkpoint: the model.
        pieces: pieces of text for scoring.
        effect_pieces: pieces of text for effects.
        settings: how much of everything.
        store: keeps finished steps.
        progress: is told what goes on.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        pieces: Sequence[Piece],
        effect_pieces: Sequence[Piece],
        settings: Settings,
        store: Store,
        progress: Progress,
    ) -> None:
        self.checkpoint = checkpoint
        self.settings = settings
        self.store = store
        self.progress = progress
        self.delimiters = delimiter_ids(checkpoint.tokenizer)
        self.text = text_samples(pieces, settings.batch)
        self.null_text = text_samples(pieces[: settings.null_documents], settings.batch)
        self.effect_text = text_samples(effect_pieces, settings.batch, settings.effect_length)
        self.repeated = self._repeated(settings.repeated, 1)
        self.unrelated = self._repeated(settings.unrelated, 2, unrelated=True)
        self.null_repeated = self._repeated(settings.null_repeated, 3)
        self.effect_repeated = self._repeated(settings.effect_documents, 4)
        self._expected = 0.0

    def _repeated(self, count: int, stream: int, *, unrelated: bool = False) -> list[Sample]:
        checkpoint, settings = self.checkpoint, self.settings
        seed = 10 * settings.seed + stream
        return repeated_samples(
            checkpoint.tokenizer, checkpoint.model.config, count, settings.batch, seed, unrelated=unrelated
        )

    def scores(self) -> Measurements:
        """Score all heads on text and on repeated samples, intact and under every null."""
        draws = self.settings.draws_for(len(self.checkpoint.heads))
        null_tokens = count_tokens(self.null_text) + count_tokens(self.null_repeated)
        self.progress.plan(
            count_tokens(self.text) + count_tokens(self.repeated) + count_tokens(self.unrelated) + draws * null_tokens
        )
        measured = Measurements()
        self.progress.stage("scoring heads on text")
        measured.text, measured.means["text"] = self._scored("text", self.text, self._text_relations)
        self.progress.stage("scoring heads on repeated tokens")
        measured.repeated, measured.means["repeated"] = self._scored("repeated", self.repeated, repeated_relations)
        unrelated, _ = self._scored("unrelated", self.unrelated, repeated_relations)
        for name in ("duplicate", "induction"):
            measured.repeated[f"{name} (shuffled)"] = unrelated[name]
        self.progress.stage("reading random weights, the null")
        measured.random = self._random(draws, null_tokens)
        return measured

    def _text_relations(self, sample: Sample) -> list[Relation]:
        return text_relations(sample.tokens, self.delimiters, self.settings.seed)

    def _scored(
        self, kind: str, samples: Sequence[Sample], relations: Callable[[Sample], list[Relation]]
    ) -> tuple[Arrays, np.ndarray]:
        """All documents of one kind: scores ``[D, layers, H]`` by name, and the mean outputs of heads."""
        parts = []
        for index, sample in enumerate(samples):
            compute = partial(self._sample_step, sample, relations(sample))
            parts.append(self.store.step(f"scores/{kind}/{index}", compute))
            self.progress.advance(sample.tokens.numel())
        weights = [sample.tokens.numel() for sample in samples]
        means = np.average([part.pop("mean output") for part in parts], axis=0, weights=weights)
        return by_unit(parts, samples), means.astype(np.float32)

    def _sample_step(self, sample: Sample, relations: Sequence[Relation]) -> Arrays:
        widths = [layout.value_dim for layout in self.checkpoint.layouts]
        means = np.zeros((self.checkpoint.num_layers, self.checkpoint.max_heads, max(widths)), dtype=np.float32)

        def average(call: HeadCall) -> None:
            mean = call.output.float().mean(dim=(0, 2)).cpu().numpy()  # [H, Dv]
            means[call.layer, : mean.shape[0], : mean.shape[1]] = mean

        tables = score_sample(self.checkpoint, sample, relations, average)
        return {**tables, "mean output": means}

    def _random(self, draws: int, tokens: int) -> dict[tuple[str, str], np.ndarray]:
        steps: list[Arrays] = []
        with random_weights(self.checkpoint) as twin:
            for index in range(draws):
                compute = partial(self._random_step, twin, 1_000 * self.settings.seed + index)
                steps.append(self.store.step(f"random/{index}", compute))
                self.progress.advance(tokens)
        keys = [tuple(name.split("/", 1)) for name in steps[0]]
        return {(kind, name): np.stack([step[f"{kind}/{name}"] for step in steps]) for kind, name in keys}

    def _random_step(self, weights: RandomWeights, seed: int) -> Arrays:
        twin = weights.draw(seed)
        result = {}
        for kind, samples, relations in (
            ("text", self.null_text, self._text_relations),
            ("repeated", self.null_repeated, repeated_relations),
        ):
            parts = [score_sample(twin, sample, plain(relations(sample))) for sample in samples]
            for name, values in by_unit(parts, samples).items():
                if not name.endswith("(uniform)"):
                    result[f"{kind}/{name}"] = mean_over_documents(values)
        return result

    def tasks(self) -> dict[str, Task]:
        """The losses on which effects are measured; none for a model without a language head."""
        if self.checkpoint.objective is None:
            return {}
        seed = self.settings.seed
        return {
            "repeated": make_task("repeated", self.effect_repeated, self.checkpoint, seed),
            "text": make_task("text", self.effect_text, self.checkpoint, seed),
        }

    def expect_effects(self, tasks: dict[str, Task]) -> None:
        """Tell the progress, before any leader is known, about how much the effects will take."""
        conditions = plan_conditions(stand_ins(self.checkpoint, self.settings.leaders), self.checkpoint, self.settings)
        self._expected = self._effect_cost({c.key: c for c in conditions}.values(), tasks) if tasks else 0.0
        self.progress.plan(self._expected)

    def importances(self, tasks: dict[str, Task]) -> Arrays:
        """First-order importance by task: ``[D, layers, H]``."""
        self.progress.plan(_BACKWARD * sum(task.tokens for task in tasks.values()))
        result = {}
        for name, task in tasks.items():
            self.progress.stage(f"first-order importance of every head on {name}")
            compute = partial(_importance_step, self.checkpoint, task)
            result[name] = self.store.step(f"importance/{name}", compute)["values"]
            self.progress.advance(_BACKWARD * task.tokens)
        return result

    def losses(self, conditions: Sequence[Condition], tasks: dict[str, Task], means: Arrays) -> dict[str, np.ndarray]:
        """Loss per document ``[D]`` for every condition key, and for each task's intact model under
        ``"<task>-intact"``."""
        by_key = {condition.key: condition for condition in conditions}
        self.progress.plan(self._effect_cost(by_key.values(), tasks) - self._expected)
        result = {}
        for name, task in tasks.items():
            self.progress.stage(f"loss of the intact model on {name}")
            runner = TaskRunner(self.checkpoint, task, torch.from_numpy(means[name]))
            self.progress.advance(task.tokens)
            result[f"{name}-intact"] = self._loss(f"{name}-intact", runner)
            self.progress.advance(task.tokens)
            mine = {key: condition for key, condition in by_key.items() if condition.task == name}
            if mine:
                self.progress.stage(f"ablating {len(mine)} sets of heads, loss on {name}")
            for key, condition in mine.items():
                result[key] = self._loss(key, runner, condition.heads, condition.mode)
                self.progress.advance(self._cost(condition, tasks))
        return result

    def _loss(self, key: str, runner: TaskRunner, heads: Heads = (), mode: str = "zero") -> np.ndarray:
        """Loss per document of one condition, ``[D]``."""
        return self.store.step(f"losses/{key}", partial(_loss_step, runner, heads, mode))["loss"]

    def _effect_cost(self, conditions: Iterable[Condition], tasks: dict[str, Task]) -> float:
        intact = 2 * sum(task.tokens for task in tasks.values())
        return intact + sum(self._cost(condition, tasks) for condition in conditions)

    def _cost(self, condition: Condition, tasks: dict[str, Task]) -> float:
        first = min(layer for layer, _ in condition.heads)
        share = 1 - first / self.checkpoint.num_layers
        return tasks[condition.task].tokens * (0.2 + 0.8 * share)


def _importance_step(checkpoint: Checkpoint, task: Task) -> Arrays:
    return {"values": importance(checkpoint, task.questions)}


def _loss_step(runner: TaskRunner, heads: Heads, mode: str) -> Arrays:
    return {"loss": runner.losses(heads, mode).numpy()}


def mean_over_documents(values: np.ndarray) -> np.ndarray:
    """Mean over the first axis without NaN; NaN where nothing is left."""
    counted = np.isfinite(values)
    total = np.where(counted, values, 0.0).sum(0, dtype=np.float64)
    return np.where(counted.any(0), total / counted.sum(0).clip(min=1), np.nan).astype(np.float32)


def by_unit(parts: Sequence[Arrays], samples: Sequence[Sample]) -> Arrays:
    """Put the rows of all samples in the order of their units: ``[D, ...]`` by name."""
    order = np.argsort([unit for sample in samples for unit in sample.units])
    return {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}
