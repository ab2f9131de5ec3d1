"""What is compared within a seed starts from the same weights and reads the same rows, as experiments say they do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from headwise.bench.experiments import EXPERIMENTS, load_experiment
from headwise.bench.experiments.heads_models import Retriever, TinyLM
from headwise.bench.experiments.training import Decoder
from headwise.bench.experiments.windows_model import Recaller
from tests.fixtures import one_thread

__all__ = ["one_thread"]

MODELS = (Decoder, Recaller, Retriever, TinyLM)
SHORT = {"steps": 3, "sequence_steps": 3, "points": 1, "batch": 5, "rows": 7, "ranking": 3, "rounds": 2}
# Experiment, conditions that are compared, and whether they say that they start from the same weights.
COMPARED = [
    *(("heads", (f"{task}, 1 head", f"{task}, 4 heads"), True) for task in ("sequence", "several", "single")),
    ("induction", ("two layers", "one layer"), False),
    ("sharing", load_experiment("sharing").conditions, False),
    ("windows", load_experiment("windows").conditions, True),
    ("pruning", ("trained", "random weights"), True),
]


@dataclass
class Watched:
    """A run as its models see it.

    Attributes:
        starts: weights of each model when it is first called.
        read: what embeddings are called with, each tensor once.
    """

    starts: list[dict[str, Tensor]] = field(default_factory=list)
    read: list[Tensor] = field(default_factory=list)


def watch(name: str, condition: str, seed: int) -> Watched:
    """Run a condition shortly and watch it."""
    experiment, watched, known = load_experiment(name), Watched(), []

    def look(module: nn.Module, arguments: Any) -> None:
        if isinstance(module, nn.Embedding) and not among(arguments[0], watched.read):
            watched.read.append(arguments[0].clone())
        if isinstance(module, MODELS) and not any(module is each for each in known):
            known.append(module)
            watched.starts.append({key: value.clone() for key, value in module.state_dict().items()})

    shorter = {key: value for key, value in SHORT.items() if hasattr(experiment.settings, key)}
    hook = register_module_forward_pre_hook(look)
    try:
        experiment.run(condition, seed, replace(experiment.settings, **shorter))
    finally:
        hook.remove()
    return watched


def same_weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def among(tensor: Tensor, others: list[Tensor]) -> bool:
    return any(torch.equal(tensor, other) for other in others)


def test_all_conditions_are_looked_at():
    looked = {(name, condition) for name, conditions, _ in COMPARED for condition in conditions}
    assert looked == {(name, condition) for name in EXPERIMENTS for condition in load_experiment(name).conditions}


@pytest.mark.parametrize(("name", "conditions", "weights"), COMPARED)
def test_conditions_of_a_seed_start_alike_and_read_the_same(name, conditions, weights):
    first, *others = (watch(name, condition, 5) for condition in conditions)
    for other in others:
        if name == "pruning":  # one is not trained: it ranks heads and judges them on the same rows
            assert len(other.read) == 2
            assert all(among(rows, first.read) for rows in other.read)
            assert same_weights(first.starts[0], other.starts[0])
            continue
        assert len(first.read) == len(other.read) > 0
        assert all(map(torch.equal, first.read, other.read))
        assert len(first.starts) == len(other.starts) > 0
        assert not weights or all(map(same_weights, first.starts, other.starts))


@pytest.mark.parametrize(("name", "conditions", "_"), COMPARED)
def test_another_seed_starts_otherwise_and_reads_others(name, conditions, _):
    one, other = (watch(name, conditions[0], seed) for seed in (5, 6))
    assert not same_weights(one.starts[0], other.starts[0])
    # The two rows of the sequence are the same for all seeds.
    assert any(among(rows, other.read) for rows in one.read) == conditions[0].startswith("sequence")
